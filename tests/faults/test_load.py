"""A small fleet of which a quarter is killed again and again: the program of the full size, with its limits."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace

import pytest

from benchmarks.load import Load

KEPT = Load(
    clients=100,
    lost=0,
    missed=0,
    killed=60,
    same_bits=True,
    megabytes=[150.0] * 10 + [200.0] * 10 + [300.0] * 10 + [209.0] * 10,
    objects=[900, 1000, 990, 1530],
    files=400,
)


def test_a_run_that_keeps_its_limits_is_not_complained_of() -> None:
    assert KEPT.quarters() == [150.0, 200.0, 300.0, 209.0]
    assert KEPT.exceeded() == []


@pytest.mark.parametrize(
    ("broken", "words"),
    [
        (replace(KEPT, lost=1), "1 clients were lost"),
        (replace(KEPT, missed=2), "2 replies were missed"),
        (replace(KEPT, same_bits=False), "the model has other bits than without kills"),
        (replace(KEPT, files=401), "401 files were open, of 400 at most"),
        (
            replace(KEPT, megabytes=[150.0] * 10 + [200.0] * 20 + [211.0] * 10),
            "memory grew by 5.5% from the second quarter to the last, of 5% at most",
        ),
        (
            replace(KEPT, objects=[2000, 1000, 2000, 1531]),
            "531 objects more in the last quarter than in the second, of 530 at most",
        ),
    ],
)
def test_each_limit_is_one(broken: Load, words: str) -> None:
    assert broken.exceeded() == [words]


@pytest.mark.faults
@pytest.mark.timeout(900)
def test_kills_lose_nobody_and_leave_the_server_as_large_as_it_was() -> None:
    # Nearly every round sees a kill, so that a stream that is kept for each client that was killed breaks a limit.
    words = ["--clients", "100", "--processes", "4", "--rounds", "24", "--pause", "0.1", "--json"]
    done = subprocess.run([sys.executable, "-m", "benchmarks.load", "--quick", *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    (row,) = json.loads(done.stdout.splitlines()[-1])["rows"]
    assert row["clients killed"] >= 300, row
