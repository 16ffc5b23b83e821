"""The figures: gaps and losses against rounds, a panel for each lambda."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

import fenchel
from benchmarks.hyfdca_breast_cancer.presets import Case
from benchmarks.hyfdca_breast_cancer.runs import LAMBDAS, gaps
from fenchel.common.arrays import Vector
from fenchel.report.render.canvas import COLORS, LOGARITHMIC, canvas

if TYPE_CHECKING:
    from matplotlib.lines import Line2D

_BLUE, _ORANGE, _GREEN, _PURPLE, *_ = COLORS


@dataclass(frozen=True)
class Curve:
    """A line of a chart, with values at x = 1, 2 and so on."""

    label: str
    color: str
    values: Vector
    width: float = 1.4
    dashes: str = "-"


def draw_gaps(table: Mapping[Case, Sequence[fenchel.Run]], path: Path) -> None:
    """Draw the gaps of all runs of the first table."""
    colors = {"paper": _ORANGE, "safe": _GREEN, "linesearch": _BLUE}
    panels: list[list[Curve]] = [[] for _ in LAMBDAS]
    for case, runs in table.items():
        label = f"{case.preset}, H {case.picks or 'all'}" + (f" ({len(runs)} seeds)" if len(runs) > 1 else "")
        width = 1.4 if len(runs) == 1 else 0.7
        panel = panels[LAMBDAS.index(case.l2)]
        panel += [Curve(label, colors[case.preset], gaps(run)[1:], width) for run in runs]
    _draw(panels, path, "duality gap", (3e-6, 3), logarithmic=True)


def draw_losses(losses: Mapping[str, Sequence[Vector]], path: Path) -> None:
    """Draw each algorithm's error of the objective."""
    colors = dict(zip(losses, (_BLUE, _ORANGE, _GREEN, _PURPLE), strict=True))
    panels = [
        [
            Curve(name, colors[name], curves[place], dashes="--" if name == "hyfem-like" else "-")
            for name, curves in losses.items()
        ]
        for place in range(len(LAMBDAS))
    ]
    _draw(panels, path, "relative error of the objective", (1e-9, 20), logarithmic=False)


def _draw(
    panels: Sequence[Sequence[Curve]], path: Path, label: str, limits: tuple[float, float], *, logarithmic: bool
) -> None:
    """Draw one panel for each lambda, with a logarithmic axis of values, and perhaps of rounds."""
    from matplotlib.ticker import FuncFormatter, LogLocator

    with canvas(path, (10.4, 3.4), LOGARITHMIC) as figure:
        lines: dict[str, Line2D] = {}
        for place, axes in enumerate(figure.subplots(1, len(panels), sharex=True, sharey=True)):
            for curve in panels[place]:
                rounds = np.arange(1, len(curve.values) + 1)
                # Rounding may go below 0.
                shown = np.where(curve.values > 0, curve.values, np.finfo(float).tiny)
                (line,) = axes.plot(rounds, shown, curve.dashes, color=curve.color, linewidth=curve.width)
                lines.setdefault(curve.label, line)
            axes.set_title(f"λ = {LAMBDAS[place]:g}")
            axes.set_yscale("log")
            axes.set_ylim(*limits)
            axes.yaxis.set_major_locator(LogLocator(100 if limits[0] < 1e-7 else 10))
            axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: _power(value)))
            axes.set_xlabel("rounds")
            if logarithmic:
                axes.set_xscale("log")
                axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
            if place == 0:
                axes.set_ylabel(label)
        names = list(lines)
        figure.legend(list(lines.values()), names, loc="outside lower left", ncols=len(names), frameon=False)


def _power(value: float) -> str:
    """Return a power of ten as people write it."""
    digits = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
    exponent = round(math.log10(value))
    return "1" if exponent == 0 else "10" + str(exponent).translate(digits)
