"""A picture of a search: what the trials cost and reach, and how the choice compares with the rest of the front."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fenchel.report.formatting import seconds_text
from fenchel.report.render.canvas import LOGARITHMIC, SOFT, canvas
from fenchel.report.tuning.trials import Verdict

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_CHOSEN, _FRONT, _OTHER = "#c2501a", "#1f62a8", "#b4bac2"
_LABELLED = 12  # trials of the front whose numbers fit into the picture
_WIDE = 20.0  # losses that span more than this factor are drawn on a logarithmic axis


def draw(verdict: Verdict, path: Path) -> Path:
    """Draw loss against runtime, and the normalised criteria of the trials on the front."""
    if verdict.choice is None:
        raise ValueError("all trials were dropped")
    with canvas(path, (10.4, 3.8), {**LOGARITHMIC, "axes.grid.axis": "both"}) as figure:
        from matplotlib.ticker import FuncFormatter, MaxNLocator

        left, right = figure.subplots(1, 2, width_ratios=(1, 1.25))
        left.xaxis.set_major_locator(MaxNLocator(6))
        _scatter(left, verdict)
        left.xaxis.set_major_formatter(FuncFormatter(lambda seconds, _: seconds_text(seconds)))
        _profiles(right, verdict)
    return path


def _scatter(axes: Axes, verdict: Verdict) -> None:
    """Draw each trial that was not dropped at its runtime and its loss."""
    assert verdict.choice is not None
    figures = [judged.criteria for judged in verdict.compared]
    runtime = np.array([each.runtimes[0] for each in figures if each is not None])
    loss = np.array([each.loss for each in figures if each is not None])
    front, best = verdict.choice.front, verdict.choice.best
    if not front.all():
        axes.scatter(runtime[~front], loss[~front], s=22, color=_OTHER, label="dominated")
    others = front & (np.arange(front.size) != best)
    if others.any():
        axes.scatter(runtime[others], loss[others], s=26, color=_FRONT, label="Pareto front")
    axes.scatter(runtime[best], loss[best], s=90, color=_CHOSEN, marker="*", zorder=3, label="chosen")
    if front.sum() <= _LABELLED:
        for index in np.flatnonzero(front):
            axes.annotate(
                str(verdict.compared[index].trial.number),
                (runtime[index], loss[index]),
                xytext=(4, 4),
                textcoords="offset points",
                color=SOFT,
                fontsize=8,
            )
    if loss.min() > 0 and loss.max() > _WIDE * loss.min():
        axes.set_yscale("log")
    axes.set_title("Loss against runtime")
    axes.set_xlabel(f"mean runtime of a round, {verdict.names[0].removeprefix('runtime_')} latency")
    axes.set_ylabel(f"{verdict.loss.replace('_', ' ')}, mean of the last rounds")
    axes.legend(frameon=False)


def _profiles(axes: Axes, verdict: Verdict) -> None:
    """Draw the normalised criteria of each trial on the front as a line."""
    assert verdict.choice is not None
    choice = verdict.choice
    names = [name for name, used in zip(verdict.names, verdict.used, strict=True) if used]
    positions = np.arange(len(names))
    for index in np.flatnonzero(choice.front):
        if index != choice.best:
            axes.plot(positions, choice.goodness[index], color=_FRONT, linewidth=1, alpha=0.35)
    chosen = verdict.compared[choice.best].trial.number
    axes.plot(
        positions,
        choice.goodness[choice.best],
        color=_CHOSEN,
        linewidth=2.2,
        marker="o",
        markersize=4,
        label=f"trial {chosen}, grade {choice.grades[choice.best]:.3f}",
    )
    axes.set_xticks(positions, [name.replace("_", "\n") for name in names])
    axes.set_ylim(-0.04, 1.04)
    axes.set_yticks([0, 0.5, 1], ["worst", "", "best"])
    axes.set_title("The front, by each criterion")
    axes.legend(frameon=False, loc="upper left", bbox_to_anchor=(0, -0.14), borderaxespad=0)
