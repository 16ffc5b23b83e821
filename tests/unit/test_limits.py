"""Limits of the benchmarks: a program that misses one says so by its exit code."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import __main__ as everything
from benchmarks.limits import ALLOWANCE, Limits, missed

BENCHMARKS = Path(everything.__file__).parent

_PROGRAM = """
from benchmarks.limits import Limits
from benchmarks.program import run

def measure(quick):
    limits = Limits(quick=quick)
    limits.at_most("models", {measured}, 4.0)
    return {{"rows": [{{"models": {measured}}}], "limits": limits.verdicts}}

run("A program.", measure)
"""


def kept(limits: Limits) -> list[bool]:
    return [bool(verdict["kept"]) for verdict in limits.verdicts]


def test_figures_are_judged_with_their_bound_allowed() -> None:
    limits = Limits(quick=False)
    for figure in (3.9, 4.0, 4.1, math.nan):
        limits.at_most("a", figure, 4.0)
        limits.at_least("b", figure, 4.0)
    assert kept(limits) == [True, False, True, True, False, True, False, False]
    assert len(missed(limits.verdicts)) == 4


def test_a_quick_run_is_lenient_about_time_only() -> None:
    limits = Limits(quick=True)
    limits.at_most("bytes", 4.1, 4.0)
    limits.at_most("seconds", 4.1, 4.0, timed=True)
    limits.at_most("seconds", 4.1 * ALLOWANCE, 4.0, timed=True)
    limits.at_least("speed", 3.9, 4.0, timed=True)
    limits.at_least("speed", 3.9 / ALLOWANCE, 4.0, timed=True)
    assert kept(limits) == [False, True, False, True, False]


@pytest.mark.parametrize(("measured", "code"), [(3.9, 0), (4.1, 1)])
@pytest.mark.parametrize("flags", [[], ["--json"], ["--quick", "--json"]])
def test_a_program_that_misses_a_limit_ends_with_1(measured: float, code: int, flags: list[str]) -> None:
    program = [sys.executable, "-c", _PROGRAM.format(measured=measured), *flags]
    done = subprocess.run(program, capture_output=True, text=True)
    assert done.returncode == code
    assert ("limit missed: models" in done.stderr) == bool(code)
    if flags:
        (verdict,) = json.loads(done.stdout.splitlines()[-1])["limits"]
        assert verdict["kept"] is (code == 0)


@pytest.mark.parametrize(("measured", "code"), [(3.9, None), (4.1, 1)])
def test_all_programs_together_write_their_page_and_then_end_with_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, measured: float, code: int | None
) -> None:
    def program(words: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        limits = Limits(quick=False)
        limits.at_most("models", measured, 4.0)
        figures = {"rows": [{"models": measured}], "limits": limits.verdicts}
        return subprocess.CompletedProcess(words, len(missed(limits.verdicts)), json.dumps(figures))

    (tmp_path / "benchmarks").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["benchmarks"])
    monkeypatch.setattr(subprocess, "run", program)
    ended = None
    try:
        everything.main()
    except SystemExit as end:
        ended = end.code
    assert (ended is None) == (code is None)
    page = (tmp_path / "benchmarks" / "RESULTS.md").read_text()
    assert page.count(f"| models | {measured} | at most 4 | {code is None} |") == len(everything._PROGRAMS)


def test_a_program_without_figures_is_no_success(monkeypatch: pytest.MonkeyPatch) -> None:
    def program(words: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(words, 1, "half a line")

    monkeypatch.setattr(sys, "argv", ["benchmarks"])
    monkeypatch.setattr(subprocess, "run", program)
    with pytest.raises(RuntimeError):
        everything.main()


@pytest.mark.parametrize("name", sorted(path.stem for path in BENCHMARKS.glob("[!_]*.py")))
def test_a_program_that_states_limits_judges_them(name: str) -> None:
    text = (BENCHMARKS / f"{name}.py").read_text()
    about = text.split('"""')[1]
    if "imit" in about and "__main__" in text:
        assert "Limits(quick=" in text or "exceeded()" in text
