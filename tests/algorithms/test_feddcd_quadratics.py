"""FedDCD and AccFedDCD on quadratic clients: by hand, and against an independent implementation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fenchel.algorithms.feddcd.acc_feddcd import AccFedDCD
from fenchel.common.arrays import Dense, Vector
from fenchel.deploy.launch.names import client_names
from fenchel.fleet.cohort import Cohort
from tests.algorithms.feddcd_oracle import (
    Momentum,
    Quadratics,
    accelerated_round,
    feddcd_round,
    idle_rounds,
    membership,
    safe_participation,
)
from tests.algorithms.feddcd_quadratics import NEWTON, QuadraticProblem, duals_of, problem_of, train_quadratics
from tests.algorithms.mlr import Run
from tests.slow import rest_slow

Sets = Sequence[Sequence[int]]
GiveSecond = Callable[[Sets], None]

SCALAR = Quadratics(np.array([1.0, 2.0, 4.0]).reshape(3, 1, 1), np.array([0.0, 3.0, -1.0]).reshape(3, 1))
PAIRS = [(0, 1), (1, 2), (0, 2)]
SECOND = [(1, 2), (0, 2), (0, 1)]
COMMON = {"strong_convexity": 1.0, "smoothness": 4.0}


def feddcd(**settings: Any) -> dict[str, Any]:
    return {"name": "feddcd", "weighting": "uniform", "solver": NEWTON, **settings}


def accelerated(**settings: Any) -> dict[str, Any]:
    return {"name": "acc-feddcd", "weighting": "uniform", "solver": NEWTON, **settings}


def sampled(size: int) -> dict[str, Any]:
    """Say how large a cohort is; who takes part is given."""
    return {"sampler": {"kind": "fixed", "size": size}}


@pytest.fixture
def second_cohorts(monkeypatch: pytest.MonkeyPatch) -> GiveSecond:
    """Give the second cohort of every round, from the beginning again after the last."""

    def given(sets: Sets) -> None:
        def second_sample(self: AccFedDCD) -> Cohort:
            names = client_names(len(self.fleet.members))
            return Cohort(self.fleet, tuple(names[i] for i in sets[(self.fleet.round - 1) % len(sets)]))

        monkeypatch.setattr(AccFedDCD, "second_sample", second_sample)

    return given


def settled(run: Run, momentum: Momentum, cohorts: Sets, second: Sets | None = None) -> tuple[Dense, Dense]:
    """Return y and z of all clients after the last round; those who were idle are stepped round by round."""
    rounds = run.settings.rounds
    y, z = duals_of(run), duals_of(run, "momentum")
    for client in range(len(y)):
        active = [
            t
            for t in range(1, rounds + 1)
            if any(client in sets[(t - 1) % len(sets)] for sets in (cohorts, second) if sets)
        ]
        if active:  # the others are at 0, where idle rounds leave them
            y[client], z[client] = idle_rounds(y[client], z[client], rounds - active[-1], momentum)
    return y, z


@pytest.mark.parametrize(
    ("constants", "cohorts", "centers", "duals", "gaps"),
    [
        (
            COMMON,
            PAIRS,
            [1.5, 0.625, 0.453125],
            [(1.5, -1.5, 0), (1.5, -3.125, 1.625), (0.453125, -3.125, 2.671875)],
            [7.90178571, 3.61077009, 2.10384260],
        ),
        (
            {},  # 1 / lambda_i = c_i
            PAIRS,
            [2, 0, 0.4],
            [(2, -2, 0), (2, -6, 4), (0.4, -6, 5.6)],
            [7.71428571, 1.71428571, 0.11428571],
        ),
        ({}, [(0, 1, 2)], [2 / 7], [(2 / 7, -38 / 7, 36 / 7)], [0.0]),
        (COMMON, [(0, 1, 2)] * 3, [0.66666667, 0.63888889, 0.53240741], None, [3.97817460, 1.60066689, 0.64924853]),
    ],
    ids=["common scale", "own scales", "everybody, own scales", "everybody, common scale"],
)
def test_feddcd_does_what_was_computed_by_hand(
    constants: dict[str, float],
    cohorts: Sets,
    centers: list[float],
    duals: list[tuple[float, ...]] | None,
    gaps: list[float],
    tmp_path: Path,
) -> None:
    problem = problem_of(SCALAR, **constants)
    for rounds in range(1, len(centers) + 1):
        run = ran(tmp_path / str(rounds), feddcd(), cohorts[:rounds], problem)
        y = duals_of(run)
        if duals is not None:
            np.testing.assert_allclose(y[:, 0], duals[rounds - 1], rtol=0, atol=1e-14)
        assert SCALAR.gap(y) == pytest.approx(gaps[rounds - 1], abs=5e-9)
        assert [float(model[0]) for model in run.models] == pytest.approx(centers[:rounds], abs=5e-9)


@pytest.mark.parametrize(
    ("second", "duals", "momenta", "gaps"),
    [
        (
            None,
            [(1.5, -1.5, 0), (1.77142857, -3.32857143, 1.55714286), (0.69829932, -3.77578231, 3.07748299)],
            (0.08189180, -5.13871072, 5.05681892),
            [7.90178571, 3.81334184, 1.30126247],
        ),
        (
            SECOND,
            [(1.5, -1.5, 0), (1.2, -3.37619048, 2.17619048), (0.15975057, -3.37487528, 3.21512472)],
            (-0.44353741, -4.01675845, 4.46029586),
            [7.90178571, 2.57116497, 1.52686943],
        ),
    ],
    ids=["one cohort", "two cohorts"],
)
def test_acceleration_does_what_was_computed_by_hand(
    second: Sets | None,
    duals: list[tuple[float, ...]],
    momenta: tuple[float, ...],
    gaps: list[float],
    second_cohorts: GiveSecond,
    tmp_path: Path,
) -> None:
    problem, momentum = problem_of(SCALAR, **COMMON), Momentum(0.5, 1 / 4)
    assert (momentum.a, momentum.b, momentum.theta) == pytest.approx((0.2, 0.0125, 1.904761905))
    if second is not None:
        second_cohorts(second)
    algorithm = accelerated(cohorts=1 if second is None else 2)
    for rounds in (1, 2, 3):
        run = ran(tmp_path / str(rounds), algorithm, PAIRS[:rounds], problem)
        y, z = settled(run, momentum, PAIRS, second)
        np.testing.assert_allclose(y[:, 0], duals[rounds - 1], rtol=0, atol=5e-9)
        assert SCALAR.gap(y) == pytest.approx(gaps[rounds - 1], abs=5e-9)
        if rounds == 3:
            np.testing.assert_allclose(z[:, 0], momenta, rtol=0, atol=5e-9)


QUADRATICS = Quadratics.random(clients=6, dimension=4, seed=1)
PROBLEM = problem_of(QUADRATICS, strong_convexity=1.0, smoothness=12.0)


def ran(
    parent: Path, algorithm: dict[str, Any], cohorts: Sets, problem: QuadraticProblem = PROBLEM, size: int = 2
) -> Run:
    """Do as many rounds as there are cohorts, of which clients are told that they have ``size`` members."""
    parent.mkdir(exist_ok=True)
    return train_quadratics(
        problem, parent, algorithm, cohorts=cohorts, rounds=len(cohorts), participation=sampled(size)
    )


def random_sets(seed: int, rounds: int, size: int, *, late: int | None = None) -> list[tuple[int, ...]]:
    """Draw cohorts of six clients; client 5 comes for the first time in round ``late``."""
    chance = np.random.default_rng(seed)
    sets = []
    for t in range(1, rounds + 1):
        of = 5 if late is not None and t < late else 6
        members = set(chance.choice(of, size, replace=False).tolist())
        if t == late:
            members = {5, *list(members - {5})[: size - 1]}
        sets.append(tuple(sorted(members)))
    return sets


@pytest.mark.parametrize("eta", [1.0, 0.3, 1.9])
@pytest.mark.parametrize("size", [2, 3, 6])
def test_feddcd_is_that_of_the_independent_implementation(eta: float, size: int, tmp_path: Path) -> None:
    cohorts = random_sets(size, 25, size)
    run = ran(tmp_path, feddcd(step_size=eta), cohorts, size=size)
    y, scales = QUADRATICS.zeros, np.ones(6)
    for cohort, model in zip(cohorts, run.models, strict=True):
        y, center = feddcd_round(QUADRATICS.minimisers(y), y, membership(cohort, 6), scales, eta)
        np.testing.assert_allclose(model, center, rtol=0, atol=1e-12)
    np.testing.assert_allclose(duals_of(run), y, rtol=0, atol=1e-12)


def stepped(
    quadratics: Quadratics,
    momentum: Momentum,
    scales: Vector,
    cohorts: Sets,
    second: Sets | None = None,
    restarts: Sequence[int] = (),
) -> tuple[list[tuple[Dense, Dense]], list[Vector]]:
    """Return y and z after each round, and the centers, by the independent implementation."""
    y = z = quadratics.zeros
    after, centers = [], []
    clients = len(scales)
    for t, cohort in enumerate(cohorts):
        other = None if second is None else membership(second[t], clients)
        y, z, center = accelerated_round(
            quadratics.minimisers, y, z, membership(cohort, clients), other, scales, momentum
        )
        if t + 1 in restarts:
            z = y
        after.append((y, z))
        centers.append(center)
    return after, centers


LATE = {size: random_sets(size, 40, size, late=20 if size < 6 else None) for size in (2, 3, 6)}
OTHERS = {size: random_sets(size + 10, 40, size, late=20 if size < 6 else None) for size in (2, 3, 6)}


@pytest.mark.parametrize(
    ("size", "cohorts", "second"),
    rest_slow(
        [
            *((size, LATE[size], second) for size in (2, 3, 6) for second in (None, OTHERS[size])),
            # Client 0 takes part in rounds 1 to 3, and then not before the last.
            (2, [(0, 1), (0, 2), (0, 3), *[(1, 2), (2, 3), (4, 5)] * 12, (0, 1)], None),
            # A second cohort of one moves nothing: it is its own average. The first cohort's step is final by then, so
            # the round counts: z := u for all clients.
            (2, [(0, 1), (2, 3), (1, 4), (0, 5), (3, 4), (0, 2)], [(1, 2), (2,), (4,), (3,), (0, 1), (3, 5)]),
        ],
        2,
    ),
)
def test_acceleration_is_that_of_the_independent_implementation(
    size: int, cohorts: Sets, second: Sets | None, second_cohorts: GiveSecond, tmp_path: Path
) -> None:
    if second is not None:
        second_cohorts(second)
    momentum = Momentum((size - 1) / 5, 1 / 12)
    run = ran(tmp_path, accelerated(cohorts=1 if second is None else 2), cohorts, size=size)
    assert run.states[len(cohorts)].committed == len(cohorts)
    after, centers = stepped(QUADRATICS, momentum, np.ones(6), cohorts, second)
    np.testing.assert_allclose(run.models, centers, rtol=0, atol=1e-12)
    y, z = settled(run, momentum, cohorts, second)
    np.testing.assert_allclose(y, after[-1][0], rtol=0, atol=1e-12)
    np.testing.assert_allclose(z, after[-1][1], rtol=0, atol=1e-12)
    assert np.abs(y.sum(axis=0)).max() < 1e-12
    assert np.abs(z.sum(axis=0)).max() < 1e-12


UNEQUAL = Quadratics(QUADRATICS.curvatures * np.array([1, 2, 0.5, 1, 4, 1.5]).reshape(6, 1, 1), QUADRATICS.centers)
OWN_SCALES = np.array([1, 2, 0.5, 1, 4, 1.5])


@pytest.mark.parametrize("size", rest_slow([2, 4, 6]))
def test_with_constants_of_their_own_clients_weigh_in_the_projection(size: int, tmp_path: Path) -> None:
    cohorts = random_sets(3, 30, size)
    problem = problem_of(UNEQUAL)
    plain = ran(tmp_path / "plain", feddcd(), cohorts, problem, size)
    y = UNEQUAL.zeros
    for cohort in cohorts:
        y, _ = feddcd_round(UNEQUAL.minimisers(y), y, membership(cohort, 6), OWN_SCALES)
    np.testing.assert_allclose(duals_of(plain), y, rtol=0, atol=1e-11)
    # All clients have alpha_i / beta_i = 1/12; r is the safe one, as cohorts are drawn uniformly.
    momentum = Momentum(safe_participation(size, OWN_SCALES.tolist()), 1 / 12)
    run = ran(tmp_path / "accelerated", accelerated(), cohorts, problem, size)
    after, _ = stepped(UNEQUAL, momentum, OWN_SCALES, cohorts)
    y, z = settled(run, momentum, cohorts)
    np.testing.assert_allclose(y, after[-1][0], rtol=0, atol=1e-11)
    np.testing.assert_allclose(z, after[-1][1], rtol=0, atol=1e-11)


def test_a_restart_reaches_those_who_were_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # A guard that fires whenever the spread of two rounds grows; random cohorts see to it that it does.
    monkeypatch.setattr("fenchel.algorithms.feddcd.acc_feddcd._WINDOW", 2)
    monkeypatch.setattr("fenchel.algorithms.feddcd.acc_feddcd._GROWTH", 1.0)
    monkeypatch.setattr("fenchel.algorithms.feddcd.acc_feddcd._INEXACT", -1.0)  # although its solves are exact
    cohorts = [*random_sets(5, 30, 2, late=31), *random_sets(6, 20, 2)]
    run = ran(tmp_path, accelerated(), cohorts)
    restarts = run.states[50].restarts.tolist()
    assert len(restarts) >= 3
    away = {restart for restart in restarts[:-1] for client in range(6) if client not in cohorts[restart - 1]}
    assert away, "somebody missed a restart and came back"
    momentum = Momentum(1 / 5, 1 / 12)
    after, centers = stepped(QUADRATICS, momentum, np.ones(6), cohorts, restarts=restarts)
    np.testing.assert_allclose(run.models, centers, rtol=0, atol=1e-12)
    without, _ = stepped(QUADRATICS, momentum, np.ones(6), cohorts)
    assert np.abs(after[-1][0] - without[-1][0]).max() > 1e-3, "the restarts made a difference"


@pytest.mark.parametrize("algorithm", [feddcd(), accelerated()], ids=["feddcd", "acc-feddcd"])
def test_a_client_alone_moves_nothing(algorithm: dict[str, Any], tmp_path: Path) -> None:
    lonely = ran(tmp_path / "with", algorithm, [(0, 1), (2,), (2, 3), (1,), (3,), (1, 3)])
    busy = ran(tmp_path / "without", algorithm, [(0, 1), (2, 3), (1, 3)])
    assert lonely.states[6].committed == busy.states[3].committed == 3
    np.testing.assert_array_equal(lonely.models[1], lonely.models[0])
    # Up to rounding: a client that solves once more starts from the solution.
    np.testing.assert_allclose(lonely.model, busy.model, rtol=0, atol=1e-14)
    for vector in ("dual", "momentum") if algorithm["name"] == "acc-feddcd" else ("dual",):
        np.testing.assert_allclose(duals_of(lonely, vector), duals_of(busy, vector), rtol=0, atol=1e-14)
