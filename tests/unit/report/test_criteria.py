"""The figures that trials are compared by, against small tables worked by hand."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fenchel.common.errors import SettingsError
from fenchel.common.settings.tuning import Selection
from fenchel.report.run import Run
from fenchel.report.tuning.criteria import (
    accuracy_column,
    criteria,
    divergence,
    loss_column,
    names,
    round_trips,
    rounds_to_reach,
    volatility,
)
from tests.messages import raises

Alter = Callable[..., Run]
UNKNOWN = math.nan


def calls(*rows: tuple[int, str, str, float, float]) -> pa.Table:
    """A table of calls: round, kind, outcome, when queued, when answered."""
    rounds, kinds, outcomes, begun, ended = zip(*rows, strict=True)
    return pa.table(
        {
            "round": pa.array(rounds, pa.int32()),
            "kind": kinds,
            "outcome": outcomes,
            "queued_unix": np.array(begun, np.float64),
            "total_s": np.array(ended, np.float64) - np.array(begun, np.float64),
        }
    )


def test_questions_asked_one_after_another_are_round_trips_and_those_asked_together_are_one() -> None:
    table = calls(
        # Two clients, then one that is asked when both have answered.
        (1, "ask", "counted", 0.0, 2.0),
        (1, "ask", "counted", 0.1, 1.0),
        (1, "ask", "counted", 2.1, 3.0),
        # Two phases that overlap; the first answer of a fast client does not begin anything.
        (2, "ask", "counted", 10.0, 14.0),
        (2, "ask", "counted", 10.1, 10.2),
        (2, "ask", "counted", 10.15, 13.0),
    )
    assert round_trips(table, np.array([1.0, 2.0])).tolist() == [2.0, 1.0]


def test_only_counted_answers_of_the_rounds_themselves_are_round_trips() -> None:
    table = calls(
        (1, "tell", "told", 0.0, 1.0),
        (1, "ask", "counted", 2.0, 3.0),
        (1, "inspect", "counted", 4.0, 5.0),
        (2, "ask", "unanswered", 6.0, UNKNOWN),
        (2, "ask", "late", 6.0, 7.0),
        (3, "ask", "counted", 8.0, 9.0),
    )
    assert round_trips(table, np.array([1.0, 2.0])).tolist() == [1.0, 0.0]


@given(st.lists(st.integers(1, 5), min_size=1, max_size=6), st.floats(1e-4, 100.0), st.integers(0, 1000))
def test_so_many_phases_are_so_many_round_trips(cohorts: list[int], slowest: float, seed: int) -> None:
    """Each phase asks its clients at once, and the next begins when the last of them has answered."""
    random = np.random.default_rng(seed)
    now, rows = 1.7e9, list[tuple[int, str, str, float, float]]()
    for clients in cohorts:
        answered = now + slowest * (0.1 + 0.9 * random.random(clients))
        # Questions are queued without a pause: none has an answer before all are on their way.
        begun = now + 0.05 * slowest * np.arange(clients) / clients
        rows += [(1, "ask", "counted", float(a), float(b)) for a, b in zip(begun, answered, strict=True)]
        now = float(answered.max()) * (1 + 1e-15)
    random.shuffle(rows)
    assert round_trips(calls(*rows), np.array([1.0])).tolist() == [len(cohorts)]


def test_a_round_of_fedavg_is_one_round_trip(finished: Run) -> None:
    assert round_trips(finished.calls_table, np.array([1.0, 2.0, 3.0])).tolist() == [1.0, 1.0, 1.0]


def test_latency_is_added_to_the_measured_runtime_for_each_round_trip(altered: Alter) -> None:
    run = altered(metrics={"seconds": [1.0, 2.0, 3.0], "objective": [3.0, 2.0, 1.0]})
    counted = criteria(run, "objective", None, Selection(latencies=(0.0, 0.25)))
    stated = criteria(run, "objective", None, Selection(latencies=(0.0, 0.25), round_trips=4.5))
    assert counted.runtimes == (2.0, 2.25)
    assert stated.runtimes == (2.0, 3.125)


def test_the_figures_of_a_run_by_hand(altered: Alter) -> None:
    run = altered(metrics={"objective": [4.0, 1.0, 2.0], "test_accuracy": [0.5, 0.75, 0.625]})
    found = criteria(run, "objective", "test_accuracy", Selection(last=2))
    assert (found.loss, found.accuracy, found.rounds) == (1.5, 0.75, 2.0)
    assert found.volatility == 2.0  # differences -3 and 1
    assert len(found.values()) == len(names(Selection().latencies)) == 7
    assert found.costs()[4] == -0.75
    assert math.isnan(criteria(run, "objective", None, Selection()).accuracy)


def test_rounds_that_were_not_evaluated_are_passed_over(altered: Alter) -> None:
    run = altered(metrics={"objective": [UNKNOWN, 4.0, 1.0], "test_accuracy": [UNKNOWN, UNKNOWN, UNKNOWN]})
    found = criteria(run, "objective", "test_accuracy", Selection())
    assert (found.loss, found.rounds, found.volatility) == (2.5, 3.0, 0.0)
    assert math.isnan(found.accuracy)


@pytest.mark.parametrize(
    ("losses", "reached"),
    [([10.0, 5.0, 1.0, 0.0], 3), ([10.0, 0.0, 9.0, 5.0], 2), ([1.0, 1.0, 2.0], 3), ([5.0], 1), ([0.0, -1.0], 2)],
)
def test_rounds_to_reach_ninety_per_cent_of_the_reduction(losses: list[float], reached: int) -> None:
    assert rounds_to_reach(np.arange(1, len(losses) + 1, dtype=np.float64), np.array(losses), 0.9) == reached


@given(st.lists(st.floats(-1e300, 1e300), min_size=1), st.floats(0.01, 1.0))
@example([-9.999999999999998e299, -9.999999999999999e299], 0.5)  # next to each other
def test_the_reduction_is_reached_and_not_before(losses: list[float], share: float) -> None:
    reached = int(rounds_to_reach(np.arange(len(losses), dtype=np.float64), np.array(losses), share))
    if min(losses) < losses[0]:
        assert 0 < reached <= int(np.argmin(losses))
        assert losses[reached] < min(losses[:reached])
    else:
        assert reached == len(losses) - 1


@given(st.lists(st.integers(-1000, 1000), min_size=3, max_size=20))
def test_volatility_is_that_of_the_differences(losses: list[int]) -> None:
    differences = [after - before for before, after in pairwise(losses)]
    mean = sum(differences) / len(differences)
    variance = sum((each - mean) ** 2 for each in differences) / len(differences)
    assert volatility(np.array(losses, np.float64)) == pytest.approx(math.sqrt(variance))


def test_a_loss_that_falls_evenly_is_not_volatile() -> None:
    assert volatility(np.array([4.0, 3.0, 2.0, 1.0])) == 0


@pytest.mark.parametrize(
    ("losses", "selection", "reason"),
    [
        ([2.0, 1.0, 0.5], {}, ""),
        ([2.0, 1.0, math.inf], {}, "not finite"),
        ([2.0, math.inf, 1.0], {}, "not finite"),
        ([2.0, 1.0, UNKNOWN], {}, "not finite"),
        ([UNKNOWN, UNKNOWN, 1.0], {}, ""),
        ([1.0, 8.0, 9.0], {}, "grown from 1 to 6"),
        ([1.0, 8.0, 0.5], {"last": 1}, ""),
        ([1.0, 1.2, 1.4], {}, ""),
        ([1.0, 1.2, 1.4], {"growth": 1.1}, "grown"),
        ([-1.0, -1.5, -2.0], {}, ""),
        ([9.0, 8.0, 7.0], {"worst_loss": 2.3}, "ends at 8, above 2.3"),
    ],
)
def test_a_run_has_diverged_where_its_loss_is_not_finite_or_has_grown(
    altered: Alter, losses: list[float], selection: dict[str, Any], reason: str
) -> None:
    run = altered(metrics={"objective": losses})
    found = divergence(run, "objective", Selection(**selection))
    assert bool(found) == bool(reason)
    assert reason in found


def test_the_columns_are_the_first_that_some_run_has_values_of(altered: Alter) -> None:
    unknown = [UNKNOWN] * 3
    split = altered(
        "split", metrics={"objective": unknown, "holdout_accuracy": unknown, "primal_objective": [3.0, 2, 1]}
    )
    blown = altered("blown", metrics={"objective": unknown, "primal_objective": unknown})
    usual = altered("usual")
    assert loss_column([blown, split], "auto") == "primal_objective"
    assert loss_column([usual], "auto") == "objective"
    assert loss_column([usual], "test_loss") == "test_loss"
    assert accuracy_column([usual], "auto") == "holdout_accuracy"
    assert accuracy_column([split], "auto") == "test_accuracy"


def test_a_column_that_no_run_has_is_refused(finished: Run, altered: Alter) -> None:
    with raises(SettingsError, key="selection.loss"):
        loss_column([finished], "no_such_loss")
    with raises(SettingsError, key="selection.accuracy"):
        accuracy_column([finished], "gap")
    accuracies = [f"{split}_accuracy" for split in ("train", "test", "holdout")]
    without = altered(metrics={name: [UNKNOWN] * 3 for name in accuracies})
    assert accuracy_column([without], "auto") is None
