"""The wall-clock time of a run is the sum of its parts, whoever ended it and however often it was resumed."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from fenchel.common.storage.run_folder import BEGINS
from fenchel.report.run import Run
from fenchel.report.wall_time import WallTime, wall_of

MakeRun = Callable[..., Run]


def log(run: Run, *begins: float) -> None:
    entries = [{"unix": unix, "level": "info", "logger": "fenchel.server", "message": BEGINS} for unix in begins]
    noise = {"unix": 1.0, "message": f"client a says: {BEGINS}"}
    lines = [json.dumps(entry) for entry in (*entries[:1], noise, *entries[1:])]
    (run.path / "log.jsonl").write_text("\n".join([*lines, f'{{"unix": 2.0, "message": "{BEGINS}']))


@pytest.fixture
def timed(altered: MakeRun, finished: Run) -> MakeRun:
    """Return a function that makes a run of three rounds, of 5 s each and 1 s of evaluation, begun at moments."""

    def make(name: str, started: Sequence[float], resumed_in: int | None = None, took: float = 0.0) -> Run:
        calls = finished.calls
        resumptions = calls["round"] >= (resumed_in or 99)
        begun = calls["round"].map(dict(enumerate(started, start=1)))
        return altered(
            name,
            metrics={"started_unix": [*started], "seconds": [5.0] * 3, "evaluation_s": [1.0] * 3},
            calls={
                "sequence": (calls["sequence"] + resumptions * (1 << 32)).tolist(),
                "queued_unix": (begun + 0.25).tolist(),
                "queue_s": [0.0] * len(calls),
            },
            summary={"seconds": took},
        )

    return make


def test_the_wall_time_of_a_run_that_never_stopped_is_that_of_its_server(finished: Run) -> None:
    wall = wall_of(finished)
    assert finished.summary is not None
    assert wall.total == pytest.approx(finished.summary["seconds"], abs=1e-5)
    assert wall.rounds == pytest.approx(finished.metrics["seconds"].sum())
    assert wall.evaluation == pytest.approx(finished.metrics["evaluation_s"].sum())
    assert min(wall.parts().values()) >= 0
    assert "paused" not in wall.parts()


def test_a_log_tells_the_set_up_from_the_end(timed: MakeRun) -> None:
    run = timed("run", [1010.0, 1017.0, 1023.0], took=33.0)
    log(run, 1000.0)
    assert wall_of(run) == WallTime(setup=10.0, rounds=15.0, evaluation=3.0, rest=5.0, paused=0.0)
    without = timed("without", [1010.0, 1017.0, 1023.0], took=33.0)
    assert wall_of(without) == WallTime(setup=14.0, rounds=15.0, evaluation=3.0, rest=1.0, paused=0.0)


def test_a_resumption_is_a_pause_and_another_set_up(timed: MakeRun) -> None:
    # The first process is killed at some time after 1016, the second begins at 1100.
    run = timed("run", [1010.0, 1107.0, 1114.0], resumed_in=2, took=22.0)
    log(run, 1000.0, 1100.0)
    assert wall_of(run) == WallTime(setup=17.0, rounds=15.0, evaluation=3.0, rest=3.0, paused=84.0)
    assert wall_of(run).total == 122.0
    # Without a log only the tables say when it was resumed: the set-up of the second process is in the pause.
    without = timed("without", [1010.0, 1107.0, 1114.0], resumed_in=2, took=22.0)
    assert wall_of(without) == WallTime(setup=0.0, rounds=15.0, evaluation=3.0, rest=1.0, paused=91.0)


def test_a_process_of_which_no_round_is_left_was_in_vain(timed: MakeRun) -> None:
    run = timed("run", [1110.0, 1116.0, 1122.0], resumed_in=1, took=30.0)
    log(run, 1000.0, 1050.0, 1100.0)
    assert wall_of(run) == WallTime(setup=10.0, rounds=15.0, evaluation=3.0, rest=2.0, paused=100.0)
    after = timed("after", [1010.0, 1016.0, 1022.0], took=4.0)  # resumed when all rounds were done
    log(after, 1000.0, 1030.0)
    assert wall_of(after) == WallTime(setup=10.0, rounds=15.0, evaluation=3.0, rest=4.0, paused=2.0)


def test_a_run_that_was_killed_is_known_until_its_last_round(killed: Run, finished: Run) -> None:
    wall, metrics = wall_of(killed), finished.metrics.head(2)
    last = metrics.iloc[-1]
    ended = last["started_unix"] + last["seconds"] + last["evaluation_s"]
    began = min(metrics["started_unix"][0], finished.calls["queued_unix"].min())
    assert wall.total == pytest.approx(ended - began, abs=1e-5)


def test_without_a_round_all_is_set_up(tmp_path: Path, altered: MakeRun, finished: Run) -> None:
    run = altered(
        metrics=finished.metrics_table.slice(0, 0), calls=finished.calls_table.slice(0, 0), summary={"seconds": 7.0}
    )
    assert wall_of(run) == WallTime(7.0, 0.0, 0.0, 0.0, 0.0)
