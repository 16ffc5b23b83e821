"""Every algorithm keeps what Fenchel promises of all: the conformance suite over the registry."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fenchel
from fenchel.algorithms.registry import builtin
from fenchel.testing import check_algorithm
from tests.slow import rest_slow

WHOLE = {"name": "breast_cancer", "samples": 200, "scale": "standard", "partition": {"kind": "dirichlet", "alpha": 0.5}}
SPLIT = {
    "name": "breast_cancer",
    "samples": 60,
    "scale": ["standard", "unit-rows"],
    "partition": {"kind": "grid", "sample_groups": 2, "feature_groups": 2},
}
LOCAL = {"local_steps": 3, "batch_size": 16, "step_size": 0.05}
STAGES = {"step_size": 0.02, "schedule": {"kind": "practice", "stage_steps": 6}}
DUAL = LOCAL | {"dual_step_size": 0.01}
SOME = {"participation": {"sampler": {"kind": "fixed", "size": 2}}}
TOP = {"uplink": {"sparsify": {"support": "top-k", "keep": 0.3}}}
SCORES = {"objective": {"kind": "binary"}}
GRID = {"data": SPLIT, "clients": 4}


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


CASES: dict[str, dict[str, Any]] = {
    "fedavg": {"algorithm": LOCAL, **SOME},
    "fedavg, short": {"algorithm": LOCAL, "rounds": 3, "clients": 2},
    "fedavg, own objective": {"algorithm": LOCAL, "objective": {"kind": "own", "name": f"{__name__}:Squares"}},
    "fedavg, sparse": {
        "algorithm": LOCAL,
        "uplink": {"sparsify": {"support": "top-k", "keep": 0.3}, "dtype": "float32"},
        **SOME,
    },
    "fedprox": {"algorithm": LOCAL, **SOME},
    "fednova": {"algorithm": LOCAL, **SOME},
    "fedopt": {"algorithm": LOCAL, **SOME},
    "robust-aggregation": {"algorithm": LOCAL},
    "scaffold": {"algorithm": LOCAL, **SOME},
    "scaffold, changed": {
        "algorithm": LOCAL | {"weighting": "uniform"},
        "uplink": {"sparsify": {"support": "random", "keep": 0.4}, "noise": 0.1},
        "downlink": {"sparsify": {"support": "top-k", "keep": 0.6}},
        **SOME,
    },
    "feddyn": {"algorithm": LOCAL, **SOME},
    "fedpd, skipping": {"algorithm": LOCAL | {"skip": 0.5}},
    "mb-sgd": {"algorithm": LOCAL, **SOME},
    "feddcd": {"algorithm": {"step_size": 0.05}, **SOME},
    "acc-feddcd": {"algorithm": {}, **SOME},
    "acc-feddcd, two cohorts": {"algorithm": {"cohorts": 2}, **SOME},
    "fedpdm": {"algorithm": LOCAL, **SOME},
    "fedpdm, noisy": {
        "algorithm": LOCAL | {"aggregator": "hybrid"},
        "uplink": {"sparsify": {"support": "random", "keep": 0.5}, "noise": 0.05},
        **SOME,
    },
    "fedpdm, ef21": {"algorithm": LOCAL | {"aggregator": "sampled", "error_feedback": "ef21"}, **TOP, **SOME},
    "fedpdm, ef21 stale": {"algorithm": LOCAL | {"aggregator": "stale", "error_feedback": "ef21"}, **TOP, **SOME},
    "drdm": {"algorithm": DUAL, **SOME},
    "drdm, scaled": {"algorithm": DUAL | {"correction": "lambda-scaled", "sampling": "uniform"}, **SOME},
    "drfa": {"algorithm": DUAL, **SOME},
    "scaff-pd": {"algorithm": DUAL},
    "codasca": {"algorithm": {**STAGES, "local_steps": 3}, **SCORES},
    "codasca, fresh": {"algorithm": {**STAGES, "local_steps": 3, "cv_init": "gradient"}, **SCORES},
    "codasca, paper's wire": {
        "algorithm": {**STAGES, "local_steps": 3, "wire": "paper", "cv_init": "gradient"},
        **SCORES,
        **SOME,
    },
    "codasca, as published": {
        "algorithm": {**STAGES, "local_steps": 3, "wire": "paper", "cv_init": "zero"},
        **SCORES,
        **SOME,
    },
    "coda-plus": {"algorithm": {**STAGES, "local_steps": 3}, **SCORES},
    "coda": {"algorithm": {**STAGES, "local_steps": 3}, **SCORES},
    "npa": {"algorithm": STAGES, **SCORES},
    "hybrid-fedavg": {"algorithm": {"step_size": 0.1}, **GRID},
    "hyfem-like": {"algorithm": {}, **GRID},
    "hyfdca": {"algorithm": {"privacy": "none"}, **GRID},
    "hyfdca, encrypted": {"algorithm": {"encryption": {"key_bits": 2048}, "picks": 8}, "rounds": 3, **GRID},
}


BASIS: dict[str, Any] = {
    "seed": 11,
    "rounds": 6,
    "clients": 3,
    "data": WHOLE,
    "objective": {"kind": "logistic", "l2": 0.1},
}


def test_every_algorithm_has_a_case() -> None:
    assert {case.partition(",")[0] for case in CASES} == set(builtin())


FIRST = {case.partition(",")[0]: case for case in reversed(CASES)}
"""The first case of each algorithm."""


@pytest.mark.parametrize("case", rest_slow(sorted(CASES, key=lambda case: case not in FIRST.values()), len(FIRST)))
def test_it_conforms(case: str, tmp_path: Path) -> None:
    given = CASES[case]
    algorithm = {"name": case.partition(",")[0], **given["algorithm"]}
    check_algorithm(BASIS | given | {"algorithm": algorithm}, tmp_path, seeds=1)


def test_a_run_that_is_too_short_to_be_disturbed_is_refused_with_a_reason(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="more rounds"):
        check_algorithm(BASIS | {"rounds": 1, "clients": 1, "algorithm": {"name": "fedavg", **LOCAL}}, tmp_path)


@pytest.mark.parametrize(
    ("name", "promise"), [("Wandering", "a second run"), ("Forgetful", "an instruction that was handled twice|broken")]
)
def test_an_algorithm_that_breaks_a_promise_is_found_out(name: str, promise: str, tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match=promise):
        check_algorithm(BASIS | {"algorithm": {"name": f"{__name__}:{name}"}}, tmp_path)
