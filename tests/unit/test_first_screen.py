"""The README: its table of algorithms says what code says, its example prints what it shows, its badges are true."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from fenchel.algorithms.privacy_requirements import check_claim
from fenchel.common.errors import SettingsError
from fenchel.common.settings.algorithm import AlgorithmSettings
from fenchel.common.settings.registry import builtin_settings, keeps_no_state
from fenchel.common.settings.run import RunSettings, validate

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
COLUMNS = ("problem class", "state on clients", "partition", "encryption", "privacy")


def table() -> dict[str, dict[str, str]]:
    """Return the cells of the table of algorithms by the names that settings have."""
    lines = [line.strip("|").split("|") for line in README.splitlines() if line.startswith("|")]
    rows = [[cell.strip() for cell in line] for line in lines]
    assert rows[0] == ["algorithm", "paper", *COLUMNS]
    found: dict[str, dict[str, str]] = {}
    for row in rows[2:]:
        for name in re.findall(r"`([a-z-]+)`", row[0]):
            assert name not in found
            found[name] = dict(zip(COLUMNS, row[2:], strict=True))
    return found


CELLS = table()
SETTINGS = builtin_settings()
# What some algorithms need of their settings so that noise can be added.
NOISY: dict[str, dict[str, Any]] = {
    "feddyn": {"weighting": "uniform"},
    "scaffold": {"weighting": "uniform", "local_steps": 1, "correction": "option-ii"},
}


def run_settings(name: str, **more: object) -> RunSettings:
    """Return settings of a short run of an algorithm, with its defaults where noise allows them."""
    binary = SETTINGS[name].__module__.startswith("fenchel.algorithms.auc.")
    return validate(
        {
            "rounds": 2,
            "clients": 4,
            "data": {"name": "breast_cancer"},
            "objective": {"kind": "binary" if binary else "logistic", "l2": 0.1},
            "algorithm": {"name": name, **NOISY.get(name, {})},
            **more,
        }
    )


def takes_privacy(name: str) -> bool:
    """Return whether a run of an algorithm can claim differential privacy."""
    privacy = {"mechanism": "clip-update", "clip": 1.0, "noise_multiplier": 1.0}
    try:
        check_claim(run_settings(name, differential_privacy=privacy))
    except SettingsError:
        return False
    return True


def test_the_table_has_each_algorithm_once() -> None:
    assert CELLS.keys() == SETTINGS.keys()


@pytest.mark.parametrize(("name", "settings"), SETTINGS.items(), ids=SETTINGS)
def test_the_cells_of_an_algorithm_are_those_of_its_code(name: str, settings: type[AlgorithmSettings]) -> None:
    cells, run = CELLS[name], run_settings(name)
    assert ("any" in cells["problem class"]) == settings.treats_nonconvex
    assert ("+ h" in cells["problem class"]) == settings.treats_regularizer
    assert ("worst client" in cells["problem class"]) == (
        settings.other_problem == "the largest of the clients' losses"
    )
    assert (cells["state on clients"] == "none") == keeps_no_state(run.algorithm)
    assert cells["partition"] == ("samples and features" if settings.splits_features else "samples")
    assert cells["encryption"] == ("–" if run.algorithm.key_bits is None else "Paillier")
    assert cells["privacy"] == ("differential" if takes_privacy(name) else "–")


def test_the_badges_are_true() -> None:
    assert PROJECT["requires-python"] == ">=3.11"
    assert "badge/python-3.11%2B-blue" in README
    assert PROJECT["license"] == "Apache-2.0"
    assert "badge/licence-Apache--2.0-blue" in README
    assert len(re.findall(r"img\.shields\.io", README)) == 2


def test_the_versions_of_python_in_the_metadata_are_supported() -> None:
    minors = re.search(r"for minor in ([\d ]+);", (ROOT / "Makefile").read_text())
    assert minors
    listed = [each.rpartition(".")[2] for each in PROJECT["classifiers"] if re.search(r"Python :: 3\.\d+$", each)]
    assert set(listed) <= set(minors[1].split())
    assert "11" in listed


def test_it_fits_on_two_screens() -> None:
    assert len(README.splitlines()) < 120


@pytest.mark.slow
@pytest.mark.cluster
def test_the_example_prints_what_is_shown(tmp_path: Path) -> None:
    (code,) = re.findall(r"^```python\n(.*?)^```$", README, re.DOTALL | re.MULTILINE)
    (shown,) = re.findall(r"^```text\n(.*?)^```$", README, re.DOTALL | re.MULTILINE)
    assert len(code.splitlines()) == 12
    (tmp_path / "example.py").write_text(code)
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    done = subprocess.run(
        [sys.executable, "example.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    pattern = r"objective (\S+), gap (\S+), accuracy (\S+)\n"
    printed, promised = (re.fullmatch(pattern, text) for text in (done.stdout, shown))
    assert printed, done.stdout
    assert promised
    assert (printed[1], printed[3]) == (promised[1], promised[3])
    assert float(promised[2]) / 3 < float(printed[2]) < 3 * float(promised[2])  # rounding of another processor
