"""The figure of the experiments about CODASCA: what is reached, against rounds and against megabytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

import fenchel
from benchmarks.figure import canvas
from benchmarks.outcome import evaluated_in_all, megabytes
from fenchel.report.render.canvas import COLORS


def draw(
    panels: Mapping[str, Mapping[str, Sequence[fenchel.Run]]],
    path: Path,
    figure: str,
    *,
    label: str,
    limits: tuple[float, float],
) -> None:
    """Draw a figure against rounds and against megabytes, both logarithmic: mean and standard deviation over seeds.

    panels: by title of a column and name of a curve, the runs of all seeds. The first half of the names is drawn
        solid.
    figure: column of the table of metrics.
    """
    from matplotlib.ticker import NullFormatter

    names = list(dict.fromkeys(name for curves in panels.values() for name in curves))
    with canvas(path, (max(7.0, 2.6 * len(panels)), 5.6), dpi=150) as picture:
        axes = picture.subplots(2, len(panels), sharey=True, squeeze=False)
        for column, (title, curves) in enumerate(panels.items()):
            for name, runs in curves.items():
                rounds, values = evaluated_in_all(runs, figure)
                sent = np.mean([megabytes(run) for run in runs], axis=0)[rounds - 1]
                mean, deviation = values.mean(axis=0), values.std(axis=0)
                place = names.index(name)
                dash = "-" if 2 * place < len(names) else "--"
                for row, across in enumerate((rounds, sent)):
                    axes[row, column].plot(across, mean, dash, color=COLORS[place], linewidth=1.4, label=name)
                    axes[row, column].fill_between(
                        across, mean - deviation, mean + deviation, color=COLORS[place], alpha=0.1, linewidth=0
                    )
            axes[0, column].set(xscale="log", title=title, xlabel="round", ylim=limits)
            axes[1, column].set(xscale="log", xlabel="MB sent")
            for row in (0, 1):
                axes[row, column].xaxis.set_major_formatter(lambda value, _: f"{value:g}")
                axes[row, column].xaxis.set_minor_formatter(NullFormatter())
        for row in (0, 1):
            axes[row, 0].set(ylabel=label)
        picture.legend(
            *axes[0, 0].get_legend_handles_labels(), frameon=False, loc="outside lower center", ncols=len(names)
        )
