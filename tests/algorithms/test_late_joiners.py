"""A client that comes late counts from the next round on, and no sum over the clients is disturbed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fenchel.algorithms.feddcd.feddcd import FedDCDClient
from fenchel.common.data.shard import Shard
from fenchel.common.errors import PayloadError
from fenchel.common.wire.values import Values
from tests.algorithms.latecomers import Federation, federation
from tests.algorithms.mlr import Problem, reproducible
from tests.slow import rest_slow

SOLVER = {"kind": "newton-cg", "stop": {"gradient": 1e-13}}
FEDDCD: dict[str, Any] = {"name": "feddcd", "solver": SOLVER}
ACCELERATED: dict[str, Any] = {"name": "acc-feddcd", "solver": SOLVER}
SCAFFOLD: dict[str, Any] = {"name": "scaffold", "local_steps": 5, "batch_size": None, "step_size": 0.2}
DUAL = {"feddcd": FEDDCD, "acc-feddcd": ACCELERATED, "two cohorts": ACCELERATED | {"cohorts": 2}}
PAIRS = {"sampler": {"kind": "fixed", "size": 2}}


def named(problem: Problem) -> dict[str, Shard]:
    """The newcomer's id is in the middle, so that places move."""
    return dict(zip(["a", "b", "d", "c"], problem.shards, strict=True))


def weights_told(ended: Federation) -> list[tuple[int, str]]:
    return sorted((call["round"], call["client"]) for call in ended.calls if call["phase"] == "begin")


@pytest.mark.slow  # make test-all
@pytest.mark.parametrize(
    ("name", "sampler", "weighted"),
    [
        pytest.param(
            name,
            PAIRS if pairs else {},
            weighted,
            id=f"{name}-{'pairs' if pairs else 'everybody'}-{'all samples' if weighted else 'sum of objectives'}",
            # Any two of the three meet in what is left; make test-all tries all.
            marks=[] if (place + pairs + weighted) % 2 else pytest.mark.slow,
        )
        for place, name in enumerate(DUAL)
        for pairs in (False, True)
        for weighted in (False, True)
    ],
)
def test_the_duals_go_on_summing_to_zero_and_the_run_finds_the_optimum_of_all_data(
    name: str, sampler: dict[str, Any], weighted: bool, tmp_path: Path
) -> None:
    problem = reproducible(weighted=weighted)
    algorithm = DUAL[name] | {"weighting": "samples" if weighted else "uniform"}
    rounds = 150 if sampler else 60
    run = federation(tmp_path, named(problem), {"c": 5}, algorithm, rounds=rounds, participation=sampler)
    model = run.run()
    assert run.fleet_sizes == [3] * 5 + [4] * (rounds - 5)
    np.testing.assert_allclose(model, problem.optimum, rtol=0, atol=1e-6)
    if not (sampler and name != "feddcd"):  # with acceleration, whoever sits out has yet to catch up
        assert np.abs(run.client_states("dual").sum(axis=0)).max() < 1e-13
    np.testing.assert_allclose(run.client_states("weight"), problem.weights[[0, 1, 3, 2]], rtol=0, atol=1e-15)
    assert np.abs(run.states[rounds].rounding).max() < 1e-14


def test_the_newcomer_is_described_alone_and_everybody_is_told_anew(tmp_path: Path) -> None:
    run = federation(tmp_path, named(reproducible()), {"c": 5}, FEDDCD)
    run.run()
    described = [(call["round"], call["client"]) for call in run.calls if call["phase"] == "describe"]
    assert described == [(0, "a"), (0, "b"), (0, "d"), (5, "c")]
    assert weights_told(run) == [*((0, client) for client in "abd"), *((5, client) for client in "abcd")]
    rows = [call for call in run.calls if call["phase"] == "minimize" and call["client"] == "c"]
    assert [call["round"] for call in rows] == [6, 7, 8]


@pytest.mark.parametrize("sampler", [{}, PAIRS], ids=["everybody", "pairs"])
def test_somebody_who_is_there_from_the_start_of_round_one_makes_no_difference(
    sampler: dict[str, Any], tmp_path: Path
) -> None:
    # A newcomer whose dual is 0 joins others whose duals are 0: the same run as if it had been there.
    problem = reproducible()
    (late := tmp_path / "late").mkdir()
    (timely := tmp_path / "timely").mkdir()
    expected = federation(timely, named(problem), {}, FEDDCD, participation=sampler).run()
    run = federation(late, named(problem), {"c": 0}, FEDDCD, participation=sampler)
    assert run.run().tobytes() == expected.tobytes()
    assert run.fleet_sizes == [4] * 8


@pytest.mark.parametrize("name", rest_slow(["feddcd", "acc-feddcd", "scaffold", "fedavg"], 2))
@pytest.mark.parametrize("killed_in", [{6}, {6, 8}], ids=str)
def test_a_kill_after_an_admission_changes_no_bit(name: str, killed_in: set[int], tmp_path: Path) -> None:
    algorithm = DUAL.get(name, SCAFFOLD if name == "scaffold" else {"name": name, "local_epochs": 1})
    models, shards = [], named(reproducible())
    for kills in (set(), killed_in):
        (parent := tmp_path / f"{len(kills)}").mkdir()
        run = federation(parent, shards, {"c": 5}, algorithm, participation=PAIRS)
        run.killed_in = set(kills)
        models.append(run.run())
        assert run.fleet_sizes == [3] * 5 + [4] * 3
        assert not run.killed_in
        assert not run.refusals
    assert models[0].tobytes() == models[1].tobytes()


@pytest.mark.parametrize("correction", ["option-i", "option-ii"])
@pytest.mark.parametrize("sampler", [{}, PAIRS], ids=["everybody", "pairs"])
def test_the_control_variate_of_scaffold_stays_the_mean_of_all(
    sampler: dict[str, Any], correction: str, tmp_path: Path
) -> None:
    run = federation(
        tmp_path,
        named(reproducible()),
        {"c": 4, "b": 6},
        SCAFFOLD | {"correction": correction},
        rounds=20,
        participation=sampler,
    )
    run.run()
    assert run.fleet_sizes == [2] * 4 + [3] * 2 + [4] * 14
    controls = run.client_states("control")
    assert np.abs(controls).max() > 1e-2
    np.testing.assert_allclose(run.states[20].control, controls.mean(axis=0), rtol=0, atol=1e-15)


def alone(shards: Mapping[str, Shard], parent: Path, algorithm: Mapping[str, Any]) -> bytes:
    """The model of those who were there from the start, bit for bit."""
    (folder := parent / "alone").mkdir()
    there = {name: shard for name, shard in shards.items() if name != "c"}
    return federation(folder, there, {}, algorithm, participation=PAIRS).run().tobytes()


@pytest.mark.parametrize("name", ["feddcd", "scaffold"])
def test_a_newcomer_with_other_columns_is_refused_and_the_run_goes_on(name: str, tmp_path: Path) -> None:
    shards = named(reproducible())
    features = shards["c"].features[:, :2]
    shards["c"] = replace(shards["c"], features=features, total_features=2)
    algorithm = DUAL.get(name, SCAFFOLD)
    run = federation(tmp_path, shards, {"c": 5}, algorithm, participation=PAIRS)
    model = run.run()
    assert run.refusals == {"c": "client c has 2 features, but client a has 3; give all files the same columns"}
    assert run.fleet_sizes == [3] * 8
    assert model.tobytes() == alone(shards, tmp_path, algorithm)


def failing(self: FedDCDClient) -> Values:
    raise PayloadError("its disk is full")


def odd(self: FedDCDClient) -> Values:
    return {"strong_convexity": 2.0, "smoothness": 1.0, "samples": 3}


def flat(self: FedDCDClient) -> Values:
    return {"strong_convexity": 0.0, "smoothness": 1.0, "samples": 7}


@pytest.mark.parametrize(
    ("describe", "reason"),
    [
        (failing, "its disk is full"),
        (odd, "client c reports a strong convexity of 2.0 and a smoothness of 1.0; expected 0 <= strong"),
        (flat, "the cohort c cannot run the algorithm: objective.l2: the objective is not strongly convex"),
    ],
)
def test_a_newcomer_that_cannot_be_taken_in_hears_why_and_leaves_no_trace(
    describe: Any, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = FedDCDClient.describe
    describe.answers_phase = "describe"

    def described(self: FedDCDClient) -> Values:
        answer: Values = (describe if self.client == "c" else original)(self)
        return answer

    described.answers_phase = "describe"  # type: ignore[attr-defined]
    monkeypatch.setattr(FedDCDClient, "describe", described)
    shards = named(reproducible())
    run = federation(tmp_path, shards, {"c": 5}, FEDDCD, participation=PAIRS)
    model = run.run()
    assert reason in run.refusals["c"]
    assert set(run.farewells) == {"a", "b", "d"}
    assert run.fleet_sizes == [3] * 8
    assert model.tobytes() == alone(shards, tmp_path, FEDDCD)
    assert set(run.states[8].samples) == set(run.states[8].strong_convexity) == {"a", "b", "d"}


def test_who_comes_during_the_last_round_hears_that_it_is_too_late(tmp_path: Path) -> None:
    run = federation(tmp_path, named(reproducible()), {"c": 8}, FEDDCD)
    run.run()
    assert f"run {run.folder.id} ended before client c could take part" in run.refusals["c"]


@pytest.mark.slow
def test_the_gap_is_certified_over_all_clients_again_after_an_admission(tmp_path: Path) -> None:
    run = federation(tmp_path, named(reproducible()), {"c": 5}, FEDDCD | {"monitor": 1}, rounds=60)
    run.run()
    assert 0 <= run.states[60].figures["gap"] < 1e-9
    problem = reproducible(weighted=True)
    objective = run.states[60].figures["minimised_objective"]
    assert objective == pytest.approx(problem.value(problem.optimum) / 4, abs=1e-9)
