"""Names of figures: titles, kinds and ranges."""

from __future__ import annotations

import math
from collections.abc import Collection

_KINDS = {"loss": "Loss", "accuracy": "Accuracy", "auc": "AUC", "auc_error": "AUC error bound"}
SHARED_CHARTS = {
    **{
        heading: {split: f"{split}_{kind}" for split in ("train", "test", "holdout")}
        for kind, heading in _KINDS.items()
    },
    "Client accuracy": {
        "worst": "client_accuracy_worst",
        "worst tenth": "client_accuracy_worst_tenth",
        "mean": "client_accuracy_mean",
    },
}
"""Figures that one chart shows together, by the chart's title and the figure's label."""


def objective(known: Collection[str]) -> str:
    """Return the name of the column of the objective, from the evaluation or otherwise from the algorithm.

    If a model is encrypted until the end, the server cannot evaluate it, but the algorithm may report an objective.
    """
    return "primal_objective" if "objective" not in known and "primal_objective" in known else "objective"


_TITLES = {
    "uniform_objective": "Objective, all clients alike",
    "privacy_uploads": "Uploads of a client, at most",
    "epsilon_round": "Epsilon of one upload, had it used all samples",
    "epsilon_paper": "Epsilon claimed by the paper's formula (no guarantee)",
    "epsilon_pld": "Epsilon of all uploads (PLD)",
    "epsilon_rdp": "Epsilon of all uploads (RDP)",
}


def title(figure: str) -> str:
    """Return the title of a figure, such as ``Test accuracy``."""
    words = figure.replace("_", " ").capitalize().replace(" auc", " AUC").replace("AUC error", "AUC error bound")
    return _TITLES.get(figure, words)


def is_gap(figure: str) -> bool:
    """Return True if a figure decreases to zero over many orders of magnitude, and needs a logarithmic axis."""
    return figure == "gap" or figure.endswith("_gap")


def is_share(figure: str) -> bool:
    """Return True if a figure is between 0 and 1, and is shown as a percentage."""
    return figure.endswith("accuracy") or figure.startswith("client_accuracy_") or is_ranking(figure)


def is_ranking(figure: str) -> bool:
    """Return True if a figure measures the ranking of samples, so that small differences matter."""
    return figure.endswith(("_auc", "_auc_error", "_average_precision"))


def range_of(figure: str, *, signed_losses: bool) -> tuple[float, float]:
    """Return the smallest and largest possible value of a figure, infinite where they are not known.

    Parameters
    ----------
    signed_losses
        Whether the losses may be negative, as those of an objective from outside Fenchel.
    """
    if is_share(figure):
        return 0.0, 1.0
    is_loss = figure.endswith("_loss") or figure in ("objective", "uniform_objective", "primal_objective")
    return 0.0 if is_loss and not signed_losses else -math.inf, math.inf
