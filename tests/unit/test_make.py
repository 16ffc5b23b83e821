"""``make test`` runs every level of tests, and fails if one of them does."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")

LEVELS = ("not docker and not cluster and not faults", "cluster and not faults")


@pytest.mark.parametrize("failing", [(), LEVELS[:1], LEVELS[1:], LEVELS])
def test_all_levels_run_and_any_failure_counts(failing: tuple[str, ...], tmp_path: Path) -> None:
    python, ready, ran = (tmp_path / name for name in ("python", "ready", "ran"))
    refused = "".join(f'[ "$4" = "{level}" ] && exit 1\n' for level in failing)
    python.write_text(f'#!/bin/sh\necho "$4" >> {ran}\n{refused}exit 0\n')
    python.chmod(0o755)
    ready.touch()
    done = subprocess.run(
        ["make", "test", f"BIN={tmp_path}", f"READY={ready}"], capture_output=True, text=True, check=False
    )
    assert ran.read_text().splitlines() == list(LEVELS)
    assert (done.returncode != 0) == bool(failing), done.stderr
