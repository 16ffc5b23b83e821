"""The first hour of a newcomer, in one table: Fenchel in one process, with real processes, and Flower's simulation.

Each is installed by pip into a new virtual environment, without pip's cache, and does the same small job: federated
averaging of softmax regression on scikit-learn's digits, four clients, ten rounds, the model evaluated after each.
The first run is the first after installation; later runs follow it at once. ``--page`` writes the table into
docs/results/first-hour.md.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow.parquet as pq
from sklearn.datasets import load_digits

from benchmarks.page import made_by, put
from benchmarks.peers.environments import FLOWER
from benchmarks.program import markdown, progress

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "results" / "first-hour.md"
_HERE = Path(__file__).parent
_PACKAGE = ("fenchel", "pyproject.toml", "README.md", "LICENSE")
_FLOWER = ("flwr[simulation]" + FLOWER.requirements[0].removeprefix("flwr"), *FLOWER.requirements[1:])
_TIMEOUT = 300.0
_SECOND = re.compile(rb"\[ROUND 2/")
_ACCURACY = re.compile(r"accuracy ([\d.]+)")


@dataclass(frozen=True)
class Timed:
    """A run of the job: seconds from the command to the second round, and to its return; the accuracy."""

    first: float
    whole: float
    accuracy: float


class Place:
    """A folder with a new virtual environment and what a user writes."""

    def __init__(self, folder: Path, files: dict[str, str]) -> None:
        self.folder = folder
        self.python = folder / "venv" / "bin" / "python"
        self.lines = 0
        (folder / "job").mkdir()
        for source, target in files.items():
            shutil.copy(_HERE / source, folder / "job" / target)
            self.lines += lines_of(_HERE / source)
        write_digits(folder / "job" / "digits.npz")

    def install(self, requirements: Sequence[str | Path]) -> dict[str, Any]:
        """Install packages and return columns of the table."""
        venv.create(self.folder / "venv", with_pip=True)
        before, bytes_before, compiled_before = self._packages(), self._bytes("*"), self._bytes("*.pyc")
        begun = time.perf_counter()
        command = [self.python, "-m", "pip", "install", "--quiet", "--no-cache-dir", *requirements]
        subprocess.run(command, cwd=self.folder, check=True, stdout=sys.stderr)
        seconds = time.perf_counter() - begun
        return {
            "packages": len(self._packages() - before),
            "MB on disk": round((self._bytes("*") - bytes_before) / 1e6),
            "of it bytecode": round((self._bytes("*.pyc") - compiled_before) / 1e6),
            "pip install s": round(seconds),
        }

    def _packages(self) -> set[str]:
        return {
            path.name.rpartition("-")[0]
            for path in (self.folder / "venv").glob("lib/python*/site-packages/*.dist-info")
        }

    def _bytes(self, pattern: str) -> int:
        paths = (self.folder / "venv").rglob(pattern)
        return sum(path.lstat().st_size for path in paths if path.is_file() and not path.is_symlink())


def lines_of(path: Path) -> int:
    """Count lines without blank ones, comments and docstrings."""
    text = path.read_text()
    skipped: set[int] = set()
    if path.suffix == ".py":
        for node in ast.walk(ast.parse(text)):
            if (
                isinstance(node, ast.Expr)
                and isinstance(node.value, ast.Constant)
                and isinstance(node.value.value, str)
            ):
                skipped |= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    written = enumerate(map(str.strip, text.splitlines()), 1)
    return sum(bool(line) and not line.startswith("#") and number not in skipped for number, line in written)


def write_digits(path: Path) -> None:
    """Write the samples, with values up to 1 and a constant feature; a fifth is the test set."""
    images, labels = load_digits(return_X_y=True)
    samples = np.hstack([images / 16, np.ones((len(images), 1))])
    order = np.random.default_rng(0).permutation(len(labels))
    train, test = order[len(order) // 5 :], order[: len(order) // 5]
    np.savez(path, X=samples[train], y=labels[train], X_test=samples[test], y_test=labels[test])


def fenchel_run(place: Place, command: Sequence[str | Path]) -> Timed:
    """Do the job on Fenchel once; its own tables say when the second round began."""
    shutil.rmtree(place.folder / "job" / "runs", ignore_errors=True)
    begun = time.time()
    subprocess.run(command, cwd=place.folder / "job", check=True, stdout=sys.stderr, timeout=_TIMEOUT)
    whole = time.time() - begun
    (run,) = (place.folder / "job" / "runs").iterdir()
    second = pq.read_table(run / "metrics.parquet")["started_unix"][1].as_py()
    accuracy = json.loads((run / "summary.json").read_text())["figures"]["test_accuracy"]
    return Timed(second - begun, whole, accuracy)


def flower_run(place: Place) -> Timed:
    """Do the job on Flower once; the log that it prints says when the second round begins."""
    environment = flower_environment(place)
    job = place.folder / "job"
    words = ["flwr", "run", ".", "--stream", "--run-config", f'data="{job / "digits.npz"}"']
    begun = time.perf_counter()
    first, printed = 0.0, b""
    program = place.python.with_name(words[0])
    with subprocess.Popen(
        [program, *words[1:]], cwd=job, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            printed += line
            if not first and _SECOND.search(line):
                first = time.perf_counter() - begun
    whole = time.perf_counter() - begun
    found = _ACCURACY.findall(printed.decode(errors="replace"))
    if process.returncode or not first or not found:
        raise RuntimeError(
            f"flwr run ended with code {process.returncode}:\n{printed.decode(errors='replace')[-3000:]}"
        )
    return Timed(first, whole, float(found[-1]))


def flower_environment(place: Place) -> dict[str, str]:
    """Return an environment in which Flower reports nothing and keeps its files in the folder."""
    home = place.folder / "home"
    (home / "flwr").mkdir(parents=True, exist_ok=True)
    connection = '[superlink]\ndefault = "local"\n\n[superlink.local]\noptions.num-supernodes = 4\n'
    (home / "flwr" / "config.toml").write_text(connection)
    silent = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "RAY_USAGE_STATS_ENABLED": "0"}
    path = f"{place.python.parent}{os.pathsep}{os.environ['PATH']}"
    return os.environ | silent | {"FLWR_HOME": str(home / "flwr"), "HOME": str(home), "PATH": path}


def end_processes(place: Place) -> None:
    """End what Flower leaves running: processes of this folder's environment."""
    prefix = str(place.folder / "venv")
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if any(word.startswith(prefix) for word in process.cmdline()):
                process.terminate()


def row(name: str, columns: dict[str, Any], lines: int, runs: Sequence[Timed]) -> dict[str, Any]:
    """Return a row of the table, of a first run and later ones."""
    if min(each.accuracy for each in runs) < 0.9:
        raise RuntimeError(f"{name}: an accuracy of {runs[-1].accuracy}, where 0.9 was expected")
    return {
        "": name,
        **columns,
        "to the end of round 1 s": f"{runs[0].first:.1f}",
        "whole job s": f"{runs[0].whole:.1f}",
        "later: round 1 s": f"{statistics.median(each.first for each in runs[1:]):.1f}",
        "later: whole s": f"{statistics.median(each.whole for each in runs[1:]):.1f}",
        "lines": lines,
        "accuracy": f"{runs[-1].accuracy:.3f}",
    }


def measure(folder: Path, repeats: int) -> list[dict[str, Any]]:
    """Install, run and return the rows of the table."""
    rows = []
    source = folder / "source"
    source.mkdir()
    for name in _PACKAGE:
        path = ROOT / name
        if path.is_dir():
            shutil.copytree(path, source / name, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
        else:
            shutil.copy(path, source / name)
    for name, files, words in (
        ("Fenchel, in process", {"digits.yaml": "digits.yaml", "in_process.py": "job.py"}, ("python", "job.py")),
        ("Fenchel, real processes", {"digits.yaml": "digits.yaml"}, ("fenchel", "up", "digits.yaml")),
    ):
        progress(name)
        (own := folder / words[0]).mkdir()
        place = Place(own, files)
        columns = place.install([source])
        command = [place.python.with_name(words[0]), *words[1:]]
        rows.append(row(name, columns, place.lines, [fenchel_run(place, command) for _ in range(repeats)]))
    progress("Flower")
    (own := folder / "flower").mkdir()
    place = Place(own, {"flower_app.py": "flower_app.py", "flower_app.toml": "pyproject.toml"})
    columns = place.install(_FLOWER)
    version = subprocess.run([place.python, "-c", _VERSION], stdout=subprocess.PIPE, text=True, check=True).stdout
    try:
        runs = [flower_run(place) for _ in range(repeats)]
    finally:
        end_processes(place)
    return [*rows, row(f"Flower {version.strip()}, simulation", columns, place.lines, runs)]


_VERSION = "import importlib.metadata as m; print(m.version('flwr'))"


def main() -> None:
    """Measure and print; write the page if asked."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.first_hour", description=__doc__)
    parser.add_argument("--repeat", type=int, default=4, help="runs of each, the first included; at least 2")
    parser.add_argument("--page", action="store_true", help="write the table into docs/results/first-hour.md")
    given = parser.parse_args()
    if given.repeat < 2:
        parser.error("--repeat: a first run and a later one are needed")
    with tempfile.TemporaryDirectory(prefix="fenchel-first-hour-", ignore_cleanup_errors=True) as folder:
        table = markdown(measure(Path(folder), given.repeat))
    print(table)
    if given.page:
        put(PAGE, "table", f"{table}\n\n{made_by('first_hour --page', 'pip without its cache')}")


if __name__ == "__main__":
    main()
