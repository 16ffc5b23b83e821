"""HyFDCA is the pseudocode, however its data are spread and its messages are written; its invariants hold."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fenchel.common.arrays import Vector
from fenchel.common.data.shard import Shard
from fenchel.common.data.source import DataSource
from fenchel.common.objectives.losses import Hinge
from fenchel.common.optim.sdca import DualProblem, ascend
from tests.algorithms.hyfdca_witness import Witness, settings_of
from tests.slow import rest_slow

Case = dict[str, Any]

SMALL: Case = {"grid": (3, 2), "samples": 80, "rounds": 15}
HALF: Case = {"kind": "fraction", "fraction": 0.5}
SPARSE = {"picking": "common", "messages": "sparse"}

CASES: dict[str, tuple[Case, Case]] = {
    "line search": ({"preset": "linesearch"}, {}),
    "auto": ({}, {"loss": "smoothed-hinge"}),
    "line search of picks": ({"preset": "linesearch", "picks": 7}, {"loss": "squared-hinge"}),
    "line search, sparse": ({"preset": "linesearch", "picks": 7, **SPARSE}, {"loss": "squared"}),
    "safe": ({"preset": "safe"}, {"loss": "logistic"}),
    "safe, ragged": ({"preset": "safe", "picks": 12}, {"ragged": True}),
    "safe, pickers": ({"preset": "safe", "picks": 9, "averaging": "pickers"}, {"l2": 0.001}),
    "exact": ({"preset": "exact", "picks": 5}, {"loss": "logistic"}),
    "exact, long rows": ({"preset": "exact", "picks": 5}, {"scale": "standard"}),
    "paper, long rows": ({"preset": "paper", "picks": 5}, {"scale": "standard", "l2": 10.0}),
    "exact, some": ({"preset": "exact", "picks": 5, "step_decay": "inverse-sqrt"}, {"sampler": HALF}),
    "exact, some active": ({"preset": "exact", "picks": 5, "averaging": "active"}, {"sampler": HALF}),
    "exact, some, sparse": (
        {"preset": "exact", "picks": 5, "messages": "sparse"},
        {"sampler": HALF, "loss": "smoothed-hinge"},
    ),
    "safe, some pickers, sparse in blocks": (
        {"preset": "safe", "picks": 8, "averaging": "pickers", "block": 4, **SPARSE},
        {"sampler": {"kind": "bernoulli", "probability": 0.4}},
    ),
    "theory": ({"preset": "theory", "step_size": 0.5}, {"l2": 0.1}),
    "theory, share": ({"preset": "theory", "trust": "share", "picks": 20}, {"loss": "logistic", "l2": 0.1}),
    "theory, cyclic": (
        {"preset": "theory", "step_decay": "inverse", "averaging": "active"},
        {"grid": (1, 4), "sampler": {"kind": "cyclic", "groups": 2}, "l2": 0.1, "loss": "squared"},
    ),
    "theory, squared hinge": ({"preset": "theory", "picks": 9}, {"l2": 0.1, "loss": "squared-hinge"}),
    "theory, smoothed hinge": ({"preset": "theory", "picks": 9}, {"l2": 0.1, "loss": "smoothed-hinge"}),
    "exact, weighted": ({"preset": "exact", "picks": 4}, {"sampler": {"kind": "weighted", "size": 3}, "grid": (4, 2)}),
    "exact, weighted with replacement": (
        {"preset": "exact", "picks": 4},
        {"sampler": {"kind": "weighted", "size": 5, "replacement": True}},
    ),
    "horizontal": ({"preset": "exact", "picks": 4}, {"grid": (6, 1)}),
    "horizontal, some": ({"preset": "exact", "picks": 4}, {"grid": (6, 1), "sampler": HALF}),
    "vertical": ({"preset": "exact", "picks": 4}, {"grid": (1, 6)}),
    "one client": ({"preset": "linesearch", "picks": 9}, {"grid": (1, 1)}),
}


def witnessed(algorithm: Case, parent: Path, *, scale: str | None = None, **rest: Any) -> Witness:
    settings = settings_of(algorithm, **(SMALL | rest))
    if scale is not None:
        settings = settings.model_copy(update={"data": settings.data.model_copy(update={"scale": scale})})
    return Witness(settings).run(parent)


@pytest.mark.parametrize("case", rest_slow(CASES, 6))
def test_a_run_is_that_of_the_pseudocode(case: str, tmp_path: Path) -> None:
    """Also what stands in caches, and what is measured of the model with which a round began (oracles 3, 8, 9)."""
    algorithm, rest = CASES[case]
    run = witnessed(algorithm, tmp_path, **rest)
    problem, complete = run.problem, "sampler" not in rest
    before: Vector = np.zeros(problem.samples)
    stale = 0.0
    for moment, oracle in run.simulation():
        assert moment.synced == oracle.synced
        for name, party in problem.parties.items():
            np.testing.assert_allclose(moment.duals[name], oracle.alpha[name], rtol=0, atol=1e-9)
            np.testing.assert_allclose(moment.contributions[name], oracle.what[name], rtol=0, atol=1e-9)
            np.testing.assert_allclose(moment.contributions[name], party.x.T @ moment.duals[name], rtol=0, atol=1e-12)
        for name, share in moment.scores.items():
            np.testing.assert_allclose(share, oracle.ip[name], rtol=0, atol=1e-9)
        np.testing.assert_allclose(moment.w, oracle.w_0, rtol=0, atol=1e-9)
        if moment.dual is not None:
            np.testing.assert_allclose(moment.dual, oracle.alpha_0, rtol=0, atol=1e-9)
        if complete and run.algorithm.messages == "dense":
            primal = problem.primal_objective(problem.primal(before))
            assert moment.figures["primal_objective"] == pytest.approx(primal, abs=1e-9)
            assert moment.figures["dual_objective"] == pytest.approx(problem.dual_objective(before), abs=1e-9)
            assert moment.figures["gap"] == pytest.approx(problem.gap(before), abs=1e-9)
        before = oracle.alpha_0
        stale = max(stale, float(np.abs(moment.w - problem.primal(before)).max()))
    assert np.abs(before).max() > 0.01
    # Nothing is stale where everybody takes part, or where a sample has one holder.
    assert stale < 1e-10 if complete or problem.holders.max() == 1 else stale > 1e-3
    terms = problem.losses(problem.x @ run.model) + problem.conjugates(before) + before * (problem.x @ run.model)
    assert terms.min() >= -1e-12
    assert run.final.figures["gap"] == pytest.approx(terms.mean(), abs=1e-9)  # the decomposition of 1.2
    np.testing.assert_allclose(run.model, problem.primal(before), rtol=0, atol=1e-9)


# Oracle 5


def test_one_client_that_picks_one_sample_does_coordinate_ascent(tmp_path: Path) -> None:
    rounds = 200
    run = witnessed({"preset": "exact", "picks": 1}, tmp_path, grid=(1, 1), rounds=rounds, samples=None)
    order = np.array([run.picks("client-000", t)[0] for t in range(1, rounds + 1)])
    shard: Shard = DataSource.open(run.settings.data, run.settings.seed).training()
    problem = DualProblem.of(Hinge(), shard, 0.01)
    dual, w = ascend(problem, np.zeros(455), np.zeros(30), order, problem.curvature)
    np.testing.assert_allclose(run.alpha(run.moments[-1]), dual, rtol=0, atol=1e-12)
    np.testing.assert_allclose(run.model, w, rtol=0, atol=1e-12)
    assert len(set(order.tolist())) > 100
    assert np.count_nonzero(dual) > 50


# Oracle 10


def test_clients_of_whole_samples_need_no_exchange_of_inner_products(tmp_path: Path) -> None:
    # That they do the same as with it follows from the pseudocode ("horizontal"), which always has it.
    run = witnessed({"preset": "exact", "picks": 6}, tmp_path, grid=(5, 1), rounds=3)
    assert {phase for t, phase, _ in run.phases if t > 0} == {"change_dual", "aggregate", "figures"}
    assert not run.moments[-1].scores


# Oracles 11 and 12


Split = tuple[int, int, bool]


@pytest.mark.parametrize(
    "splits",
    rest_slow(
        [
            [(3, 1, False), (3, 2, False), (3, 5, False)],
            [(1, 1, False), (1, 3, False), (1, 2, True), (1, 4, True)],
            [(3, 1, True), (3, 3, True)],
        ]
    ),
    ids=["grids", "one group", "ragged"],
)
def test_with_common_picks_the_partition_of_the_features_changes_nothing(splits: list[Split], tmp_path: Path) -> None:
    algorithm = {"preset": "exact", "picks": 15, "picking": "common"}
    trajectories = []
    for groups, columns, ragged in splits:
        parent = tmp_path / f"{columns} {ragged}"
        run = witnessed(algorithm, parent, grid=(groups, columns), ragged=ragged, samples=100, rounds=15)
        trajectories.append(np.array([run.alpha(moment) for moment in run.moments]))
    for trajectory in trajectories[1:]:
        np.testing.assert_allclose(trajectory, trajectories[0], rtol=0, atol=1e-9)
    moves = np.abs(np.diff(trajectories[0], axis=0)).max(axis=1)
    assert (moves > 1e-6).mean() > 0.8  # it was no comparison of things that stand still
