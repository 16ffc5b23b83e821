"""The comparison with other frameworks: what counts as the job done, and how the table comes about."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from benchmarks.peers.job import Job, JobError, Result, constant, start
from benchmarks.peers.nvflare_server import round_ends
from benchmarks.peers.processes import Processes
from benchmarks.peers.table import Limit, Measured, judge, rows

JOB = Job(clients=4, floats=50, rounds=6, warm_up=2)


def done(job: Job, *, lazy: tuple[int, int] | None = None) -> NDArray[np.float32]:
    """The job, round by round; ``lazy`` is a client, and the round in which it sends nothing."""
    vector = start(job.floats)
    for t in range(job.total):
        sent = [vector + np.float32(constant(client)) for client in range(job.clients) if (client, t) != lazy]
        vector = np.mean(sent, axis=0, dtype=np.float32)
    return vector


@given(st.integers(1, 6), st.integers(1, 30), st.integers(0, 40))
def test_the_expected_vector_is_that_of_the_rounds_one_by_one(clients: int, floats: int, rounds: int) -> None:
    job = Job(clients, floats, rounds, warm_up=1)
    Result([], done(job)).check(job)
    np.testing.assert_allclose(job.expected(), done(job), rtol=0, atol=1e-3)


@given(st.integers(0, 3), st.integers(0, JOB.total - 1))
def test_a_client_missing_from_one_round_is_noticed(client: int, t: int) -> None:
    with pytest.raises(JobError, match="not the mean"):
        Result([], done(JOB, lazy=(client, t))).check(JOB)


@pytest.mark.parametrize(
    "model", [np.full(50, np.nan, np.float32), done(JOB)[:-1], start(50), None], ids=["nan", "short", "first", "none"]
)
def test_a_wrong_vector_is_refused(model: NDArray[np.float32] | None) -> None:
    with pytest.raises(JobError):
        Result([], model).check(JOB)


def test_the_rounds_of_the_warm_up_do_not_count_and_another_number_of_rounds_is_refused() -> None:
    ends = [100.0, 200.0, 201.0, 203.0, 206.0, 210.0, 215.0, 221.0]
    assert Result(ends, None).seconds(JOB) == [1, 2, 3, 4, 5, 6]
    for wrong in (ends[:-1], [*ends, 222.0]):
        with pytest.raises(JobError, match="rounds were done instead of 8"):
            Result(wrong, None).seconds(JOB)


def test_ratios_are_those_of_turns_side_by_side() -> None:
    # the machine was ten times as slow in the second turn: ratios must not notice
    ours = Measured("ours", [[1.0, 1.0, 9.0], [10.0], [2.0]])
    theirs = Measured("theirs", [[3.0], [40.0], [10.0]])
    assert theirs.times_slower(ours) == [3.0, 4.0, 5.0]
    row = rows(1000, [ours, theirs], "ours")[1]
    assert row["times Fenchel's"] == "4.00"
    assert row["from - to "] == "3.00 - 5.00"
    assert row["ms a round"] == "10,000.0"
    assert row["rounds"] == "1 + 1 + 1"


def test_a_limit_is_reached_or_not_or_unknown() -> None:
    measured = {10: [Measured("ours", [[1.0]]), Measured("theirs", [[3.0]])]}
    limits = [Limit("theirs", 10, 3.0), Limit("theirs", 10, 3.1), Limit("theirs", 20, 1.0), Limit("absent", 10, 1.0)]
    verdicts = judge(measured, limits, "ours")
    assert [verdict.reached for verdict in verdicts] == [True, False]


def test_rounds_are_read_from_a_log_with_headings() -> None:
    log = """2026-01-01 10:00:00,000 - INFO - begin
---
            Round 0 started.
2026-01-01 10:00:01,000 - INFO - Sampled clients
2026-01-01 10:00:02,500 - INFO -
            Round 1 started.
2026-01-01 10:00:04,000 - INFO -
            Finished FedAvg.
"""
    first, second = round_ends(log)
    assert second - first == 1.5
    with pytest.raises(ValueError):
        round_ends("   Round 0 started.")


def test_the_last_words_of_a_failed_process_are_told(tmp_path: Path) -> None:
    with Processes(tmp_path) as started:
        started.start("node", [sys.executable, "-c", "print('I am lost', flush=True); exit(3)"])
        with pytest.raises(JobError, match=r"(?s)node ended with code 3:.*I am lost"):
            started.wait_for_result(60)


def _working_in(folder: Path) -> list[psutil.Process]:
    found = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):  # it has just ended
            if process.cwd() == str(folder):
                found.append(process)
    return found


def test_no_process_outlives_its_federation(tmp_path: Path) -> None:
    child = "import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])"
    with Processes(tmp_path) as started:
        started.start("node", [sys.executable, "-c", f"{child}; time.sleep(600)"])
        deadline = time.monotonic() + 60
        while len(ours := _working_in(tmp_path)) < 2 and time.monotonic() < deadline:
            time.sleep(0.05)
        assert len(ours) == 2
    _, alive = psutil.wait_procs(ours, timeout=10)
    assert alive == []


@pytest.mark.slow  # make test-all
@pytest.mark.cluster
def test_the_echo_and_fenchel_do_the_job() -> None:
    words = [sys.executable, "-m", "benchmarks.peers", "--quick", "--json"]
    finished = subprocess.run(words, capture_output=True, text=True, check=True)
    figures = json.loads(finished.stdout.splitlines()[-1])
    assert set(figures["seconds"]["100000"]) == {"bare gRPC echo", "Fenchel"}
    assert all(seconds > 0 for turns in figures["seconds"]["100000"].values() for seconds in turns[0])
