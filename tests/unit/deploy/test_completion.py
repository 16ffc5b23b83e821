"""A shell completes the names of experiments and of settings files."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize(
    ("typed", "completed"),
    [
        ("up quick", ["quickstart"]),
        ("check hyfdca/mnist-", ["hyfdca/mnist-encrypted", "hyfdca/mnist-paper"]),
        ("up mine", ["mine.yaml"]),
        ("up hosp", ["hospitals/"]),
        ("up nothing", []),
    ],
)
def test_settings_are_completed(typed: str, completed: list[str], tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").touch()
    (tmp_path / "mine.csv").touch()
    (tmp_path / "hospitals").mkdir()
    words = f"fenchel {typed}"
    asked = {"_FENCHEL_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
    command = [sys.executable, "-P", "-m", "fenchel"]
    done = subprocess.run(command, cwd=tmp_path, env=os.environ | asked, capture_output=True, text=True, check=True)
    assert done.stdout.split() == completed
