"""Curves of a run in a notebook."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

import fenchel
from fenchel.report.sparkline import sparkline

ROUNDS = np.arange(1.0, 6.0)


def points(text: str) -> list[tuple[float, float]]:
    found = re.search(r'points="([^"]*)"', text)
    return [(float(a), float(b)) for a, b in (pair.split(",") for pair in found[1].split())] if found else []


def test_a_curve_spans_its_frame_and_leaves_out_what_is_not_known() -> None:
    values = np.array([4.0, np.nan, 2.0, 1.0, 3.0])
    drawn = points(sparkline("Loss", ROUNDS, values, logarithmic=False, last="3"))
    assert len(drawn) == 4
    assert [across for across, _ in drawn] == sorted(across for across, _ in drawn)
    down = [each for _, each in drawn]
    assert np.argmin(down) == 0  # the largest is at the top
    assert np.argmax(down) == 2


def test_a_gap_is_drawn_on_a_logarithmic_axis() -> None:
    drawn = points(sparkline("Gap", ROUNDS, 10.0**-ROUNDS, logarithmic=True, last="1e-5"))
    steps = np.diff([down for _, down in drawn])
    assert np.ptp(steps) < 0.2
    assert len(points(sparkline("Gap", ROUNDS, np.array([1.0, 0, 0.1, -1, 0.01]), logarithmic=True, last=""))) == 3


def test_a_constant_or_a_single_point_is_no_problem() -> None:
    assert sparkline("Loss", ROUNDS[:1], ROUNDS[:1], logarithmic=False, last="1") == ""
    assert len(points(sparkline("Loss", ROUNDS, np.ones(5), logarithmic=False, last="1"))) == 5


def test_a_long_curve_is_thinned_between_its_ends() -> None:
    rounds = np.arange(1.0, 100_001.0)
    drawn = points(sparkline("Loss", rounds, rounds, logarithmic=False, last="100000"))
    assert 240 <= len(drawn) <= 500
    assert [drawn[0], drawn[-1]] == [(6.0, 84.0), (234.0, 6.0)]


def test_a_run_shows_its_curves(tmp_path: Path) -> None:
    overrides = ["rounds=4", "algorithm.privacy=none"]
    html = fenchel.up("quickstart", overrides=overrides, in_process=True, runs=tmp_path)._repr_html_()
    assert html.count("<polyline") == 3
    assert "Gap (logarithmic)" in html
    assert "<script" not in html
