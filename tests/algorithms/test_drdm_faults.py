"""DRDM when answers come too late, are not finite, or do not come: the run is that of the others."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fenchel.algorithms.robust.drdm import DRDMClient, SampledClient
from fenchel.common.arrays import Vector
from fenchel.common.wire.values import Values
from tests.algorithms.drdm_oracle import Constants, Draw, drdm
from tests.algorithms.drdm_runs import Record, minibatch_gradients, record, reported_losses, sampled
from tests.algorithms.mlr import Run, reproducible
from tests.algorithms.straggler import late, missed
from tests.slow import rest_slow

TAU = 4
LOCAL: dict[str, Any] = {"step_size": 0.3, "local_steps": TAU, "batch_size": 2, "dual_step_size": 0.02}
DRDM: dict[str, Any] = {"name": "drdm", "regularization": 0.5, **LOCAL}
ALGORITHMS: dict[str, dict[str, Any]] = {
    "uniform": DRDM | {"correction": "uniform"},
    "lambda-table": DRDM | {"correction": "lambda-table"},
}


def exact(run: Run) -> None:
    """H is the mean of all h_i, or the table holds them to the bit (section 7.3, 2)."""
    drifts, state = np.stack(run.client_states("drift")), run.states[max(run.states)]
    assert np.abs(drifts).max() > 1e-3
    if len(state.table):
        assert state.table.tobytes() == drifts.tobytes()
    else:
        np.testing.assert_allclose(state.drift, drifts.mean(axis=0), rtol=0, atol=1e-15)


def followed(taken: Record, correction: str, missing: Mapping[int, int]) -> None:
    """The run is the oracle's, in which the clients that went missing had not been drawn."""
    draws = {
        t: Draw(np.where(np.arange(4) == missing.get(t, -1), 0, draw.times), draw.step, draw.asked)
        for t, draw in taken.draws.items()
    }
    trace = drdm(
        4,
        9,
        minibatch_gradients(reproducible(), 2, TAU),
        reported_losses(reproducible()),
        lambda t, weights: draws[t],
        Constants(0.3, TAU, 0.5, 0.02, correction, "control-variate"),
        len(draws),
    )
    np.testing.assert_allclose(taken.run.models, trace.models, rtol=0, atol=1e-12)
    np.testing.assert_allclose(taken.weights, trace.weights[1:], rtol=0, atol=1e-12)
    np.testing.assert_allclose(-0.5 * taken.drifts(), trace.g, rtol=0, atol=1e-12)
    exact(taken.run)


@pytest.mark.parametrize("correction", rest_slow(["uniform", "lambda-table"]))
def test_a_drift_that_came_too_late_is_undone(correction: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    everyone = np.ones(4, np.int64)
    # In round 2 the slow client is not asked for its loss, which it could not tell either.
    draws = [Draw(everyone, step, np.array([True, step == 3, True, True])) for step in (3, 2, 3, 3)]
    with late(monkeypatch, DRDMClient, "client-001", 2) as slow:
        taken = record(reproducible(), tmp_path, ALGORITHMS[correction], given=draws, rounds=4, **slow)
    assert missed(taken.run.calls) == {(2, "client-001")}
    followed(taken, correction, {2: 1})


@pytest.mark.parametrize("correction", ["uniform", "lambda-table"])
@pytest.mark.parametrize("fails", [False, True], ids=["not finite", "no answer"])
def test_an_answer_that_is_not_finite_or_gets_lost_does_not_count(
    fails: bool, correction: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained = DRDMClient.train

    def diverging(self: DRDMClient, model: Any, snapshot_step: int, scale: float = 1.0) -> Any:
        reply = trained(self, model, snapshot_step, scale)
        if (self.client, self.round) != ("client-002", 3):
            return reply
        if fails:  # h_i has changed
            raise OSError("no memory left")
        return dict(reply) | {"change": np.full(9, np.nan)}

    diverging.answers_phase = "train"  # type: ignore[attr-defined]
    monkeypatch.setattr(DRDMClient, "train", diverging)
    everyone = np.ones(4, np.int64)
    draws = [Draw(everyone, step, np.ones(4, bool)) for step in (3, 2, 1, 4, 2)]
    taken = record(reproducible(), tmp_path, ALGORITHMS[correction], given=draws, rounds=5)
    followed(taken, correction, {3: 2})


def test_losses_that_nobody_reports_leave_lambda_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = SampledClient.loss

    def told_or_not(self: SampledClient, model: Vector) -> Values:
        if self.round == 2:
            raise OSError("no memory left")
        return told(self, model)

    told_or_not.answers_phase = "loss"  # type: ignore[attr-defined]
    monkeypatch.setattr(SampledClient, "loss", told_or_not)
    taken = record(reproducible(), tmp_path, ALGORITHMS["uniform"], rounds=3, participation=sampled(2))
    first, second, third = taken.weights
    assert second.tobytes() == first.tobytes()
    assert third.tobytes() != second.tobytes()
    assert taken.run.models[1].tobytes() != taken.run.models[0].tobytes()
