"""DRDM: the real thing against an independent simulation, its special cases, its invariants, and where it leads."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chi2

from fenchel.algorithms.robust.drdm import DRDM, DRDMClient, DRDMSettings
from fenchel.algorithms.server_half import ServerContext
from fenchel.common.arrays import Vector
from fenchel.common.errors import SettingsError
from fenchel.common.objectives.factory import build_objective
from fenchel.common.settings.objective import LinearSettings
from fenchel.common.settings.participation import Participation
from fenchel.common.wire.values import Values
from fenchel.deploy.launch.names import client_names
from fenchel.fleet.client_record import ClientRecord
from fenchel.fleet.fleet import Fleet
from fenchel.proto import fenchel_pb2 as pb
from tests.algorithms.drdm_oracle import (
    Q1,
    Q1_AVERAGE,
    Q1_ROBUST,
    Q1_VALUE,
    Q1_WEIGHTS,
    Chance,
    Constants,
    Draw,
    Floats,
    Trace,
    drdm,
    drdm_on,
    everybody,
    gap,
    losses_of,
    pinned,
    slopes_of,
    weighted_minimiser,
)
from tests.algorithms.drdm_runs import SEED, Record, minibatch_gradients, record, reported_losses, sampled
from tests.algorithms.feddcd_oracle import Quadratics
from tests.algorithms.feddcd_quadratics import problem_of
from tests.algorithms.mlr import Run, reproducible, train
from tests.messages import raises
from tests.slow import rest_slow

TAU, ROUNDS = 4, 8
LOCAL: dict[str, Any] = {"step_size": 0.3, "local_steps": TAU, "batch_size": 2}
EXACT: dict[str, Any] = {"step_size": 0.05, "local_steps": 10, "batch_size": None}
"""Of the quadratic problems."""


def own(correction: str = "uniform", **keys: Any) -> dict[str, Any]:
    """DRDM as the paper has it, but for the correction."""
    settings = {
        "name": "drdm",
        "regularization": 0.5,
        "dual_step_size": 0.02,
        "dual_estimator": "plain",
        "exploration": 0.0,
        "correction": correction,
    }
    return settings | keys


def simulated(record: Record, algorithm: Mapping[str, Any], *, dual_batch: int | None = None) -> Trace:
    """The same run by the oracle, with the draws of the record."""
    problem = reproducible()
    constants = Constants(
        eta=algorithm["step_size"],
        tau=algorithm["local_steps"],
        mu=algorithm["regularization"],
        gamma=algorithm["dual_step_size"],
        correction=algorithm["correction"],
        estimator=algorithm["dual_estimator"],
        radius=algorithm.get("constraint", {}).get("radius", np.inf),
    )
    return drdm(
        4,
        9,
        minibatch_gradients(problem, algorithm["batch_size"], constants.tau),
        reported_losses(problem, dual_batch),
        record,
        constants,
        max(record.draws),
    )


def same(record: Record, trace: Trace, mu: float, tolerance: float = 1e-12) -> None:
    """The run is the oracle's: models, snapshots, weights and the clients' states."""
    np.testing.assert_allclose(record.run.models, trace.models, rtol=0, atol=tolerance)
    np.testing.assert_allclose(list(record.snapshots.values()), trace.snapshots, rtol=0, atol=tolerance)
    np.testing.assert_allclose(record.weights, trace.weights[1:], rtol=0, atol=tolerance)
    np.testing.assert_allclose(-mu * record.drifts(), trace.g, rtol=0, atol=tolerance)


BALL = {"constraint": {"kind": "ball", "radius": 0.4}}
COMBINATIONS: list[tuple[int, str, dict[str, Any]]] = [
    (3, correction, {"sampling": sampling, "dual_estimator": estimator})
    for correction, sampling, estimator in itertools.product(
        ["uniform", "lambda-table", "lambda-scaled", "none"],
        ["with-replacement", "without-replacement", "uniform"],
        ["plain", "control-variate"],
    )
    if correction != "lambda-scaled" or sampling == "uniform"
]


@pytest.mark.parametrize(
    ("size", "correction", "keys"),
    rest_slow(
        [
            *COMBINATIONS,
            (3, "uniform", BALL),
            (3, "lambda-table", BALL),
            (3, "uniform", {"dual_batch_size": 2}),
            (4, "uniform", {}),  # all, with replacement: as many draws as there are clients
        ],
        6,
    ),
)
def test_runs_are_those_of_the_independent_implementation(
    size: int, correction: str, keys: dict[str, Any], tmp_path: Path
) -> None:
    algorithm = own(correction, **keys, **LOCAL)
    taken = record(reproducible(), tmp_path, algorithm, rounds=ROUNDS, participation=sampled(size))
    same(taken, simulated(taken, algorithm, dual_batch=keys.get("dual_batch_size")), 0.5)
    assert {int(draw.times.sum()) for draw in taken.draws.values()} == {size}
    assert {int(draw.asked.sum()) for draw in taken.draws.values()} == {size}
    repeated = max(int(draw.times.max()) for draw in taken.draws.values())
    assert (repeated > 1) == (keys.get("sampling", "with-replacement") == "with-replacement")
    assert len({draw.step for draw in taken.draws.values()}) > 1
    assert np.abs(taken.weights[-1] - 0.25).max() > 0.01
    if keys == BALL:
        norms = [np.linalg.norm(model) for model in [*taken.run.models, *taken.snapshots.values()]]
        assert max(norms) == pytest.approx(0.4, abs=1e-12)
    invariants(taken, correction)


def invariants(taken: Record, correction: str) -> None:
    """Lambda is on the simplex; H is the mean of h_i, weighed by lambda in a table (section 7.3, 1 and 2)."""
    for weights in taken.weights:
        assert (weights >= 0).all()
        assert abs(weights.sum() - 1) < 1e-12
    drifts, state = taken.drifts(), taken.state
    if correction == "none":
        assert not drifts.any()
        assert not state.drift.any()
        return
    shares = np.full(len(drifts), 1 / len(drifts))
    if correction == "lambda-table":
        shares = taken.weights[-2]  # the lambda that the last round drew by
        assert state.table.tobytes() == drifts.tobytes()
    else:
        assert not state.table.size
    np.testing.assert_allclose(state.drift, shares @ drifts, rtol=0, atol=1e-15)
    assert np.abs(drifts).max() > 1e-2


def test_it_sends_a_model_down_and_up_to_two_up_and_then_a_model_down_and_a_number_up(tmp_path: Path) -> None:
    taken = record(reproducible(), tmp_path, own(sampling="uniform", **LOCAL), rounds=ROUNDS, participation=sampled(3))
    last = sum(draw.step == TAU for draw in taken.draws.values())
    assert 0 < last < ROUNDS
    for t, draw in taken.draws.items():  # a snapshot at the last step is the new model
        assert (draw.step == TAU) == (taken.snapshots[t].tobytes() == taken.run.states[t].model.tobytes())
    vectors_up = 3 * (2 * ROUNDS - last)
    assert taken.run.floats() == (9 * vectors_up, 2 * 3 * 9 * ROUNDS)  # the number is in the head of the message
    calls = taken.run.calls.select(["round", "client", "phase"]).to_pylist()
    names = client_names(4)
    wanted = [
        (t, names[i], phase)
        for t, draw in taken.draws.items()
        for phase, who in (("train", draw.times), ("loss", draw.asked))
        for i in np.flatnonzero(who)
    ]
    assert sorted((call["round"], call["client"], call["phase"]) for call in calls) == sorted(wanted)


# Special cases (section 7.2)

UNIFORM: dict[str, Any] = {"sampling": "uniform", "dual_step_size": 0}
THREE: dict[str, Any] = {"rounds": ROUNDS, "participation": sampled(3)}


def baseline(parent: Path, name: str, **keys: Any) -> Run:
    algorithm = {"name": name, "batches": "independent", "weighting": "uniform", **LOCAL, **keys}
    return train(reproducible(), parent, algorithm, seed=SEED, **THREE)


@pytest.mark.parametrize("correction", ["uniform", "lambda-table", "lambda-scaled"])
def test_without_dual_steps_it_is_feddyn(correction: str, tmp_path: Path) -> None:
    taken = record(reproducible(), tmp_path, own(correction, **UNIFORM, **LOCAL), **THREE)
    feddyn = baseline(tmp_path, "feddyn", alpha=0.5)
    np.testing.assert_allclose(taken.run.models, feddyn.models, rtol=0, atol=1e-12)
    np.testing.assert_allclose(-0.5 * taken.drifts(), feddyn.client_states("dual"), rtol=0, atol=1e-12)
    np.testing.assert_allclose(-0.5 * taken.state.drift, feddyn.states[ROUNDS].mean_dual, rtol=0, atol=1e-12)
    assert (taken.state.weights == 0.25).all()


@pytest.mark.parametrize(("mu", "name", "keys"), [(0.5, "fedprox", {"proximity": 0.5}), (0, "fedavg", {})])
def test_without_drift_and_dual_steps_it_is_fedprox_or_fedavg(
    mu: float, name: str, keys: dict[str, Any], tmp_path: Path
) -> None:
    taken = record(reproducible(), tmp_path, own("none", **UNIFORM, **LOCAL) | {"regularization": mu}, **THREE)
    np.testing.assert_allclose(taken.run.models, baseline(tmp_path, name, **keys).models, rtol=0, atol=1e-12)


def test_with_next_to_no_regularisation_it_is_not_drfa_but_overshoots(tmp_path: Path) -> None:
    one: dict[str, Any] = {"rounds": 1, "participation": sampled(2)}
    still: dict[str, Any] = {"sampling": "uniform", "dual_step_size": 0.02}
    corrected = record(reproducible(), tmp_path, own(**still, **LOCAL) | {"regularization": 1e-13}, **one)
    drfa = record(reproducible(), tmp_path, {"name": "drfa", **still, **LOCAL}, **one)
    np.testing.assert_allclose(corrected.run.model, 1.5 * drfa.run.model, rtol=0, atol=1e-12)  # 1 + m/N
    assert np.abs(drfa.run.model).max() > 0.1


# Invariants (section 7.3)


def test_one_plain_dual_step_from_equal_losses(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    clients, m, loss = 30, 20, 2.3
    equal = Quadratics(np.full((clients, 1, 1), 2 * loss), np.ones((clients, 1)))
    still = own("none", **EXACT | {"step_size": 1e-12})  # nothing moves, so each loss is 2.3
    problem = problem_of(equal)
    taken = record(problem, tmp_path, still | {"dual_step_size": 1e-3}, rounds=1, participation=sampled(m))
    asked = taken.draws[1].asked
    assert asked.sum() == m
    np.testing.assert_allclose(taken.weights[0][asked], 0.0448333, rtol=0, atol=5e-8)
    np.testing.assert_allclose(taken.weights[0][~asked], 0.0103333, rtol=0, atol=5e-8)
    assert "dual_step_size * clients" not in caplog.text
    with caplog.at_level(logging.WARNING, "fenchel.server"):
        loud = record(problem, tmp_path, still | {"dual_step_size": 1000**-0.625}, rounds=1, participation=sampled(m))
    asked = loud.draws[1].asked
    assert not loud.weights[0][~asked].any()
    assert "local_steps * dual_step_size * clients * loss is 9.2" in caplog.text


def start_at(monkeypatch: pytest.MonkeyPatch, problem: Quadratics, w: Floats, weights: Floats) -> None:
    """Have everybody begin at h_i = -grad f_i(w), with mu = 1."""
    drifts = -slopes_of(problem, np.tile(w, (len(weights), 1)))
    names = client_names(len(weights))
    begun = DRDM.initial_state

    def initial_state(self: DRDM, model: Vector) -> DRDM.State:
        state: DRDM.State = begun(self, w.copy())
        state.weights = weights.copy()
        state.drift = np.asarray(drifts.mean(axis=0), np.float64)
        if len(state.table):
            state.table = drifts.copy()
        return state

    monkeypatch.setattr(DRDM, "initial_state", initial_state)
    monkeypatch.setattr(
        DRDMClient, "initial_state", lambda self: DRDMClient.State(drifts[names.index(self.client)].copy())
    )


def test_nothing_moves_away_from_the_average_optimum_whatever_lambda_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = pinned()
    optimum = weighted_minimiser(problem, np.full(6, 1 / 6))
    start_at(monkeypatch, problem, optimum, np.full(6, 1 / 6))
    algorithm = own(**EXACT) | {"regularization": 1, "exploration": 0.1}
    taken = record(problem_of(problem), tmp_path, algorithm, rounds=20, participation=sampled(3))
    for model in taken.run.models:
        np.testing.assert_allclose(model, optimum, rtol=0, atol=1e-12)
    assert taken.weights[-1].max() > 0.5


def test_nothing_moves_away_from_the_saddle_point_with_a_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saddle = np.array([Q1_ROBUST])
    start_at(monkeypatch, Q1, saddle, Q1_WEIGHTS)
    algorithm = own("lambda-table", **EXACT) | {"regularization": 1, "dual_step_size": 1e-3}
    taken = record(problem_of(Q1), tmp_path, algorithm, rounds=20)
    for model, weights in zip(taken.run.models, taken.weights, strict=True):
        np.testing.assert_allclose(model, saddle, rtol=0, atol=1e-12)
        np.testing.assert_allclose(weights, Q1_WEIGHTS, rtol=0, atol=1e-12)


# Draws and estimators


def server(losses: Vector, m: int, **keys: Any) -> DRDM:
    """A server half with as many clients as losses, and nobody connected."""
    names = client_names(len(losses))
    members = {name: ClientRecord(name, pb.ShardDescription(samples=index + 1)) for index, name in enumerate(names)}
    participation = Participation.model_validate(sampled(m))
    fleet = Fleet(members=members, seed=SEED, participation=participation)
    objective = build_objective(LinearSettings(kind="softmax", l2=0.1), reproducible().shards[0])
    half = DRDM(
        ServerContext(fleet=fleet, settings=DRDMSettings(**keys), initial_model=np.zeros(9), objective=objective)
    )
    half.fleet.round = 1
    return half


def reports(losses: Vector, who: tuple[int, ...]) -> dict[str, float]:
    names = client_names(len(losses))
    return {names[i]: float(losses[i]) for i in who}


@pytest.mark.parametrize("estimator", ["plain", "control-variate"])
@pytest.mark.parametrize("m", [1, 2, 4])
def test_estimates_of_the_losses_are_right_on_average(estimator: str, m: int) -> None:
    losses, told = np.array([0.3, 2.0, 0.0, 1.1]), np.array([0.5, 1.9, 0.1, 1.0])
    estimates = []
    for who in itertools.combinations(range(4), m):
        half = server(losses, m, dual_estimator=estimator)
        half.estimate(reports(told, (0, 1, 3)))  # client 2 has never been asked
        estimates.append(half.estimate(reports(losses, who)))
    np.testing.assert_allclose(np.mean(estimates, axis=0), losses, rtol=0, atol=1e-14)
    variance = float(np.var(estimates, axis=0).sum())
    remembered = np.array([0.5, 1.9, 0, 1.0]) if estimator == "control-variate" else np.zeros(4)
    assert variance == pytest.approx((4 / m - 1) * ((losses - remembered) ** 2).sum(), abs=1e-14)


def test_dropouts_are_made_up_for_by_those_that_answer() -> None:
    losses = np.array([0.3, 2.0, 0.4, 1.1])
    np.testing.assert_allclose(
        server(losses, 3, dual_estimator="plain").estimate(reports(losses, (1, 3))), [0, 4, 0, 2.2]
    )


def test_reported_losses_are_cut_off() -> None:
    losses = np.array([-1.0, 7.0])
    half = server(losses, 2, largest_loss=5.0, dual_estimator="plain")
    np.testing.assert_array_equal(half.estimate(reports(losses, (0, 1))), [0, 5])


def fits(counts: Vector, expected: Vector) -> bool:
    """Whether counts are those of the expectation, but for one time in 10^4 (the seeds are fixed)."""
    statistic = float(((counts - expected) ** 2 / expected).sum())
    return statistic < float(chi2.ppf(1 - 1e-4, counts.size - 1))


@pytest.mark.parametrize("floor", [0.0, 0.4])
def test_cohorts_are_drawn_by_lambda(floor: float) -> None:
    half = server(np.zeros(4), 3, exploration=floor)
    half.state.weights = np.array([0.5, 0.0, 0.2, 0.3])
    drawn: Counter[str] = Counter()
    for t in range(1, 2001):
        cohort = half.training_cohort(t)
        assert cohort.total() == 3
        drawn.update(cohort)
    counts = np.array([drawn[name] for name in client_names(4)], float)
    p = (1 - floor) * half.state.weights + floor / 4
    assert (counts[p == 0] == 0).all()
    assert fits(counts[p > 0], 6000 * p[p > 0])


def test_without_replacement_clients_are_drawn_one_after_the_other() -> None:
    half = server(np.zeros(4), 2, exploration=0, sampling="without-replacement")
    p = half.state.weights = np.array([0.5, 0.1, 0.2, 0.2])
    drawn: Counter[frozenset[str]] = Counter()
    for t in range(1, 3001):
        cohort = half.training_cohort(t)
        assert max(cohort.values()) == 1
        drawn[frozenset(cohort)] += 1
    names = client_names(4)
    pairs = list(itertools.combinations(range(4), 2))
    chances = [p[i] * p[j] / (1 - p[i]) + p[j] * p[i] / (1 - p[j]) for i, j in pairs]
    counts = np.array([drawn[frozenset((names[i], names[j]))] for i, j in pairs], float)
    assert fits(counts, 3000 * np.array(chances))


def test_without_replacement_clients_without_weight_fill_up() -> None:
    half = server(np.zeros(5), 3, exploration=0, sampling="without-replacement")
    half.state.weights = np.array([0, 1.0, 0, 0, 0])
    names, drawn = client_names(5), Counter[str]()
    for t in range(1, 1001):
        cohort = half.training_cohort(t)
        assert len(cohort) == cohort.total() == 3
        assert names[1] in cohort
        drawn.update(cohort)
    assert fits(np.array([drawn[names[i]] for i in (0, 2, 3, 4)], float), np.full(4, 500.0))


def test_lost_clients_are_not_drawn() -> None:
    half = server(np.zeros(4), 2, exploration=0)
    half.fleet.participation = Participation.model_validate(sampled(2) | {"on_lost_state": "continue"})
    names, who = client_names(4), range(1, 3001)
    half.state.weights = np.array([0.4, 0.6, 0, 0])
    half.fleet.members[names[1]].lost = "gone"
    assert asyncio.run(half.part_with_lost())
    np.testing.assert_allclose(half.state.weights, [0.6, 0, 0.2, 0.2], rtol=0, atol=1e-15)
    drawn: Counter[str] = Counter()
    for t in who:
        drawn.update(half.training_cohort(t))
    assert fits(np.array([drawn[names[i]] for i in (0, 2, 3)], float), 6000 * np.array([0.6, 0.2, 0.2]))
    assert not drawn[names[1]]
    half.fleet.members[names[0]].lost = "gone"  # with most of the weight that is left
    assert asyncio.run(half.part_with_lost())
    assert not asyncio.run(half.part_with_lost()), "nobody else was lost"
    np.testing.assert_allclose(half.state.weights, [0, 0, 0.5, 0.5], rtol=0, atol=1e-15)
    assert {name for t in who for name in half.training_cohort(t)} == {names[2], names[3]}


def test_snapshots_and_dual_cohorts_are_drawn_uniformly_and_apart_from_the_training_cohort() -> None:
    half = server(np.zeros(4), 2, local_steps=5, exploration=0)
    half.state.weights = np.array([1.0, 0, 0, 0])
    steps, asked = np.zeros(5), np.zeros(4)
    names = client_names(4)
    for t in range(1, 2001):
        half.fleet.round = t
        steps[half.snapshot_step(t) - 1] += 1
        cohort = half.dual_cohort(t)
        assert len(cohort) == 2
        for name in cohort:
            asked[names.index(name)] += 1
    assert fits(steps, np.full(5, 400.0))
    assert fits(asked, np.full(4, 1000.0))


# Options


def test_the_dual_step_size_follows_from_the_losses_of_the_first_model(tmp_path: Path) -> None:
    given = own(**LOCAL, dual_estimator="control-variate", exploration=0.1) | {"dual_step_size": None}
    problem = reproducible()
    losses = [f.loss(np.zeros(9)) for f in problem.objectives]
    taken = record(problem, tmp_path, given, rounds=2, participation=sampled(3))
    gamma = 0.3 / (TAU * 4 * np.mean(losses))
    assert taken.state.dual_step_size == pytest.approx(gamma, rel=1e-14)
    calls = taken.run.calls.to_pylist()
    assert sum((call["round"], call["phase"]) == (0, "loss") for call in calls) == 4
    explicit = record(problem, tmp_path, given | {"dual_step_size": gamma}, rounds=2, participation=sampled(3))
    np.testing.assert_allclose(taken.run.models, explicit.run.models, rtol=0, atol=1e-15)
    np.testing.assert_allclose(taken.weights, explicit.weights, rtol=0, atol=1e-15)


@pytest.mark.parametrize(("told", "gamma"), [(0.0, 0.3 / (TAU * 4)), (1e-310, 1e12)])
def test_where_no_dual_step_size_follows_from_the_first_losses_it_is_a_number_all_the_same(
    told: float, gamma: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def loss(self: DRDMClient, model: Vector) -> Values:
        return {"loss": told}

    loss.answers_phase = "loss"  # type: ignore[attr-defined]
    monkeypatch.setattr(DRDMClient, "loss", loss)
    with caplog.at_level(logging.WARNING, "fenchel.server"):
        taken = record(reproducible(), tmp_path, own(**LOCAL) | {"dual_step_size": None}, rounds=1)
    assert taken.state.dual_step_size == pytest.approx(gamma, rel=1e-12)
    assert np.isfinite(taken.weights[-1]).all()
    assert ("first losses is 0, from which dual_step_size cannot be derived" in caplog.text) == (told == 0)


def test_the_final_model_can_be_the_mean_of_all_snapshots(tmp_path: Path) -> None:
    taken = record(reproducible(), tmp_path, own(**LOCAL, output="average"), **THREE)
    with np.load(taken.run.folder.model) as archive:
        final = archive["model"]
    np.testing.assert_allclose(final, np.mean(list(taken.snapshots.values()), axis=0), rtol=0, atol=1e-15)
    assert np.abs(final - taken.run.model).max() > 1e-2
    used = [np.full(4, 0.25), *taken.weights[:-1]]
    means = np.cumsum(used, axis=0) / np.arange(1, ROUNDS + 1)[:, None]
    np.testing.assert_allclose(taken.state.mean_weights, means[-1], rtol=0, atol=1e-15)
    columns = pq.read_table(taken.run.folder.metrics)
    np.testing.assert_allclose(columns["largest_mean_weight"], means.max(axis=1), rtol=0, atol=1e-15)
    entropies = [-(mean[mean > 0] * np.log(mean[mean > 0])).sum() for mean in means]
    np.testing.assert_allclose(columns["mean_weights_entropy"], entropies, rtol=0, atol=1e-15)


@pytest.mark.slow
def test_with_models_in_float32_the_mean_of_the_drifts_stays_exact(tmp_path: Path) -> None:
    sections: dict[str, Any] = {
        "rounds": 60,
        "participation": sampled(3),
        "objective": {"kind": "softmax", "l2": 0.1, "dtype": "float32"},
    }
    uniform = record(reproducible(), tmp_path, own(**LOCAL, exploration=0.2), **sections)
    assert uniform.run.model.dtype == np.float32
    assert uniform.drifts().dtype == uniform.state.drift.dtype == np.float64
    np.testing.assert_allclose(uniform.state.drift, uniform.drifts().mean(axis=0), rtol=0, atol=1e-14)
    table = record(reproducible(), tmp_path, own("lambda-table", **LOCAL), **sections)
    assert table.state.table.dtype == np.float32
    assert table.state.table.tobytes() == table.drifts().tobytes()


@pytest.mark.parametrize(
    "keys",
    [
        {"correction": "lambda-scaled"},
        {"step_size": 0.5, "regularization": 4},
        {"local_epochs": 2},
        {"local_epochs": 2, "local_steps": None},
        {"exploration": 1.5},
        {"exploration": 0.2, "sampling": "uniform"},
        {"dual_step_size": 0, "dual_batch_size": 2},
        {"dual_step_size": 1e308},
        {"largest_loss": 1e308},
        {"regularization": 0, "correction": "uniform"},
        {"regularization": 0, "correction": "lambda-scaled", "sampling": "uniform"},
        {"constraint": {"kind": "box", "lower": 1, "upper": 0}},
    ],
)
def test_settings_that_do_not_fit_are_refused(keys: dict[str, Any], tmp_path: Path) -> None:
    with raises(SettingsError, source="settings"):
        reproducible().settings(tmp_path, {"name": "drdm", **keys})


def test_a_sampler_that_it_cannot_use_is_refused(tmp_path: Path) -> None:
    sampler = {"sampler": {"kind": "bernoulli", "probability": 0.5}}
    with raises(SettingsError, key="participation.sampler.kind"):
        train(reproducible(), tmp_path, own(**LOCAL), participation=sampler)


def test_more_clients_than_have_come_are_refused_before_anybody_is_asked() -> None:
    """With ``clients: auto`` their number is not known before. Phase B asks so many different ones."""
    assert server(np.zeros(4), 4).m == 4
    with raises(SettingsError, key="participation.sampler.size"):
        server(np.zeros(4), 5)


def test_exploring_where_everybody_is_drawn_is_refused(tmp_path: Path) -> None:
    everybody: dict[str, Any] = own(sampling="without-replacement", **LOCAL) | {"exploration": 0.2}
    for participation in ({}, sampled(4)):
        with raises(SettingsError, key="algorithm.exploration"):
            train(reproducible(), tmp_path, everybody, participation=participation)
    train(reproducible(), tmp_path, everybody, participation=sampled(3), rounds=1)


# Where it leads (section 7.4)

CONSTANTS: dict[str, Any] = {"eta": 0.05, "tau": 10, "mu": 1.0, "gamma": 1e-3}


def test_the_parenthesis_as_printed_diverges_and_the_real_thing_does_not(tmp_path: Path) -> None:
    printed = drdm_on(Q1, everybody(5, [10]), Constants(**CONSTANTS, correction="printed"), 31)
    assert abs(float(printed.model[0])) > 1e8
    algorithm = own(sampling="without-replacement", **EXACT) | {"regularization": 1, "dual_step_size": 1e-3}
    taken = record(problem_of(Q1), tmp_path, algorithm, rounds=31)
    assert max(float(np.abs(model).max()) for model in taken.run.models) < 3
    trace = drdm_on(Q1, taken, Constants(**CONSTANTS), 31)
    same(taken, trace, 1.0)


def test_as_printed_in_the_paper_it_ends_where_the_average_loss_is_least(tmp_path: Path) -> None:
    algorithm = own(sampling="without-replacement", **EXACT) | {"regularization": 1, "dual_step_size": 5e-3}
    taken = record(problem_of(Q1), tmp_path, algorithm, rounds=60)
    assert float(taken.run.model[0]) == pytest.approx(Q1_AVERAGE, abs=2e-3)
    assert losses_of(Q1, taken.run.model).max() == pytest.approx(3.9336, abs=1e-2)
    same(taken, drdm_on(Q1, taken, Constants(**CONSTANTS | {"gamma": 5e-3}), 60), 1.0)


@pytest.mark.slow
def test_clients_that_are_never_drawn_again_keep_it_from_any_optimum() -> None:
    ends = [
        float(drdm_on(Q1, Chance(5, 3, 10, "with", seed), Constants(**CONSTANTS | {"gamma": 0.5}), 3000).model[0])
        for seed in range(2)
    ]
    assert all(1.25 < end < 1.5 for end in ends)
    assert abs(ends[0] - ends[1]) > 0.01, "history decides where it is stuck"


@pytest.mark.parametrize(
    ("correction", "m", "sampling", "estimator", "tolerance"),
    rest_slow(
        [
            ("lambda-table", 5, "uniform", "plain", 1e-9),
            ("lambda-scaled", 5, "uniform", "plain", 1e-3),
            ("lambda-table", 3, "with", "control-variate", 1e-9),
            ("lambda-scaled", 3, "uniform", "control-variate", 1e-3),
        ]
    ),
)
def test_the_oracle_ends_at_the_saddle_point_where_drifts_count_by_lambda(
    correction: str, m: int, sampling: str, estimator: str, tolerance: float
) -> None:
    constants = Constants(**CONSTANTS, correction=correction, estimator=estimator)
    trace = drdm_on(Q1, Chance(5, m, 10, sampling), constants, 3000)
    np.testing.assert_allclose(trace.model, [Q1_ROBUST], rtol=0, atol=1e-9)
    np.testing.assert_allclose(trace.lam, Q1_WEIGHTS, rtol=0, atol=tolerance)
    assert losses_of(Q1, trace.model).max() == pytest.approx(Q1_VALUE, abs=1e-5)


def test_runs_end_at_the_saddle_point(tmp_path: Path) -> None:
    algorithm = own("lambda-table", sampling="uniform", **EXACT)
    algorithm |= {"regularization": 1, "dual_step_size": 5e-3}
    taken = record(problem_of(Q1), tmp_path, algorithm, rounds=160)
    np.testing.assert_allclose(taken.run.model, [Q1_ROBUST], rtol=0, atol=1e-9)
    np.testing.assert_allclose(taken.weights[-1], Q1_WEIGHTS, rtol=0, atol=1e-9)
    gaps = [gap(Q1, taken.run.models[t - 1], taken.weights[t - 1]) for t in (1, 40, 80, 120, 160)]
    assert gaps[0] > 1
    assert all(later < earlier / 10 for earlier, later in itertools.pairwise(gaps))
    assert gaps[-1] < 1e-9


def theorem_gap(total: int, correction: str, sampling: str) -> float:
    """The duality gap of averaged iterates with the constants of the theorem, m = N = 5, L = 2 (section 3.5)."""
    tau = round(total**0.25 / np.sqrt(5))
    constants = Constants(1 / (8 * np.sqrt(total)), tau, 4.0, total**-0.625, correction)
    trace = drdm_on(Q1, Chance(5, 5, tau, sampling), constants, round(total / tau))
    return gap(Q1, np.mean(trace.snapshots, axis=0), np.mean(trace.weights[:-1], axis=0))


@pytest.mark.slow
def test_the_duality_gap_falls_as_the_theorem_says_with_a_table_and_not_as_printed() -> None:
    few, many = (theorem_gap(total, "lambda-table", "with") for total in (10_000, 40_000))
    assert many < few / 4**0.375
    assert few == pytest.approx(0.0286, rel=0.15)
    assert theorem_gap(10_000, "uniform", "uniform") == pytest.approx(3.930, rel=0.01)
    assert theorem_gap(10_000, "uniform", "with") > 2


@settings(max_examples=10)
@given(
    eta=st.floats(0.01, 0.3),
    mu=st.floats(0.05, 3),
    gamma=st.floats(0, 0.05),
    draws=st.lists(
        st.tuples(
            st.lists(st.integers(0, 3), min_size=4, max_size=4).filter(any),
            st.integers(1, 3),
            st.lists(st.booleans(), min_size=4, max_size=4).filter(any),
        ),
        min_size=1,
        max_size=4,
    ),
    correction=st.sampled_from(["uniform", "lambda-table"]),
)
def test_it_is_the_algorithm_whatever_is_drawn(
    eta: float,
    mu: float,
    gamma: float,
    draws: list[tuple[list[int], int, list[bool]]],
    correction: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    given_draws = [Draw(np.array(times), step, np.array(asked)) for times, step, asked in draws]
    algorithm = own(correction, step_size=eta, local_steps=3, batch_size=2)
    algorithm |= {"regularization": mu, "dual_step_size": gamma}
    folder = tmp_path_factory.mktemp("run")
    taken = record(reproducible(), folder, algorithm, given=given_draws, rounds=len(draws) + 1)
    same(taken, simulated(taken, algorithm), mu, 1e-11)
