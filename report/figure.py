"""A still picture of the main curves, for documents."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from report import columns, digest
from report.run import Run
from report.wording import plain

_MAIN = ("test_accuracy", "train_accuracy", "test_loss", "train_loss")
_COLORS = ("#1f62a8", "#c2501a", "#15806a", "#8447a0", "#9a7000", "#2b92bd", "#b02a62", "#68727e")
_DASHES = ("-", "--", ":", "-.")
_INK, _SOFT, _LINE = "#1c2127", "#5f6873", "#e5e7ea"
STYLE = {
    "font.size": 9,
    "text.color": _INK,
    "text.parse_math": False,  # a "$" in a run's name is a "$"
    "axes.edgecolor": _LINE,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.labelcolor": _SOFT,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 10,
    "axes.titleweight": "bold",
    "grid.color": _LINE,
    "xtick.color": _SOFT,
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "ytick.color": _SOFT,
}


def draw(runs: Sequence[Run], path: Path) -> Path:
    """Draw the objective, the accuracy (or the loss), and the gap if there is one, against rounds.

    Parameters
    ----------
    runs
        One or several; each is a line in every chart.
    path
        Of the PNG file; folders above it are made.

    Returns
    -------
    Path
        The same ``path``.
    """
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    shown = _shown(runs)
    with rc_context(STYLE):  # type: ignore[arg-type]  # the stubs know only literal keys
        figure = Figure(figsize=(4.4 * len(shown), 3.1), layout="constrained")
        FigureCanvasAgg(figure)
        for axes, name in zip(figure.subplots(1, len(shown), squeeze=False)[0], shown, strict=True):
            for index, (run, label) in enumerate(zip(runs, digest.labels(runs), strict=True)):
                values = digest.column(run.metrics_table, name)
                known = np.isfinite(values)
                axes.plot(
                    digest.column(run.metrics_table, "round")[known],
                    values[known],
                    color=_COLORS[index % len(_COLORS)],
                    linestyle=_DASHES[index // len(_COLORS) % len(_DASHES)],
                    marker="o" if known.sum() == 1 else None,
                    linewidth=1.8,
                    label=plain(label),
                )
            axes.set_title(columns.title(name))
            axes.set_xlabel("round")
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
            if columns.is_gap(name):
                axes.set_yscale("log", nonpositive="mask")
                axes.minorticks_off()
                axes.yaxis.set_major_formatter(FuncFormatter(lambda gap, _: f"{gap:g}"))
            if columns.is_share(name):
                axes.yaxis.set_major_formatter(FuncFormatter(lambda share, _: f"{100 * share:.3g}%"))
        if len(runs) > 1:
            # A leading underscore would hide a run from an automatic legend, so the lines are named explicitly.
            lines = figure.axes[0].get_lines()
            names = [str(line.get_label()) for line in lines]
            figure.legend(lines, names, loc="outside lower left", ncols=4, frameon=False)
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, format="png", dpi=200, metadata={"Software": None})
    return path


def _shown(runs: Sequence[Run]) -> list[str]:
    """Return the figures to draw: the first two of the main ones that some run knows, of different kinds; the gap."""
    known = {name for run in runs for name in digest.drawn_figures(run)}
    shown: list[str] = []
    for name in (columns.objective(known), *_MAIN):
        if name in known and not any(name.rpartition("_")[2] == other.rpartition("_")[2] for other in shown):
            shown.append(name)
    return (shown[:2] or ["objective"]) + (["gap"] if "gap" in known else [])
