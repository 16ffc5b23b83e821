"""How many samples of each class each client holds, as a picture."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fenchel.common.data.table import PartitionTable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Normalize
    from matplotlib.image import AxesImage

_INK = "#1b2a3a"
_POSITIVE = "#c2571a"

_LONG_TITLE = 24
"""Beside a longer title there is no room for the sizes."""

_MOST_NUMBERS = 30
"""With more clients than this the cells are too narrow for numbers."""

_MOST_NAMES = 40
"""With more classes than this their names would overlap."""


def draw(table: PartitionTable, path: Path) -> None:
    """Draw a table as a PNG: a heat map of the counts under a bar for the size of each client."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    classes, clients = table.counts.shape
    width = float(np.clip(0.55 * clients + 2.6, 6.0, 15.0))
    rows = 0.36 * min(classes, _MOST_NAMES) + 0.2
    # Not pyplot: a figure of its own leaves no global state behind.
    figure = Figure(figsize=(width, rows + 2.3))
    figure.set_layout_engine("constrained", w_pad=0.12, h_pad=0.12)
    FigureCanvasAgg(figure)
    sizes_axes, counts_axes = figure.subplots(2, 1, sharex=True, height_ratios=[1.1, rows])
    _draw_sizes(sizes_axes, table)
    sizes_axes.set_title(_heading(table), loc="left", color=_INK, fontsize=11, fontweight="bold", pad=10)
    image = _draw_counts(counts_axes, table)
    if clients > _MOST_NUMBERS:
        _draw_scale(counts_axes, image)
    for axes in (sizes_axes, counts_axes):
        axes.tick_params(labelcolor=_INK, length=0)
        for spine in axes.spines.values():
            spine.set_visible(False)
    sizes_axes.tick_params(labelbottom=False)
    figure.align_ylabels([sizes_axes, counts_axes])
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150, format="png")


def _draw_sizes(axes: Axes, table: PartitionTable) -> None:
    """Draw a bar for the samples of each client, with its positive ones in another colour."""
    from matplotlib.ticker import MaxNLocator, StrMethodFormatter

    total = table.counts.sum(axis=0)
    axes.bar(np.arange(len(total)), total, width=0.8, color="#3b6ea5", linewidth=0)
    positives, rates = table.positives, table.rates
    if positives is not None and rates is not None:
        bars = axes.bar(np.arange(len(total)), positives, width=0.8, color=_POSITIVE, linewidth=0)
        if len(total) <= _MOST_NUMBERS:
            axes.margins(y=0.2)
            for bar, size, rate in zip(bars, total, rates, strict=True):
                axes.annotate(
                    f"{rate:.1%}",
                    (bar.get_x() + bar.get_width() / 2, size),
                    (0, 2),
                    textcoords="offset points",
                    ha="center",
                    fontsize=7,
                    color=_POSITIVE,
                )
    axes.set_ylabel("samples", color=_INK)
    axes.yaxis.set_major_locator(MaxNLocator(3, integer=True))
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    axes.grid(axis="y", color="#e4e8ed", linewidth=0.8)
    axes.set_axisbelow(True)


def _draw_counts(axes: Axes, table: PartitionTable) -> AxesImage:
    """Draw the samples of each class (rows) on each client (columns), with numbers where there is room."""
    from matplotlib.colors import PowerNorm
    from matplotlib.ticker import MaxNLocator

    classes, clients = table.counts.shape
    # A power below one keeps a few samples of a class visible beside many.
    norm = PowerNorm(0.5, vmin=0, vmax=max(int(table.counts.max()), 1))
    image = axes.imshow(table.counts, aspect="auto", cmap="Blues", norm=norm, interpolation="nearest")
    axes.set_yticks(np.arange(classes), labels=[_short(name) for name in table.marked_names])
    if classes > _MOST_NAMES:
        axes.yaxis.set_major_locator(MaxNLocator(10, integer=True))
    axes.set_ylabel("class", color=_INK)
    axes.set_xlabel("client", color=_INK)
    numbers = clients <= _MOST_NUMBERS
    if numbers:
        axes.set_xticks(np.arange(clients))
        _write_numbers(axes, table.counts, norm)
    else:
        axes.xaxis.set_major_locator(MaxNLocator(10, integer=True))
    for edge in np.arange(0.5, classes - 1):
        axes.axhline(edge, color="white", linewidth=1)
    for edge in np.arange(0.5, clients - 1) if clients <= 150 else ():
        axes.axvline(edge, color="white", linewidth=1 if numbers else 0.5)
    return image


def _write_numbers(axes: Axes, counts: NDArray[np.int64], norm: Normalize) -> None:
    for (row, column), count in np.ndenumerate(counts):
        if count:
            dark = float(norm(int(count))) > 0.6
            axes.text(column, row, str(count), ha="center", va="center", fontsize=7.5, color="white" if dark else _INK)


def _draw_scale(axes: Axes, image: AxesImage) -> None:
    """Draw what the colours mean, where there are no numbers."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    figure = axes.figure
    assert isinstance(figure, Figure)
    bar = figure.colorbar(image, ax=axes, pad=0.01, fraction=0.025)
    bar.set_label("samples of the class", color=_INK)
    bar.outline.set_visible(False)
    bar.ax.tick_params(labelcolor=_INK, length=0)
    bar.ax.yaxis.set_major_locator(MaxNLocator(4, integer=True))


def _heading(table: PartitionTable) -> str:
    total = table.counts.sum(axis=0)
    least, most = int(total.min()), int(total.max())
    sizes = f"{least:,}" if least == most else f"{least:,} to {most:,}"
    clients = "1 client" if len(total) == 1 else f"{len(total):,} clients"
    space = "\n" if len(table.title) > _LONG_TITLE else " "
    return f"{table.title}:{space}{clients} of {sizes} samples"


def _short(name: str) -> str:
    return name if len(name) <= 16 else name[:15] + "…"
