"""A small fleet of which a quarter is killed again and again: the program of the full size, with its limits."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest

from benchmarks.load import Load

KEPT = Load(
    clients=100,
    away=10,
    lost=0,
    missed=0,
    killed=60,
    same_bits=True,
    megabytes=[150.0] * 10 + [200.0] * 10 + [300.0] * 10 + [209.0] * 10,
    objects=[900, 1000, 990, 1730],
    files=400,
)


@pytest.mark.parametrize(
    "broken",
    [
        {"lost": 1},
        {"missed": 2},
        {"same_bits": False},
        {"files": 401},
        {"megabytes": [150.0] * 10 + [200.0] * 20 + [211.0] * 10},
        {"objects": [2000, 1000, 2000, 1731]},
    ],
)
def test_each_limit_is_one(broken: dict[str, Any]) -> None:
    assert KEPT.exceeded() == []
    assert len(replace(KEPT, **broken).exceeded()) == 1


@pytest.mark.cluster
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_kills_lose_nobody_and_leave_the_server_as_large_as_it_was() -> None:
    # Nearly every round sees a kill, so that a stream that is kept for each client that was killed breaks a limit.
    words = ["--clients", "100", "--processes", "4", "--rounds", "24", "--pause", "0.1", "--json"]
    done = subprocess.run([sys.executable, "-m", "benchmarks.load", "--quick", *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    (row,) = json.loads(done.stdout.splitlines()[-1])["rows"]
    assert row["clients killed"] >= 300, row
