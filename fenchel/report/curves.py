"""Curves of a run's figures against cumulative costs: rounds, seconds, bytes, epsilon."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fenchel.report import columns, figure_names, summary
from fenchel.report.columns import Floats
from fenchel.report.run import Run

OPTIMALITY_GAP = "optimality_gap"
"""Figure that is in no table: the objective minus an optimum given by the user."""

AXES: Mapping[str, str] = {
    "round": "Rounds",
    "seconds": "Seconds",
    "bytes": "Bytes",
    "socket": "Socket bytes",
    "epsilon": "Epsilon",
}
"""Costs on the horizontal axis, with their labels."""

_MEANINGS: Mapping[str, str] = {
    "round": "round",
    "seconds": "seconds of training",
    "bytes": "bytes on the wire",
    "socket": "bytes on the sockets",
}
_EPSILONS = ("epsilon_pld", "epsilon_rdp", "epsilon_paper")

_QUALITY = ("test_accuracy", "train_accuracy", "test_loss", "train_loss")


@dataclass(frozen=True)
class Curves:
    """Figures and cumulative costs of the m rounds of a run.

    Attributes
    ----------
    costs
        Cumulative costs known for all rounds, by the names of :data:`AXES`, each of shape (m,).
    epsilon
        Name of the figure in ``costs["epsilon"]``; empty if there is none.
    figures
        Figures known for any round, each of shape (m,), with nan for other rounds.
    """

    costs: dict[str, Floats]
    epsilon: str
    figures: dict[str, Floats]


def curves_of(run: Run, optimum: float | None = None) -> Curves:
    """Return the figures of a run's rounds and their costs.

    Parameters
    ----------
    run
        The run.
    optimum
        Optimum of the run's objective, such as that of ``fenchel solve``, for the figure ``optimality_gap``.
    """
    metrics = run.steady.metrics
    wire = columns.column(metrics, "wire_down") + columns.column(metrics, "wire_up")
    socket = columns.column(metrics, "socket_down") + columns.column(metrics, "socket_up")
    costs = {
        "round": columns.column(metrics, "round"),
        "seconds": np.cumsum(np.nan_to_num(columns.column(metrics, "seconds"))),
        "bytes": np.cumsum(np.nan_to_num(wire)),
    }
    if np.isfinite(socket).all():  # a total that lacks rounds would be misleading
        costs["socket"] = np.cumsum(socket)
    figures = {name: columns.column(metrics, name) for name in summary.drawn_figures(run)}
    epsilon = next((name for name in _EPSILONS if name in figures), "")
    if epsilon:
        costs["epsilon"] = figures[epsilon]
    main = figure_names.objective(figures)
    if optimum is not None and main in figures:
        figures[OPTIMALITY_GAP] = figures[main] - optimum
    return Curves(costs, epsilon, figures)


def curves_of_all(runs: Sequence[Run], optima: Sequence[float | None] = ()) -> list[Curves]:
    """Return the curves of several runs. ``optima`` has an optimum for each run, or is empty."""
    return [curves_of(run, optimum) for run, optimum in zip(runs, optima or [None] * len(runs), strict=True)]


def axes_of(curves: Sequence[Curves]) -> dict[str, str]:
    """Return the axes that are known for any run, with their titles."""
    known = [name for name in AXES if any(name in each.costs and each.costs[name].size for each in curves)]
    epsilons = {each.epsilon for each in curves if each.epsilon}
    named = figure_names.title(epsilons.pop()) if len(epsilons) == 1 else "Epsilon, each by its own accountant"
    epsilon = named.replace("Epsilon", "epsilon")
    return {name: _MEANINGS.get(name, epsilon) for name in known}


def known_figures(curves: Sequence[Curves]) -> list[str]:
    """Return the figures that are known for any run, in the order of the tables."""
    return list(dict.fromkeys(name for each in curves for name in each.figures))


def main_figures(known: Collection[str]) -> list[str]:
    """Return the names of the figures to plot, at most four.

    The first are the objective and one AUC, accuracy or loss of the model, or two of different kinds without an
    objective. A figure of the worst client and a gap follow if they are known.
    """
    found: list[str] = []
    for name in (figure_names.objective(known), "test_auc", *_QUALITY):
        if name in known and not any(name.rpartition("_")[2] == other.rpartition("_")[2] for other in found):
            found.append(name)
    found = found[:2] or ["objective"]
    worst = next((name for name in ("client_accuracy_worst", "worst_client_loss") if name in known), None)
    gap = next((name for name in (OPTIMALITY_GAP, "gap") if name in known), None)
    return [*found, *(name for name in (worst, gap) if name is not None)]
