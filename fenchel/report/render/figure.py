"""Static plot of the main curves, for documents."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fenchel.report import figure_names, summary
from fenchel.report.curves import axes_of, curves_of_all, known_figures, main_figures
from fenchel.report.formatting import printable
from fenchel.report.groups import Band, bands_of, groups_of
from fenchel.report.render.canvas import COLORS, canvas
from fenchel.report.run import Run

_DASHES = ("-", "--", ":", "-.")


def draw(runs: Sequence[Run], path: Path, axis: str = "round", optima: Sequence[float | None] = ()) -> Path:
    """Plot the main metrics of runs (:func:`fenchel.report.curves.main_figures`), with one chart for each metric.

    Parameters
    ----------
    runs
        Runs to plot, each as a line in every chart. Runs that differ only in their seed form one line with a band.
    path
        Path of the PNG file. Missing parent folders are created.
    axis
        Quantity of the horizontal axis, one of :data:`fenchel.report.curves.AXES`. Runs that lack it are omitted.
    optima
        Minimum of each run's objective (:mod:`fenchel.report.optimum`), or ``None`` where it is unknown. Known minima
        add a chart of the optimality gap.

    Returns
    -------
    Path
        ``path``.
    """
    groups = groups_of(runs)
    bands = bands_of(groups, runs, optima) or [Band(each, {}, {}) for each in curves_of_all(runs, optima)]
    names = [group.name for group in groups] or summary.labels(runs)
    curves = [band.curves for band in bands]
    shown = main_figures(known_figures([each for each in curves if axis in each.costs]))
    title = axes_of(curves).get(axis, axis)
    with canvas(path, (4.4 * len(shown), 3.1)) as figure:
        from matplotlib.lines import Line2D
        from matplotlib.ticker import EngFormatter, FuncFormatter, MaxNLocator

        styles: list[dict[str, Any]] = [
            {
                "color": COLORS[index % len(COLORS)],
                "linestyle": _DASHES[index // len(COLORS) % len(_DASHES)],
                "linewidth": 1.8,
            }
            for index in range(len(names))
        ]
        for axes, name in zip(figure.subplots(1, len(shown), squeeze=False)[0], shown, strict=True):
            for each, band, style in zip(curves, bands, styles, strict=True):
                if name not in each.figures or axis not in each.costs:
                    continue
                values = each.figures[name]
                known = np.isfinite(values)
                if name in band.low:
                    edges = (band.low[name][known], band.high[name][known])
                    axes.fill_between(each.costs[axis][known], *edges, color=style["color"], alpha=0.2, linewidth=0)
                marker = "o" if known.sum() == 1 else None
                axes.plot(each.costs[axis][known], values[known], marker=marker, **style)
            axes.set_title(figure_names.title(name))
            axes.set_xlabel(title)
            axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=axis == "round", min_n_ticks=1))
            if axis in ("bytes", "socket"):
                axes.xaxis.set_major_formatter(EngFormatter(unit="B", sep=" "))
            # An optimum above the objective leaves no gap that a logarithmic axis could show.
            if figure_names.is_gap(name) and any((np.asarray(line.get_ydata()) > 0).any() for line in axes.lines):
                axes.set_yscale("log", nonpositive="mask")
                axes.minorticks_off()
                axes.yaxis.set_major_formatter(FuncFormatter(lambda gap, _: f"{gap:g}"))
            if figure_names.is_share(name):
                axes.yaxis.set_major_formatter(FuncFormatter(lambda share, _: f"{100 * share:.3g}%"))
        if len(runs) > 1:
            # An automatic legend omits labels with a leading underscore, so the legend lists all lines explicitly.
            drawn = [number for number, each in enumerate(curves) if axis in each.costs]
            lines = [Line2D([], [], **styles[number]) for number in drawn]
            labels = [printable(names[number]) for number in drawn]
            figure.legend(lines, labels, loc="outside lower left", ncols=4, frameon=False)
    return path
