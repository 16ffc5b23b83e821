"""Metrics add, and say what is not known."""

from __future__ import annotations

import math
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from fenchel.common.objectives.metrics import Metrics

some = st.builds(Metrics, st.floats(0, 1e6), st.integers(0, 50), st.integers(50, 100))


@given(st.lists(some, max_size=8), st.randoms())
def test_a_total_does_not_depend_on_the_order_of_its_parts(parts: list[Metrics], random: Random) -> None:
    shuffled = list(parts)
    random.shuffle(shuffled)
    assert Metrics.total(shuffled) == Metrics.total(parts)


def test_regression_has_a_loss_but_no_accuracy() -> None:
    both = Metrics(3.0, None, 2) + Metrics(1.0, None, 2)
    assert both == Metrics.total([Metrics(3.0, None, 2), Metrics(1.0, None, 2)]) == Metrics(4.0, None, 4)
    assert both.loss == 1.0
    assert both.accuracy is None


def test_metrics_of_no_samples_have_neither_loss_nor_accuracy_and_change_no_total() -> None:
    nothing = Metrics.total([])
    assert math.isnan(nothing.loss)
    assert nothing.accuracy is None
    assert nothing + Metrics(2.0, 3, 4) == Metrics(2.0, 3, 4)
    assert Metrics(2.0, 3, 4).accuracy == 0.75
