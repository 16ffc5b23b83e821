"""DRDM and DRFA where one client's first loss is far above the others': the dual step size that follows from them."""

from __future__ import annotations

import logging
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fenchel.algorithms.robust.drdm import SampledClient
from fenchel.common.arrays import Vector
from fenchel.common.storage.tables import read
from fenchel.common.wire.values import Values
from fenchel.deploy.launch.names import client_names
from fenchel.testing import Faults
from tests.algorithms.drdm_oracle import excess, losses_of, weighted_minimiser
from tests.algorithms.drdm_runs import Record, record
from tests.algorithms.feddcd_oracle import Quadratics
from tests.algorithms.feddcd_quadratics import problem_of

CLIENTS, DIMENSION, TAU = 10, 4, 10
DRDM: dict[str, Any] = {
    "name": "drdm",
    "step_size": 0.05,
    "batch_size": None,
    "regularization": 1.0,
    "local_steps": TAU,
}
DRFA: dict[str, Any] = {"name": "drfa", "step_size": 0.01, "batch_size": None, "local_steps": TAU, "output": "average"}


def unequal(factor: float, warm: bool) -> Quadratics:
    """Clients the last of which has ``factor`` times the median loss at w = 0.

    With ``warm``, w = 0 is where the others' average loss is least.
    """
    chance = np.random.default_rng(5)
    roots = chance.normal(size=(CLIENTS, DIMENSION, DIMENSION))
    curvatures = roots @ np.swapaxes(roots, 1, 2) / DIMENSION + 0.3 * np.eye(DIMENSION)
    centers = 0.3 * chance.normal(size=(CLIENTS, DIMENSION))
    if warm:
        centers -= weighted_minimiser(Quadratics(curvatures, centers), np.r_[np.ones(CLIENTS - 1), 0] / (CLIENTS - 1))
    losses = losses_of(Quadratics(curvatures, centers), np.zeros(DIMENSION))
    centers[-1] *= np.sqrt(factor * np.median(losses[:-1]) / losses[-1])
    return Quadratics(curvatures, centers)


def worst(problem: Quadratics, taken: Record, rounds: int) -> float:
    """The largest excess of the last models."""
    return max(excess(problem, w) for w in taken.run.models[-rounds:])


def reporting(monkeypatch: pytest.MonkeyPatch, lie: float) -> None:
    """Have the first client report a loss of ``lie`` of the first model, and the truth from then on."""
    honest = SampledClient.loss

    def loss(self: SampledClient, model: Vector) -> Values:
        lies = self.client == "client-000" and not model.any()
        return {"loss": lie} if lies else honest(self, model)

    loss.answers_phase = "loss"  # type: ignore[attr-defined]
    monkeypatch.setattr(SampledClient, "loss", loss)


def test_the_weights_of_all_rounds_are_in_a_table(tmp_path: Path) -> None:
    faults = Faults(random.Random(1), breaks=1, kills=2, frames=40, lag=3)
    taken = record(problem_of(unequal(13.0, False)), tmp_path, DRDM, rounds=10, faults=faults)
    table = read(taken.run.folder.clients)
    assert table["round"].to_pylist() == [t for t in range(1, 11) for _ in range(CLIENTS)]
    assert table["client"].to_pylist() == client_names(CLIENTS) * 10
    np.testing.assert_array_equal(table["weight"].to_numpy().reshape(10, CLIENTS), taken.weights)
    assert table["reported_loss"].to_pylist()[-CLIENTS:] == taken.state.losses.tolist()


def advised(caplog: pytest.LogCaptureFixture) -> tuple[float, float]:
    """The dual step sizes that the warning names: for a loss that is right, and for one that is not."""
    (warning,) = [
        logged for logged in caplog.records if logged.levelno == logging.WARNING and "first loss" in logged.msg
    ]
    assert isinstance(warning.args, tuple)
    right, wrong = warning.args[-2:]
    assert isinstance(right, float)
    assert isinstance(wrong, float)
    return float(f"{right:.3g}"), float(f"{wrong:.3g}")


@pytest.mark.slow  # make test-all
@pytest.mark.parametrize(("factor", "warm"), [(1.0, False), (60.0, True), (1000.0, False), (1000.0, True)])
def test_however_far_off_one_client_is_drdm_ends_at_the_robust_value(
    factor: float, warm: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    problem = unequal(factor, warm)
    with caplog.at_level(logging.WARNING, "fenchel.server"):
        taken = record(problem_of(problem), tmp_path, DRDM, rounds=160)
    assert worst(problem, taken, 20) < 1.02
    first = losses_of(problem, np.zeros(DIMENSION))
    assert taken.state.dual_step_size == pytest.approx(0.3 / (TAU * first.sum()), rel=1e-12)
    if factor > 20:
        assert advised(caplog)[0] == pytest.approx(taken.state.dual_step_size, rel=5e-3)
    if factor == 1:
        assert not caplog.records


@pytest.mark.slow  # make test-all
@pytest.mark.parametrize(("factor", "warm"), [(13.0, False), (1000.0, True)])
def test_however_far_off_one_client_is_the_mean_of_drfa_is_near_the_robust_value(
    factor: float, warm: bool, tmp_path: Path
) -> None:
    problem = unequal(factor, warm)
    taken = record(problem_of(problem), tmp_path, DRFA, rounds=300)
    late = [taken.snapshots[t] for t in range(101, 301)]
    assert excess(problem, np.mean(late, axis=0)) < 1.03


@pytest.mark.parametrize("algorithm", [DRDM, DRFA])
def test_one_absurd_report_does_not_stop_the_weights(
    algorithm: Mapping[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = unequal(1.0, False)
    reporting(monkeypatch, 1e29)
    taken = record(problem_of(problem), tmp_path, algorithm, rounds=1)
    first = losses_of(problem, np.zeros(DIMENSION))
    first[0] = 1e29
    counted = np.minimum(first, 1000 * np.median(first))
    assert taken.state.dual_step_size == pytest.approx(0.3 / (TAU * counted.sum()), rel=1e-12)


@pytest.mark.slow
def test_the_advice_cures_a_run_in_which_one_report_is_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    problem = unequal(60.0, False)
    reporting(monkeypatch, 1e29)
    with caplog.at_level(logging.WARNING, "fenchel.server"):
        slow = record(problem_of(problem), tmp_path, DRDM, rounds=60)
    assert worst(problem, slow, 20) > 1.2
    cured = record(problem_of(problem), tmp_path, DRDM | {"dual_step_size": advised(caplog)[1]}, rounds=120)
    assert worst(problem, cured, 20) < 1.02


@pytest.mark.slow  # make test-all
def test_the_advice_cures_a_run_in_which_a_loss_beyond_a_thousand_medians_is_right(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    problem = unequal(1e5, True)
    with caplog.at_level(logging.WARNING, "fenchel.server"):
        swinging = record(problem_of(problem), tmp_path, DRDM, rounds=60)
    assert worst(problem, swinging, 20) > 1.5
    cured = record(problem_of(problem), tmp_path, DRDM | {"dual_step_size": advised(caplog)[0]}, rounds=160)
    assert worst(problem, cured, 20) < 1.02
