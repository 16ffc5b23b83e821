"""Whatever is lost, late or done twice: the duals go on summing to zero, and the run to the same end."""

from __future__ import annotations

import random
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fenchel.algorithms.feddcd.acc_feddcd import AccFedDCDClient
from fenchel.algorithms.feddcd.feddcd import FedDCDClient
from fenchel.common.arrays import Vector
from fenchel.testing import Faults
from tests.algorithms.mlr import Run, reproducible, train
from tests.slow import rest_slow

SOLVER = {"kind": "newton-cg", "stop": {"gradient": 1e-13}}
ALGORITHMS: dict[str, dict[str, Any]] = {
    "feddcd": {"name": "feddcd"},
    "inexact": {"name": "feddcd", "step_size": 1.9, "solver": {"kind": "lbfgs"}},
    "one cohort": {"name": "acc-feddcd"},
    "two cohorts": {"name": "acc-feddcd", "cohorts": 2},
}
PAIRS = {"sampler": {"kind": "fixed", "size": 2}}
ROUNDS = 8


def algorithm_of(name: str) -> dict[str, Any]:
    return {"solver": SOLVER, **ALGORITHMS[name]}


def vectors(run: Run) -> dict[str, list[Vector]]:
    """Return y_i and z_i as they stand on the clients."""
    names = ("dual", "momentum") if run.settings.algorithm.name == "acc-feddcd" else ("dual",)
    return {name: run.client_states(name) for name in names}


def imbalance(run: Run) -> float:
    return float(np.abs(np.sum(run.client_states("dual"), axis=0)).max())


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    """Runs in which nothing goes wrong."""
    return {
        name: train(
            reproducible(), tmp_path_factory.mktemp("calm"), algorithm_of(name), rounds=ROUNDS, participation=PAIRS
        )
        for name in ALGORITHMS
    }


class Deadly(random.Random):
    """Chance by which every stream that breaks is the end of its client's process."""

    def random(self) -> float:
        return 0.0

    def getrandbits(self, k: int, /) -> int:
        return super().getrandbits(k)  # so that other draws do not rest on random()


@pytest.mark.parametrize("name", rest_slow(ALGORITHMS))
def test_killed_processes_change_nothing(name: str, calm: dict[str, Run], tmp_path: Path) -> None:
    # Streams break before and after uploads, clients and the server restart from what they wrote down.
    faults = Faults(Deadly(name), breaks=3, kills=2, frames=20, lag=2)
    run = train(reproducible(), tmp_path, algorithm_of(name), rounds=ROUNDS, participation=PAIRS, faults=faults)
    federation = run.federation
    assert federation is not None
    assert federation.killed == 2
    assert federation.broken >= 1
    assert federation.rebuilt == federation.broken
    assert run.model.tobytes() == calm[name].model.tobytes()
    for vector, values in vectors(run).items():
        expected = vectors(calm[name])[vector]
        assert all(a.tobytes() == b.tobytes() for a, b in zip(values, expected, strict=True))
    if name in ("feddcd", "inexact"):  # the others' idle clients have yet to catch up
        assert imbalance(run) < 1e-14


def held_up(monkeypatch: pytest.MonkeyPatch, client: str, rounds: set[int], release: threading.Event) -> None:
    """Let a client's local solves of these rounds take until ``release``."""
    for half in (FedDCDClient, AccFedDCDClient):
        solved_at = half.solved_at

        def slow(self: Any, *given: Any, solved_at: Any = solved_at, **more: Any) -> Any:
            if self.client == client and self.round in rounds:
                release.wait(30)
            return solved_at(self, *given, **more)

        monkeypatch.setattr(half, "solved_at", slow)


@pytest.mark.parametrize("name", rest_slow(["feddcd", "one cohort"]))
def test_a_straggler_is_as_one_that_was_not_asked(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Client 1 is late in round 2, where two others are in time, and in round 4, where only one is.
    asked = [(0, 1), (0, 1, 3), (1, 2), (1, 3), (0, 1), (2, 3)]
    counted = [(0, 1), (0, 3), (1, 2), (3,), (0, 1), (2, 3)]
    (quick := tmp_path / "quick").mkdir()
    (late := tmp_path / "late").mkdir()
    given: dict[str, Any] = {"rounds": 6, "evaluation": {"server": False, "clients": False}}
    expected = train(reproducible(), quick, algorithm_of(name), cohorts=counted, participation=PAIRS, **given)
    releases = {2: threading.Event(), 4: threading.Event()}
    for t, release in releases.items():
        held_up(monkeypatch, "client-001", {t}, release)
    with ThreadPoolExecutor(4) as executor:
        run = train(
            reproducible(),
            late,
            algorithm_of(name),
            cohorts=asked,
            executor=executor,
            on_round=lambda t: releases[t].set() if t in releases else None,
            participation=PAIRS | {"deadline": 1.0},
            **given,
        )
    outcomes = {
        (call["round"], call["client"]): call["outcome"]
        for call in run.calls.to_pylist()
        if call["phase"] == "minimize"
    }
    missed = {key for key, outcome in outcomes.items() if outcome != "counted"}
    assert missed == {(2, "client-001"), (4, "client-001")}
    assert run.states[6].committed == expected.states[6].committed == 5
    assert run.model.tobytes() == expected.model.tobytes()
    for vector, values in vectors(run).items():
        for value, other in zip(values, vectors(expected)[vector], strict=True):
            assert value.tobytes() == other.tobytes()
    if name == "feddcd":
        assert imbalance(run) < 1e-15
