"""DRDM, DRFA and SCAFF-PD when clients are lost for good, or report losses that cannot be: the others go on."""

from __future__ import annotations

import itertools
import logging
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fenchel.algorithms.robust.drdm import SampledClient
from fenchel.algorithms.robust.scaff_pd import ScaffPDClient
from fenchel.algorithms.robust.weights import Robust
from fenchel.common.arrays import Vector
from fenchel.common.errors import LostStateError, TooFewRepliesError
from fenchel.common.storage.tables import read
from fenchel.common.wire.values import Values
from fenchel.deploy.launch.names import client_names
from fenchel.testing import Faults
from tests.algorithms.drdm_oracle import (
    Constants,
    Draw,
    Floats,
    ScaffPDConstants,
    Start,
    drdm_on,
    losses_of,
    pinned,
    scaff_pd,
    simplex,
)
from tests.algorithms.drdm_runs import Record, record, sampled
from tests.algorithms.feddcd_oracle import Quadratics
from tests.algorithms.feddcd_quadratics import problem_of, train_quadratics
from tests.algorithms.mlr import reproducible, train
from tests.messages import raises

NAMES = client_names(6)
MU, GAMMA, TAU, ETA = 0.5, 0.004, 5, 0.05
EXACT: dict[str, Any] = {"step_size": ETA, "local_steps": TAU, "batch_size": None, "dual_step_size": GAMMA}
SCAFF_PD = {"name": "scaff-pd", **EXACT}
DRDM = {"name": "drdm", "regularization": MU, "dual_estimator": "control-variate", **EXACT}
ALGORITHMS: dict[str, dict[str, Any]] = {
    "lambda-table": {**DRDM, "correction": "lambda-table"},
    "lambda-scaled": {**DRDM, "correction": "lambda-scaled", "sampling": "uniform"},
    "uniform": {**DRDM, "correction": "uniform"},
    "none": {"name": "drfa", "dual_estimator": "control-variate", **EXACT},
}
GONE, BEFORE = (1, 2), 5
"""Who is lost, and before which round. Client 2 has the largest weight of the optimum."""
LEFT = [i for i in range(6) if i not in GONE]
CONTINUE = {"on_lost_state": "continue"}


def rest(problem: Quadratics) -> Quadratics:
    """The problem of the clients that are left."""
    return Quadratics(problem.curvatures[LEFT], problem.centers[LEFT])


def losing(monkeypatch: pytest.MonkeyPatch, moment: int = 0) -> None:
    """Lose clients in round ``BEFORE``, the given number of times that the algorithm has looked after losses in it."""
    looks = 0
    parted = Robust.part_with_lost

    async def part_with_lost(self: Robust) -> bool:
        nonlocal looks
        looks += self.fleet.round == BEFORE
        for client in (self.fleet.members[NAMES[i]] for i in GONE):
            if self.fleet.round >= BEFORE and looks > moment and client.lost is None:  # a resumed server may not know
                client.mark_lost("its disk broke")
        return await parted(self)

    monkeypatch.setattr(Robust, "part_with_lost", part_with_lost)


def begun(taken: Record, correction: str) -> Start:
    """Where the clients that are left begin alone, from the state after the last round with all clients."""
    state = taken.run.states[BEFORE - 1]
    drifts = -MU * state.table[LEFT] if correction == "lambda-table" else np.zeros((len(LEFT), 4))
    return Start(state.model, simplex(state.weights[LEFT]), np.nan_to_num(state.losses[LEFT]), drifts)


def of_the_rest(taken: Record) -> Any:
    """What the record drew after the losses, without the lost ones."""

    def draws(t: int, weights: Floats) -> Draw:
        draw = taken.draws[t + BEFORE - 1]
        assert not draw.times[list(GONE)].any()
        assert not draw.asked[list(GONE)].any()
        return Draw(draw.times[LEFT], draw.step, draw.asked[LEFT])

    return draws


@pytest.mark.parametrize("size", [3, 6])
@pytest.mark.parametrize("correction", ALGORITHMS)
def test_after_a_loss_the_run_is_that_of_the_clients_that_are_left(
    correction: str, size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    losing(monkeypatch)
    with caplog.at_level(logging.WARNING, "fenchel.server"):
        taken = record(
            problem_of(pinned()), tmp_path, ALGORITHMS[correction], rounds=14, participation=sampled(size) | CONTINUE
        )
    constants = Constants(ETA, TAU, MU if correction != "none" else 0.0, GAMMA, correction, "control-variate")
    start = begun(taken, correction)
    trace = drdm_on(rest(pinned()), of_the_rest(taken), constants, 14 - BEFORE + 1, start)
    np.testing.assert_allclose(taken.run.models[BEFORE - 1 :], trace.models, rtol=0, atol=1e-12)
    after = np.array(taken.weights[BEFORE - 1 :])
    np.testing.assert_allclose(after[:, LEFT], trace.weights[1:], rtol=0, atol=1e-12)
    assert not after[:, list(GONE)].any()
    assert taken.weights[BEFORE - 2][list(GONE)].sum() > 0.2, "they had weight"
    if correction != "none":
        drifts = taken.drifts()[LEFT]
        np.testing.assert_allclose(-MU * drifts, trace.g, rtol=0, atol=1e-12)
        share = taken.weights[-2][LEFT] if correction == "lambda-table" else np.full(len(LEFT), 1 / len(LEFT))
        np.testing.assert_allclose(taken.state.drift, share @ drifts, rtol=0, atol=1e-14)
    assert f"lost: {NAMES[1]}, {NAMES[2]}. Their weight of" in caplog.text
    reset = correction in ("uniform", "lambda-scaled")
    assert ("the drifts of all clients are reset to 0" in caplog.text) == reset
    told = [call["client"] for call in taken.run.calls.to_pylist() if call["phase"] == "forget_drift"]
    assert told == ([NAMES[i] for i in LEFT] if reset else [])
    assert caplog.text.count("the settings ask for 6 clients a round, but 2 of 6 clients are lost") == (size == 6)


@pytest.mark.parametrize("correction", ALGORITHMS)
def test_a_loss_in_the_middle_of_a_round_counts_from_its_dual_step_on(
    correction: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    losing(monkeypatch, moment=1)
    taken = record(
        problem_of(pinned()), tmp_path, ALGORITHMS[correction], rounds=9, participation=sampled(6) | CONTINUE
    )
    assert taken.draws[BEFORE].asked.all(), "they told their losses before they were lost"
    for weights in taken.weights[BEFORE - 1 :]:
        assert not weights[list(GONE)].any()
        assert abs(weights.sum() - 1) < 1e-12
    state = taken.run.states[BEFORE]
    assert np.isnan(state.losses).tolist() == [i in GONE for i in range(6)]
    if correction == "none":
        return
    drifts, last = taken.drifts()[LEFT], taken.state
    if correction == "lambda-table":
        assert last.table[LEFT].tobytes() == drifts.tobytes()
        assert not last.table[list(GONE)].any()
        share = taken.weights[-2][LEFT]
    else:
        assert not state.drift.any()
        share = np.full(len(LEFT), 1 / len(LEFT))
    np.testing.assert_allclose(last.drift, share @ drifts, rtol=0, atol=1e-14)


@pytest.mark.parametrize("correction", ["lambda-table", "uniform"])
def test_servers_that_are_killed_after_a_loss_come_to_the_same_bits(
    correction: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    losing(monkeypatch)
    sections: dict[str, Any] = {"rounds": 10, "participation": sampled(3) | CONTINUE}
    calm = record(problem_of(pinned()), tmp_path, ALGORITHMS[correction], **sections)
    faults = Faults(random.Random(0), breaks=2, kills=3, frames=40, lag=3)
    taken = record(problem_of(pinned()), tmp_path, ALGORITHMS[correction], faults=faults, **sections)
    assert taken.run.federation is not None
    assert taken.run.federation.killed == 3
    assert taken.run.model.tobytes() == calm.run.model.tobytes()
    assert taken.weights[-1].tobytes() == calm.weights[-1].tobytes()
    assert taken.drifts()[LEFT].tobytes() == calm.drifts()[LEFT].tobytes()


def test_figures_are_of_those_that_are_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    losing(monkeypatch)
    taken = record(problem_of(pinned()), tmp_path, ALGORITHMS["lambda-table"], rounds=30, participation=CONTINUE)
    last = read(taken.run.folder.metrics).to_pylist()[-1]
    worst = losses_of(pinned(), taken.snapshots[30])[LEFT].max()
    assert last["worst_reported_loss"] == pytest.approx(worst, rel=1e-12), "summed in another order"
    assert last["zero_weights"] == np.count_nonzero(taken.weights[-1][LEFT] == 0)
    assert last["longest_unvisited"] == taken.state.unvisited[LEFT].max() < taken.state.unvisited[1]


def test_after_a_loss_scaff_pd_is_that_of_the_clients_that_are_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    losing(monkeypatch)
    algorithm = SCAFF_PD | {"local_steps": 10, "dual_step_size": 0.05, "concavity": 0.7}
    run = train_quadratics(problem_of(pinned()), tmp_path, algorithm, rounds=12, participation=CONTINUE)
    state = run.states[BEFORE - 1]
    assert state.weights[list(GONE)].sum() > 0.3
    start = Start(state.model, simplex(state.weights[LEFT]), state.losses[LEFT], np.zeros((len(LEFT), 4)))
    trajectory = scaff_pd(rest(pinned()), ScaffPDConstants(0.05, 10, 0.05, rho=0.7), start)
    for (x, weights), t in zip(trajectory, range(BEFORE, 13), strict=False):
        np.testing.assert_allclose(run.states[t].model, x, rtol=0, atol=1e-12)
        np.testing.assert_allclose(run.states[t].weights[LEFT], weights, rtol=0, atol=1e-12)
        assert not run.states[t].weights[list(GONE)].any()


def test_scaff_pd_leaves_out_who_was_lost_after_it_had_told_its_gradient(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    losing(monkeypatch, moment=1)
    run = train_quadratics(problem_of(pinned()), tmp_path, SCAFF_PD, rounds=BEFORE, participation=CONTINUE)
    trained = {call["client"] for call in run.calls.to_pylist() if (call["round"], call["phase"]) == (BEFORE, "train")}
    assert trained == {NAMES[i] for i in LEFT}
    assert not run.states[BEFORE].weights[list(GONE)].any()


def test_a_round_of_scaff_pd_whose_clients_are_all_lost_after_they_told_their_gradients_takes_no_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    losing(monkeypatch, moment=1)
    cohorts = [*[tuple(range(6))] * (BEFORE - 1), GONE, *[tuple(LEFT)] * 2]
    run = train_quadratics(
        problem_of(pinned()), tmp_path, SCAFF_PD, rounds=BEFORE + 2, cohorts=cohorts, participation=CONTINUE
    )
    before, state, after = (run.states[t] for t in (BEFORE - 1, BEFORE, BEFORE + 2))
    assert state.model.tobytes() == before.model.tobytes()
    np.testing.assert_allclose(state.weights[LEFT], simplex(before.weights[LEFT]), rtol=0, atol=1e-15)
    assert state.unvisited[LEFT].tolist() == [1] * len(LEFT)
    assert np.abs(after.model - state.model).max() > 0


@pytest.mark.parametrize("name", ["drdm", "drfa", "scaff-pd"])
def test_a_loss_stops_the_run_unless_the_settings_say_to_go_on(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    losing(monkeypatch)
    with raises(LostStateError, client="client-001"):
        train_quadratics(problem_of(pinned()), tmp_path, {"name": name, "local_steps": 2}, rounds=BEFORE + 1)


# Losses that cannot be


def lying(monkeypatch: pytest.MonkeyPatch, loss: float, liars: tuple[str, ...]) -> None:
    honest = SampledClient.loss

    def report(self: SampledClient, model: Vector) -> Values:
        return {"loss": loss} if self.client in liars else honest(self, model)

    report.answers_phase = "loss"  # type: ignore[attr-defined]
    monkeypatch.setattr(SampledClient, "loss", report)


@pytest.mark.parametrize(("name", "loss"), [("drdm", 1e308), ("drdm", -20.7), ("drfa", 1e99)])
def test_who_reports_a_loss_beyond_all_bounds_counts_as_if_it_had_not_been_asked(
    name: str, loss: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    algorithm = {"name": name, "local_steps": 4, "step_size": 0.3, "dual_step_size": 0.02}
    everyone = np.ones(4, np.int64)
    all_but_one = [Draw(everyone, step, np.array([True, False, True, True])) for step in (1, 4, 2)]
    wanted = record(reproducible(), tmp_path, algorithm, given=all_but_one, rounds=3)
    lying(monkeypatch, loss, ("client-001",))
    everybody = [Draw(everyone, draw.step, np.ones(4, bool)) for draw in all_but_one]
    with caplog.at_level(logging.WARNING, "fenchel.server"):
        taken = record(reproducible(), tmp_path, algorithm, given=everybody, rounds=3)
    np.testing.assert_array_equal(taken.weights, wanted.weights)
    np.testing.assert_array_equal(taken.run.models, wanted.run.models)
    assert np.abs(taken.weights[-1] - 0.25).max() > 1e-3
    bound = "at most 1e+30" if loss > 0 else "at least 0"
    for t in (1, 2, 3):
        assert f"round {t}, phase 'loss', client client-001, array 'loss': is {loss:g}, expected {bound}" in caplog.text
    assert "set algorithm.largest_loss to clip losses" in caplog.text


def test_an_objective_that_does_not_say_so_may_have_negative_losses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lying(monkeypatch, -20.7, (NAMES[1],))
    taken = record(problem_of(pinned()), tmp_path, {"name": "drfa", "dual_step_size": 1e-3}, rounds=1)
    assert taken.state.losses[1] == -20.7


def test_where_nobody_reports_a_loss_that_can_be_the_run_stops_at_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lying(monkeypatch, 1e308, tuple(client_names(4)))
    with raises(TooFewRepliesError, round=0, phase="loss"):
        record(reproducible(), tmp_path, {"name": "drdm"}, rounds=2)


def test_scaff_pd_goes_on_without_who_reports_a_loss_beyond_all_bounds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    algorithm = {"name": "scaff-pd", "local_steps": 4, "dual_step_size": 0.02}
    wanted = train(reproducible(), tmp_path, algorithm, cohorts=[(0, 2, 3)], rounds=3)
    honest = ScaffPDClient.full_gradient

    def report(self: ScaffPDClient, model: Vector) -> Values:
        reply = dict(honest(self, model))
        return reply | {"loss": 1e308} if self.client == "client-001" else reply

    report.answers_phase = "gradient"  # type: ignore[attr-defined]
    monkeypatch.setattr(ScaffPDClient, "full_gradient", report)
    run = train(reproducible(), tmp_path, algorithm, rounds=3)
    np.testing.assert_array_equal(run.models, wanted.models)
    np.testing.assert_array_equal(run.states[3].weights, wanted.states[3].weights)
    assert "phase 'gradient', client client-001, array 'loss': is 1e+308, expected at most 1e+30" in caplog.text
    for earlier, later in itertools.pairwise(run.models):
        assert np.abs(later - earlier).max() > 0
