"""How many samples of each class each client holds: as numbers, and as a picture."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from common.data.source import DataSource

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Normalize

_INK = "#1b2a3a"

_MOST_NUMBERS = 30
"""With more clients than this the cells are too narrow for numbers."""


@dataclass(frozen=True)
class PartitionTable:
    """A partition in numbers.

    Attributes
    ----------
    title
        Data set and kind of partition.
    class_names
        Name of each class; ``("samples",)`` for regression.
    counts
        Samples of each class on each client, shape (classes, clients), int64.
    features
        Number of features on each client, shape (clients,), int64.
    """

    title: str
    class_names: tuple[str, ...]
    counts: NDArray[np.int64]
    features: NDArray[np.int64]


def partition_table(source: DataSource, clients: int) -> PartitionTable:
    """Count the samples of each class on each client, held-out samples among them.

    Raises
    ------
    DataError
        If the partition is not possible.
    """
    parts = source.parts(clients)
    problem = source.problem
    classes = max(problem.classes, 1)
    labels = source.labels if problem.classes else np.zeros(problem.samples, np.int64)
    counts = np.stack([np.bincount(labels[part.samples], minlength=classes) for part in parts], axis=1)
    settings = source.settings
    name = settings.name or (settings.file.name if settings.file else "data")
    return PartitionTable(
        title=f"{name}, {settings.partition.kind}",
        class_names=problem.class_names or ("samples",),
        counts=counts.astype(np.int64),
        features=np.array(
            [problem.features if part.features is None else len(part.features) for part in parts]
        ),
    )


def draw(table: PartitionTable, path: Path) -> None:
    """Draw a table as a PNG: a heat map of the counts under a bar for the size of each client.

    Parameters
    ----------
    table
        What to draw.
    path
        The file to write.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.colors import PowerNorm
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator, StrMethodFormatter

    classes, clients = table.counts.shape
    numbers = clients <= _MOST_NUMBERS
    width = float(np.clip(0.55 * clients + 2.6, 6.0, 15.0))
    rows = 0.36 * min(classes, 40) + 0.2
    height = rows + 2.3
    # Not pyplot: a figure of its own leaves no global state behind.
    figure = Figure(figsize=(width, height))
    figure.set_layout_engine("constrained", w_pad=0.12, h_pad=0.12)
    FigureCanvasAgg(figure)
    sizes_axes, counts_axes = figure.subplots(2, 1, sharex=True, height_ratios=[1.1, rows])
    total = table.counts.sum(axis=0)

    sizes_axes.bar(np.arange(clients), total, width=0.8, color="#3b6ea5", linewidth=0)
    sizes_axes.set_ylabel("samples", color=_INK)
    sizes_axes.yaxis.set_major_locator(MaxNLocator(3, integer=True))
    sizes_axes.yaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    sizes_axes.grid(axis="y", color="#e4e8ed", linewidth=0.8)
    sizes_axes.set_axisbelow(True)
    sizes_axes.set_title(_heading(table), loc="left", color=_INK, fontsize=11, fontweight="bold", pad=10)

    # A power below one keeps a few samples of a class visible beside many.
    norm = PowerNorm(0.5, vmin=0, vmax=max(int(table.counts.max()), 1))
    image = counts_axes.imshow(table.counts, aspect="auto", cmap="Blues", norm=norm, interpolation="nearest")
    counts_axes.set_yticks(np.arange(classes), labels=[_short(name) for name in table.class_names])
    if classes > 40:
        counts_axes.yaxis.set_major_locator(MaxNLocator(10, integer=True))
    counts_axes.set_ylabel("class", color=_INK)
    counts_axes.set_xlabel("client", color=_INK)
    if numbers:
        counts_axes.set_xticks(np.arange(clients))
        _write_numbers(counts_axes, table.counts, norm)
    else:
        counts_axes.xaxis.set_major_locator(MaxNLocator(10, integer=True))
    for edge in np.arange(0.5, classes - 1):
        counts_axes.axhline(edge, color="white", linewidth=1)
    for edge in np.arange(0.5, clients - 1) if clients <= 150 else ():
        counts_axes.axvline(edge, color="white", linewidth=1 if numbers else 0.5)
    if not numbers:
        bar = figure.colorbar(image, ax=counts_axes, pad=0.01, fraction=0.025)
        bar.set_label("samples of the class", color=_INK)
        bar.outline.set_visible(False)
        bar.ax.tick_params(labelcolor=_INK, length=0)
        bar.ax.yaxis.set_major_locator(MaxNLocator(4, integer=True))
        bar.ax.yaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    for axes in (sizes_axes, counts_axes):
        axes.tick_params(labelcolor=_INK, length=0)
        for spine in axes.spines.values():
            spine.set_visible(False)
    sizes_axes.tick_params(labelbottom=False)
    figure.align_ylabels([sizes_axes, counts_axes])
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150, format="png")


def _heading(table: PartitionTable) -> str:
    total = table.counts.sum(axis=0)
    least, most = int(total.min()), int(total.max())
    sizes = f"{least:,}" if least == most else f"{least:,} to {most:,}"
    clients = "1 client" if len(total) == 1 else f"{len(total):,} clients"
    return f"{table.title}: {clients} of {sizes} samples"


def _write_numbers(axes: Axes, counts: NDArray[np.int64], norm: Normalize) -> None:
    for (row, column), count in np.ndenumerate(counts):
        if count:
            dark = float(norm(int(count))) > 0.6
            axes.text(
                column,
                row,
                str(count),
                ha="center",
                va="center",
                fontsize=7.5,
                color="white" if dark else _INK,
            )


def _short(name: str) -> str:
    return name if len(name) <= 16 else name[:15] + "…"
