"""HyFDCA gets to the optimum of the pooled data as fast as the specification measured, and where theory says so."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fenchel.common.arrays import Vector
from fenchel.common.data.shard import Shard
from fenchel.common.data.source import DataSource
from tests.algorithms.hyfdca_witness import Witness, settings_of
from tests.slow import rest_slow

Case = dict[str, Any]

OPTIMA = {0.1: 0.35448369, 0.01: 0.15444684, 0.001: 0.07302129}
LONG = pytest.mark.slow  # make test-all
LOSSES = ["hinge", "smoothed-hinge", "squared-hinge", "logistic", "squared"]


def rounds_to(gaps: Vector) -> list[int]:
    """Rounds done when the gap is first below 1e-1, 1e-2, ..., as far as it gets."""
    below = [np.flatnonzero(gaps < 10.0**-digits) for digits in range(1, 6)]
    return [int(found[0]) for found in below if len(found)]


# Oracle 6


@pytest.mark.parametrize("seed", rest_slow(range(3)))
@pytest.mark.parametrize("loss", LOSSES)
def test_the_dual_objective_never_falls(loss: str, seed: int, tmp_path: Path) -> None:
    chance = np.random.default_rng([seed, LOSSES.index(loss)])
    preset = ["safe", "theory", "linesearch"][seed % 3]
    algorithm = {
        "preset": preset,
        "picks": [None, 1, 5, 13][chance.integers(4)],
        "picking": ["independent", "common"][chance.integers(2)],
        "averaging": ["all", "pickers"][chance.integers(2)],
        "messages": ["dense", "sparse"][chance.integers(2)],
        "step_size": float(chance.choice([1.0, 0.6])),
    }
    if preset == "linesearch":
        del algorithm["step_size"]  # it chooses its own
    grid = int(chance.integers(1, 4)), int(chance.integers(1, 4))
    l2 = float(chance.choice([0.1, 0.01, 0.001]))
    settings = settings_of(algorithm, grid=grid, l2=l2, loss=loss, samples=60, rounds=15)
    run = Witness(settings).run(tmp_path)
    problem, known = run.problem, run.dual_objectives
    values = [problem.dual_objective(run.alpha(moment)) for moment in run.moments]
    assert np.diff([0.0, *values]).min() >= -1e-12
    assert values[-1] > 0.0001
    measured = np.isfinite(known)
    assert measured.all() or algorithm["messages"] == "sparse"
    np.testing.assert_allclose(known[measured], np.array([0, *values])[measured], rtol=0, atol=1e-12)
    assert known[-1] <= run.final.figures["primal_objective"]


# Oracles 4, 7 and 15: observation O2


@pytest.mark.parametrize(
    ("preset", "l2", "expected"),
    rest_slow(
        [
            ("linesearch", 0.1, [3, 7, 10, 13, 15]),
            ("linesearch", 0.01, [4, 11, 17, 19, 34]),
            ("linesearch", 0.001, [3, 17, 35, 62]),
            ("safe", 0.1, [5, 13, 38]),
            ("safe", 0.01, [26, 81]),
            ("safe", 0.001, [74]),
            pytest.param("linesearch", 0.001, [3, 17, 35, 62, 178], marks=LONG),
            pytest.param("safe", 0.1, [5, 13, 38, 103], marks=LONG),
            pytest.param("safe", 0.01, [26, 81, 203], marks=LONG),
        ]
    ),
)
def test_with_all_coordinates_it_takes_exactly_the_rounds_of_the_specification(
    preset: str, l2: float, expected: list[int], tmp_path: Path
) -> None:
    run = Witness(settings_of({"preset": preset}, l2=l2, rounds=expected[-1])).run(tmp_path)
    assert rounds_to(run.gaps) == expected
    optimum, gap = OPTIMA[l2], run.final.figures["gap"]
    assert run.final.figures["dual_objective"] <= optimum + 1e-8
    assert optimum - 1e-8 <= run.final.figures["primal_objective"] <= optimum + gap + 1e-8


@pytest.mark.parametrize(
    ("l2", "trust", "every", "expected"),
    rest_slow([(0.1, "share", 1, [9, 25, 76]), (0.1, "full", 1, [9, 25, 75]), (0.001, "full", 5, [150])]),
)
def test_the_cautious_steps_of_the_theory_take_the_rounds_of_the_specification(
    l2: float, trust: str, every: int, expected: list[int], tmp_path: Path
) -> None:
    """At the smaller lambdas the specification looked at every fifth round only."""
    # Only N_k / N depends on the partition: three clients are enough.
    settings = settings_of({"preset": "theory", "trust": trust}, grid=(3, 1), l2=l2, rounds=expected[-1])
    gaps = Witness(settings).run(tmp_path).gaps
    assert [every * t for t in rounds_to(gaps[::every])] == expected


@pytest.mark.slow  # make test-all
@pytest.mark.parametrize(
    ("algorithm", "loss", "rounds", "expected"),
    [
        # O11: 50 to 54, 73 to 81, 106 to 174 over seeds
        ({"preset": "exact", "picks": 15}, "hinge", 135, [(4, 16), (20, 46), (45, 60), (65, 90), (100, 135)]),
        ({"preset": "linesearch", "picks": 15}, "hinge", 120, [(1, 9), (15, 42), (28, 77), (42, 111), (60, 120)]),
        ({"preset": "exact", "picks": 15}, "logistic", 60, [(2, 6), (14, 20), (25, 33), (36, 48), (47, 60)]),
        ({"preset": "exact", "picks": 50}, "logistic", 30, [(1, 5), (4, 8), (8, 12), (12, 16), (15, 19)]),
    ],
    ids=["exact", "line search", "logistic", "logistic, many"],
)
def test_few_picks_reach_the_optimum_in_about_the_rounds_of_the_specification(
    algorithm: Case, loss: str, rounds: int, expected: list[tuple[int, int]], tmp_path: Path
) -> None:
    run = Witness(settings_of(algorithm, loss=loss, rounds=rounds)).run(tmp_path)
    for t, (least, most) in zip(rounds_to(run.gaps), expected, strict=True):
        assert least <= t <= most
    if algorithm["preset"] == "linesearch":
        assert np.diff(run.dual_objectives).min() >= -1e-12
    if algorithm["picks"] == 50:
        assert run.final.figures["primal_objective"] == pytest.approx(0.25161026, abs=2e-8)
        assert run.final.figures["gap"] < 1e-7


@pytest.mark.slow
def test_undamped_steps_in_all_coordinates_do_not_converge(tmp_path: Path) -> None:
    run = Witness(settings_of({"preset": "paper"}, rounds=60)).run(tmp_path)
    assert run.gaps[20:].min() > 1
    assert run.gaps[-1] == pytest.approx(2.21, abs=0.05)
    assert run.final.figures["dual_objective"] < 0


@pytest.mark.parametrize(
    ("step_size", "decay", "expected"),
    rest_slow(
        [(0.1, "constant", [10, 30, 55, 75]), (1.0, "inverse-sqrt", [5, 30, 45, 60]), (1.0, "inverse", [15, 125])]
    ),
)
def test_small_outer_steps_make_it_converge(step_size: float, decay: str, expected: list[int], tmp_path: Path) -> None:
    """Looked at every fifth round, as the specification did."""
    algorithm = {"preset": "exact", "step_size": step_size, "step_decay": decay}
    run = Witness(settings_of(algorithm, grid=(1, 2), rounds=expected[-1])).run(tmp_path)
    every_fifth = [5 * t for t in rounds_to(run.gaps[::5])]
    assert every_fifth == expected


# O7 and O12


def mixed() -> list[Shard]:
    """What clients in general position hold.

    Three blocks of features; the samples of each are dealt to clients in their own way, a fifth of the cells to
    nobody. So a sample has up to three holders, and those with none do not count.
    """
    source = DataSource.open(settings_of({}).data, 7).training()
    samples, chance = source.samples, np.random.default_rng(5)
    parts = []
    for block, clients in zip(np.split(np.arange(30), [8, 20]), (3, 2, 3), strict=True):
        owner = np.where(chance.random(samples) < 0.2, -1, chance.integers(0, clients, samples))
        parts += [(chance.permutation(np.flatnonzero(owner == k)), block) for k in range(clients)]
    held = np.unique(np.concatenate([rows for rows, _ in parts]))
    return [
        replace(
            source.take(rows),
            features=np.asarray(source.features)[np.ix_(rows, block)],
            samples_held=np.searchsorted(held, rows),
            features_held=block,
        )
        for rows, block in parts
    ]


@pytest.mark.parametrize("algorithm", rest_slow(["all", "active", "pickers", "linesearch"], 2))
def test_clients_in_general_position_follow_the_pseudocode_of_what_they_hold(algorithm: str, tmp_path: Path) -> None:
    searches = algorithm == "linesearch"
    chosen: Case = {"preset": algorithm} if searches else {"preset": "exact", "picks": 15, "averaging": algorithm}
    run = Witness(
        settings_of(chosen, grid=(4, 2), rounds=40, data={"name": "own", "classes": ["malignant", "benign"]}), mixed()
    ).run(tmp_path)
    problem = run.problem
    assert set(problem.holders) == {1, 2, 3}
    assert 440 < problem.samples < 455
    assert run.gaps[-1] < 0.05 * run.gaps[0]
    for moment, oracle in run.simulation():
        np.testing.assert_allclose(run.alpha(moment), oracle.alpha_0, rtol=0, atol=1e-9)
    assert run.final.figures["gap"] == pytest.approx(problem.gap(oracle.alpha_0), abs=1e-9)


# Oracle 13: the theorems. G = 1/(2 lambda) suffices for the hinge, and is four times sharper than 2 L^2 / lambda.


def errors(run: Witness, optimum: float) -> Vector:
    """eps_t = D(alpha*) - D(alpha^t), by rounds done, shape (rounds + 1,)."""
    problem = run.problem
    return optimum - np.array([0.0, *(problem.dual_objective(run.alpha_0(moment)) for moment in run.moments)])


@pytest.mark.parametrize("l2", rest_slow([1.0, 0.1]))
@pytest.mark.parametrize("grid", [(1, 2), (2, 2), (3, 1)])
def test_each_round_gains_what_theorem_4_4_promises(grid: tuple[int, int], l2: float, tmp_path: Path) -> None:
    """With H = N_k nothing is random, and the promise is one for every round."""
    algorithm = {"preset": "theory", "trust": "share"}
    run = Witness(settings_of(algorithm, grid=grid, l2=l2, samples=120, rounds=30)).run(tmp_path)
    eps, share = errors(run, optimum_of(run, tmp_path)), 1 / grid[0]
    for before, after in pairwise(eps.tolist()):
        s = np.linspace(0, 1, 201)
        promised = (1 - s * share) * before + s**2 * share / (2 * l2)
        assert after <= promised.min() + 1e-9
    assert eps[-1] < 0.2 * eps[0]


def optimum_of(run: Witness, parent: Path) -> float:
    """D(alpha*), by the line search on one client."""
    objective, data = run.settings.objective, run.settings.data
    settings = settings_of(
        {"preset": "linesearch"},
        grid=(1, 1),
        l2=float(objective.l2),
        samples=data.samples,
        rounds=60,
        seed=run.settings.seed,  # which decides what samples there are
    )
    found = Witness(settings).run(parent / "optimum").final.figures
    assert found["gap"] < 1e-4
    return found["dual_objective"] + found["gap"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("algorithm", "grid", "active", "share"),
    [
        ({"trust": "share", "picks": 20}, (2, 2), None, 20 / 120),
        ({"picks": 10}, (4, 1), {"kind": "fixed", "size": 2}, 2 * 10 / 120),
    ],
    ids=["4.5", "4.8"],
)
def test_errors_stay_below_the_bound_of_the_theorem(
    algorithm: Case, grid: tuple[int, int], active: Case | None, share: float, tmp_path: Path
) -> None:
    """E[eps_t] <= 2 G / (1 + share/2 (t - t0)), with t0 = 0 as G is taken to be at least 1 >= eps_0."""
    l2, rounds, seeds = 1.0, 40, 2
    sums = np.zeros(rounds + 1)
    settings = settings_of(
        {"preset": "theory", **algorithm}, grid=grid, l2=l2, samples=120, rounds=rounds, sampler=active
    )
    for seed in range(seeds):
        run = Witness(settings.model_copy(update={"seed": 7 + seed})).run(tmp_path / str(seed))
        sums += errors(run, optimum_of(run, tmp_path / str(seed)))
    bound = 2 * max(1 / (2 * l2), 1.0) / (1 + share / 2 * np.arange(rounds + 1))
    mean = sums / seeds
    assert (mean <= bound).all()
    assert mean[-1] < mean[0] / 2
    assert bound[-1] < mean[0]  # not vacuous


@pytest.mark.slow
def test_errors_stay_below_the_bound_of_theorem_4_11(tmp_path: Path) -> None:
    """A vertical split, C = 2 groups in turn, H = N: nothing is random."""
    l2, groups, rounds = 1.0, 2, 250
    algorithm = {"preset": "theory", "step_decay": "inverse", "averaging": "active"}
    sampler = {"kind": "cyclic", "groups": groups}
    run = Witness(settings_of(algorithm, grid=(1, 4), l2=l2, samples=120, rounds=rounds, sampler=sampler)).run(tmp_path)
    eps = errors(run, optimum_of(run, tmp_path))
    t = np.arange(groups, rounds + 1)
    j1 = groups * eps[groups - 1]
    j2 = 2 * (groups + 1) / l2 * ((groups - 1) ** 4 + 2 * (groups - 1) ** 2 + 1)
    bound = (j1 + j2 * (np.log(t - groups + 1) + 1)) / t
    assert (eps[groups:] <= bound).all()
    assert bound[-1] < eps[0]  # not vacuous
    assert eps[-1] < 0.1 * eps[0]
