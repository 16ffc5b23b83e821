"""Every figure has a point for each round, at what the rounds so far cost."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from fenchel.report.curves import OPTIMALITY_GAP, axes_of, curves_of, main_figures
from fenchel.report.run import Run


def test_costs_are_those_of_all_rounds_so_far(finished: Run) -> None:
    costs = curves_of(finished).costs
    metrics = finished.metrics
    assert list(costs) == ["round", "seconds", "bytes"]
    np.testing.assert_allclose(costs["seconds"], metrics["seconds"].cumsum())
    np.testing.assert_allclose(costs["bytes"], (metrics["wire_down"] + metrics["wire_up"]).cumsum())


def test_bytes_of_sockets_are_an_axis_only_where_every_round_counted_them(altered: Callable[..., Run]) -> None:
    known = altered("known", metrics={"socket_down": [1.0, 2.0, 3.0], "socket_up": [10.0, 20.0, 30.0]})
    assert curves_of(known).costs["socket"].tolist() == [11.0, 33.0, 66.0]
    partly = altered("partly", metrics={"socket_down": [1.0, math.nan, 3.0], "socket_up": [1.0, 1.0, 1.0]})
    assert "socket" not in curves_of(partly).costs


def test_epsilon_is_that_of_the_tightest_accountant_and_the_axis_says_so(altered: Callable[..., Run]) -> None:
    both = {"epsilon_paper": [0.1, 0.2, 0.3], "epsilon_pld": [1.0, 1.5, 2.0], "epsilon_rdp": [2.0, 3.0, 4.0]}
    curves = curves_of(altered("both", metrics=both))
    assert curves.costs["epsilon"].tolist() == [1.0, 1.5, 2.0]
    assert axes_of([curves])["epsilon"] == "epsilon of all uploads (PLD)"
    paper = curves_of(altered("paper", metrics={"epsilon_paper": [0.1, 0.2, 0.3]}))
    assert "no guarantee" in axes_of([paper])["epsilon"]
    assert axes_of([curves, paper])["epsilon"] == "epsilon, each by its own accountant"


def test_an_optimum_makes_every_objective_a_gap(finished: Run) -> None:
    curves = curves_of(finished, optimum=0.25)
    np.testing.assert_allclose(curves.figures[OPTIMALITY_GAP], finished.metrics["objective"] - 0.25)
    assert OPTIMALITY_GAP not in curves_of(finished).figures


def test_the_main_figures_are_of_different_kinds() -> None:
    known = ["objective", "test_auc", "test_accuracy", "train_accuracy", "worst_client_loss", "gap"]
    assert main_figures(known) == ["objective", "test_auc", "worst_client_loss", "gap"]
    assert main_figures([]) == ["objective"]
