"""DRDM, DRFA and SCAFF-PD when connections break, processes die and answers come too late: not a bit changes."""

from __future__ import annotations

import random
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fenchel.algorithms.robust.drdm import DRDMClient, SampledClient
from fenchel.common.arrays import Indices, Vector
from fenchel.common.errors import TooFewRepliesError
from fenchel.common.storage.run_folder import RunFolder
from fenchel.common.wire.values import Values
from fenchel.server import checkpoint as checkpoints
from fenchel.testing import Faults, Federation
from tests.algorithms.drdm_oracle import Constants, Draw, drdm, pinned, weighted_minimiser
from tests.algorithms.drdm_runs import SEED, Record, minibatch_gradients, record, reported_losses, sampled
from tests.algorithms.feddcd_quadratics import problem_of
from tests.algorithms.mlr import Given, Run, reproducible, train
from tests.algorithms.straggler import held_up, missed
from tests.messages import raises

ROUNDS, TAU = 12, 4
LOCAL: dict[str, Any] = {"step_size": 0.3, "local_steps": TAU, "batch_size": 2, "dual_step_size": 0.02}
DRDM: dict[str, Any] = {"name": "drdm", "regularization": 0.5, **LOCAL}
ALGORITHMS: dict[str, dict[str, Any]] = {
    "uniform": DRDM | {"correction": "uniform"},
    "lambda-table": DRDM | {"correction": "lambda-table"},
    "lambda-scaled": DRDM | {"correction": "lambda-scaled", "sampling": "uniform"},
    "drfa": {"name": "drfa", **LOCAL},
    "scaff-pd": {"name": "scaff-pd", **LOCAL},
}


def disturbed(name: str, parent: Path, faults: Faults | None) -> Run:
    parent.mkdir(exist_ok=True)
    sections: dict[str, Any] = {"rounds": ROUNDS, "participation": sampled(3)}
    return train(reproducible(), parent, ALGORITHMS[name], faults=faults, **sections)


def kept_by(run: Run) -> str | None:
    """The name of the vector that the clients keep."""
    name = run.settings.algorithm.name
    return {"drdm": "drift", "scaff-pd": "gradient"}.get(name)


def exact(run: Run) -> None:
    """H is the mean of all h_i, or the table holds them to the bit (section 7.3, 2)."""
    drifts, state = np.stack(run.client_states("drift")), run.states[max(run.states)]
    assert np.abs(drifts).max() > 1e-3
    if len(state.table):
        assert state.table.tobytes() == drifts.tobytes()
    else:
        np.testing.assert_allclose(state.drift, drifts.mean(axis=0), rtol=0, atol=1e-15)


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Run]:
    """Runs in which nothing goes wrong."""
    return {name: disturbed(name, tmp_path_factory.mktemp(name), None) for name in ALGORITHMS}


@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("breaks", "kills"), [(3, 0), (0, 2), (3, 2)], ids=["broken streams", "killed servers", "both"]
)
def test_faults_change_no_bit(
    name: str, seed: int, breaks: int, kills: int, calm: Mapping[str, Run], tmp_path: Path
) -> None:
    faults = Faults(random.Random(f"{seed} {breaks} {kills}"), breaks, kills, frames=20, lag=3)
    run, wanted = disturbed(name, tmp_path, faults), calm[name]
    assert run.federation is not None
    assert run.federation.killed == kills
    assert run.federation.broken >= breaks
    assert run.model.tobytes() == wanted.model.tobytes()
    assert run.states[ROUNDS].weights.tobytes() == wanted.states[ROUNDS].weights.tobytes()
    assert np.abs(run.states[ROUNDS].weights - 0.25).max() > 1e-3
    vector = kept_by(run)
    if vector is not None:
        for own, undisturbed in zip(run.client_states(vector), wanted.client_states(vector), strict=True):
            assert own.tobytes() == undisturbed.tobytes()
    if vector == "drift":
        exact(run)


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


@pytest.mark.parametrize("correction", ["uniform", "lambda-table"])
def test_a_drift_that_came_too_late_is_undone(correction: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    release = held_up(monkeypatch, DRDMClient, "client-001", 2)
    everyone = np.ones(4, np.int64)
    # In round 2 the slow client is not asked for its loss, which it could not tell either.
    draws = [Draw(everyone, step, np.array([True, step == 3, True, True])) for step in (3, 2, 3, 3)]
    with ThreadPoolExecutor(4) as executor:
        taken = record(
            reproducible(),
            tmp_path,
            ALGORITHMS[correction],
            given=draws,
            rounds=4,
            executor=executor,
            on_round=lambda t: release.set() if t == 2 else None,
            participation={"deadline": 1.0},
        )
    assert missed(taken.run.calls) == {(2, "client-001")}
    followed(taken, correction, {2: 1})


@pytest.mark.parametrize("correction", ["uniform", "lambda-table"])
def test_an_answer_that_is_not_finite_does_not_count(
    correction: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained = DRDMClient.train

    def diverging(self: DRDMClient, model: Any, snapshot_step: int, scale: float = 1.0) -> Any:
        reply = trained(self, model, snapshot_step, scale)
        if (self.client, self.round) != ("client-002", 3):
            return reply
        return dict(reply) | {"change": np.full(9, np.nan)}

    diverging.answers_phase = "train"  # type: ignore[attr-defined]
    monkeypatch.setattr(DRDMClient, "train", diverging)
    everyone = np.ones(4, np.int64)
    draws = [Draw(everyone, step, np.ones(4, bool)) for step in (3, 2, 1, 4, 2)]
    taken = record(reproducible(), tmp_path, ALGORITHMS[correction], given=draws, rounds=5)
    followed(taken, correction, {3: 2})


def test_a_round_that_nobody_answers_stops_the_run_and_it_goes_on_as_if_nothing_had_been(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem, failing = reproducible(), threading.Event()
    settings = problem.settings(tmp_path, ALGORITHMS["lambda-table"], rounds=6, participation=sampled(3), seed=SEED)
    gradient = DRDMClient.gradient

    def gradient_or_not(self: DRDMClient, w: Vector, batch: Indices) -> Vector:
        if failing.is_set() and self.round == 4:
            raise OSError("no memory left")
        return gradient(self, w, batch)

    monkeypatch.setattr(DRDMClient, "gradient", gradient_or_not)

    def federation(folder: RunFolder) -> Federation:
        return Federation(settings, folder, _holdings=Given(shards=problem.shards))

    undisturbed = federation(RunFolder.create(tmp_path, "undisturbed")).run()
    folder = RunFolder.create(tmp_path, "run")
    failing.set()
    with raises(TooFewRepliesError, round=4, phase="train"):
        federation(folder).run()
    assert checkpoints.load(folder.checkpoint).round <= 3
    failing.clear()
    assert federation(folder).run(resume=True).tobytes() == undisturbed.tobytes()


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


def test_answers_that_get_lost_do_not_move_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trained, chance = DRDMClient.train, random.Random(2)
    lost: list[tuple[int, str]] = []

    def trained_in_vain(self: DRDMClient, model: Vector, snapshot_step: int, scale: float = 1.0) -> Values:
        reply = trained(self, model, snapshot_step, scale)  # h_i has changed
        if self.round < 60 and chance.random() < 0.1:
            lost.append((self.round, self.client))
            raise OSError("no memory left")
        return reply

    trained_in_vain.answers_phase = "train"  # type: ignore[attr-defined]
    monkeypatch.setattr(DRDMClient, "train", trained_in_vain)
    algorithm = {
        "name": "drdm",
        "correction": "uniform",
        "sampling": "uniform",
        "step_size": 0.05,
        "local_steps": 5,
        "batch_size": None,
        "regularization": 2.0,
        "dual_step_size": 0,
    }
    problem = pinned()
    taken = record(problem_of(problem), tmp_path, algorithm, rounds=300, participation=sampled(3))
    assert len(lost) > 5
    optimum = weighted_minimiser(problem, np.full(6, 1 / 6))
    np.testing.assert_allclose(taken.run.model, optimum, rtol=0, atol=1e-6)
    exact(taken.run)
