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
from benchmarks import program
from benchmarks.limits import ALLOWANCE, Limits, missed


def kept(limits: Limits) -> list[bool]:
    return [bool(verdict["kept"]) for verdict in limits.verdicts]


def figures(models: float, *, quick: bool = False) -> program.Figures:
    limits = Limits(quick=quick)
    limits.at_most("models", models, 4.0)
    return {"rows": [{"models": models}], "limits": limits.verdicts}


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
    limits.at_most("seconds", 4.1 * ALLOWANCE, 4.0, timed=True)
    limits.at_least("speed", 3.9, 4.0, timed=True)
    limits.at_least("speed", 3.9 / ALLOWANCE, 4.0, timed=True)
    assert kept(limits) == [False, False, True, False]


@pytest.mark.parametrize("flags", [[], ["--quick", "--json"]])
def test_a_program_that_misses_a_limit_says_so(
    flags: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["program", *flags])
    program.run("A program.", lambda quick: figures(3.9, quick=quick))
    with pytest.raises(SystemExit, match="limit missed: models"):
        program.run("A program.", lambda quick: figures(4.1, quick=quick))
    if flags:
        (verdict,) = json.loads(capsys.readouterr().out.splitlines()[-1])["limits"]
        assert verdict["kept"] is False


@pytest.mark.parametrize(("measured", "reached"), [(3.9, True), (4.1, False)])
def test_all_programs_together_write_their_page_and_then_judge(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, measured: float, reached: bool
) -> None:
    def done(words: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(words, not reached, json.dumps(figures(measured)))

    (tmp_path / "benchmarks").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["benchmarks"])
    monkeypatch.setattr(subprocess, "run", done)
    ended = None
    try:
        everything.main()
    except SystemExit as end:
        ended = end.code
    assert (ended is None) == reached
    page = (tmp_path / "benchmarks" / "RESULTS.md").read_text()
    assert page.count(f"| models | {measured} | at most 4 | {reached} |") == len(everything._PROGRAMS)


def test_a_program_without_figures_is_no_success(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["benchmarks"])
    monkeypatch.setattr(subprocess, "run", lambda words, **_: subprocess.CompletedProcess(words, 1, "half a line"))
    with pytest.raises(RuntimeError):
        everything.main()
