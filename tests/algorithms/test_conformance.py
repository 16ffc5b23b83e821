"""Every algorithm keeps what Fenchel promises of all: the conformance suite over the registry."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fenchel
from fenchel.common.settings.registry import builtin_settings
from fenchel.testing import check_algorithm
from tests.cases import BASIS, CASES, FIRST, LOCAL, sections_of
from tests.slow import rest_slow


class Settings(fenchel.AlgorithmSettings):
    name: str
    step_size: float = 0.1


class Wandering(fenchel.Algorithm):
    """Gradient descent on the mean of the clients' gradients."""

    Settings = Settings

    async def round(self, t: int) -> None:
        reduced = await self.sample().reduce("step", model=self.model, returns={"gradient": self.model})
        self.model = self.model - self.settings.step_size * reduced.mean("gradient")


class WanderingClient(fenchel.ClientAlgorithm):
    """Draws from a stream of random numbers that depends on what happened before."""

    @fenchel.answers("step")
    def step(self, model: fenchel.Vector) -> dict[str, Any]:
        noise = np.random.default_rng().standard_normal(model.size)
        return {"gradient": self.objective.gradient(model) + 1e-3 * noise}


class Forgetful(Wandering):
    """The same, with clients that keep something outside of their state."""


class ForgetfulClient(fenchel.ClientAlgorithm):
    """Counts its rounds where no crash preserves them."""

    rounds_done = 0

    @fenchel.answers("step")
    def step(self, model: fenchel.Vector) -> dict[str, Any]:
        self.rounds_done += 1
        return {"gradient": self.objective.gradient(model) * self.rounds_done}


class Squares(fenchel.Objective):
    """Half the mean squared error of a linear model: an objective from outside of Fenchel."""

    def __init__(self, shard: fenchel.Shard, l2: float, dtype: str) -> None:
        super().__init__(dimension=shard.features.shape[1], samples=shard.samples, dtype=dtype)
        self.features = np.asarray(shard.features)
        self.targets = shard.labels.astype(float)

    def loss(self, w: fenchel.Vector) -> float:
        return float(np.square(self.features @ w - self.targets).mean() / 2)

    def batch_gradient(self, w: fenchel.Vector, rows: np.ndarray[Any, Any]) -> fenchel.Vector:
        features = self.features[rows]
        gradient: fenchel.Vector = features.T @ (features @ w - self.targets[rows]) / rows.size
        return gradient

    def evaluate(self, w: fenchel.Vector, shard: fenchel.Shard | None = None) -> fenchel.Metrics:
        return fenchel.Metrics(loss_sum=self.loss(w) * self.samples, correct=None, samples=self.samples)


def test_every_algorithm_has_a_case() -> None:
    assert {case.partition(",")[0] for case in CASES} == set(builtin_settings())


@pytest.mark.parametrize("case", rest_slow(sorted(CASES, key=lambda case: case not in FIRST.values()), len(FIRST)))
def test_it_conforms(case: str, tmp_path: Path) -> None:
    check_algorithm(sections_of(case), tmp_path, seeds=1)


def test_an_algorithm_conforms_with_an_objective_from_outside(tmp_path: Path) -> None:
    own = {"kind": "own", "name": f"{__name__}:{Squares.__name__}"}
    check_algorithm(sections_of("fedavg") | {"objective": own}, tmp_path, seeds=1)


def test_it_conforms_in_a_folder_with_the_runs_of_other_checks(tmp_path: Path) -> None:
    for number in range(20):
        (tmp_path / f"20261127-101500-undisturbed-{number:04}").mkdir()
    check_algorithm(sections_of("fedavg"), tmp_path, seeds=0)


def test_a_run_that_is_too_short_to_be_disturbed_is_refused_with_a_reason(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="more rounds"):
        check_algorithm(BASIS | {"rounds": 1, "clients": 1, "algorithm": {"name": "fedavg", **LOCAL}}, tmp_path)


@pytest.mark.parametrize(
    ("name", "promise"), [("Wandering", "a second run"), ("Forgetful", "an instruction that was handled twice|broken")]
)
def test_an_algorithm_that_breaks_a_promise_is_found_out(name: str, promise: str, tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match=promise):
        check_algorithm(BASIS | {"algorithm": {"name": f"{__name__}:{name}"}}, tmp_path)
