"""The paper's formulas, as the specification prints their values (section 3)."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fenchel.common.accounting import paper


def test_the_noise_of_one_round() -> None:
    assert paper.noise_multiplier(1.0, 1e-4) == pytest.approx(4.3436, abs=5e-5)
    assert paper.epsilon_of(4.3436, 1e-4) == pytest.approx(1.0, abs=1e-4)


@pytest.mark.parametrize(
    ("q", "claimed", "law", "each"),
    [
        (50 / 325, 0.5, "printed", 1.80),
        (50 / 325, 0.5, "corrected", 0.276),
        (100 / 325, 0.5, "printed", 0.406),
        (100 / 325, 0.5, "corrected", 0.125),
        (50 / 600, 10, "printed", 127),
        (50 / 600, 10, "corrected", 10.6),
        (100 / 600, 20, "printed", 60.7),
        (100 / 600, 20, "corrected", 10.1),
        (200 / 600, 20, "printed", 13.6),
        (200 / 600, 20, "corrected", 4.53),
    ],
)
def test_the_epsilon_of_one_round_in_the_papers_settings(q: float, claimed: float, law: paper.Law, each: float) -> None:
    assert paper.per_round(claimed, q, 60, 1e-4, law) == pytest.approx(each, rel=0.004)


@given(
    budget=st.floats(0.01, 100),
    q=st.floats(0.001, 0.999),
    uploads=st.floats(1, 1e4),
    delta=st.floats(1e-9, 0.1),
    law=st.sampled_from(["printed", "corrected"]),
)
def test_the_inversion_inverts(budget: float, q: float, uploads: float, delta: float, law: paper.Law) -> None:
    each = paper.per_round(budget, q, uploads, delta, law)
    assert paper.total(each, q, uploads, delta, law) == pytest.approx(budget)


def test_the_laws_differ_by_q() -> None:
    printed, corrected = (paper.total(1.0, 0.2, 60, 1e-4, law) for law in ("printed", "corrected"))
    assert printed == pytest.approx(0.2 * corrected)


def test_the_theorem_says_nothing_where_a_round_draws_everything() -> None:
    assert paper.total(1.0, 1.0, 60, 1e-4) == math.inf
    assert paper.per_round(1.0, 1.0, 60, 1e-4) == 0.0
