"""Numbers read well at every size, and foreign text cannot steer a terminal."""

from __future__ import annotations

import math

import pytest

from fenchel.report.formatting import bytes_text, count_text, figure_text, printable, seconds_text


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1 kB"),
        (20_800, "20.8 kB"),
        (999_600, "1 MB"),
        (4.2e9, "4.2 GB"),
        (5e12, "5 TB"),
        (7e15, "7,000 TB"),
        (math.nan, "–"),
    ],
)
def test_bytes_are_shown_with_three_digits_and_a_decimal_unit(count: float, text: str) -> None:
    assert bytes_text(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (12e-6, "12 µs"),
        (0.9999e-3, "1 ms"),
        (0.0471, "47.1 ms"),
        (0.9999, "1 s"),
        (12.34, "12.3 s"),
        (59.99, "1 min 00 s"),
        (185, "3 min 05 s"),
        (3599.9, "1 h 00 min"),
        (7800, "2 h 10 min"),
        (-0.0471, "-47.1 ms"),
        (-185, "-3 min 05 s"),
        (math.inf, "–"),
    ],
)
def test_seconds_are_shown_in_the_unit_that_people_would_choose(seconds: float, text: str) -> None:
    assert seconds_text(seconds) == text


def test_accuracies_are_percentages_and_other_figures_are_numbers() -> None:
    assert figure_text("test_accuracy", 0.9472) == "94.7%"
    for figure in ("test_auc", "holdout_auc_error", "test_partial_auc", "test_average_precision"):
        assert figure_text(figure, 0.98349) == "98.35%"
    assert figure_text("objective", 0.190678) == "0.1907"
    assert figure_text("objective", math.nan) == "–"
    assert figure_text("objective", math.inf) == "inf"


def test_counts_agree_with_their_noun() -> None:
    assert (count_text(1, "round"), count_text(1000, "round")) == ("1 round", "1,000 rounds")


def test_control_characters_become_visible() -> None:
    assert printable("a\x1b[31mb\n\u202ec") == "a�[31mb��c"
