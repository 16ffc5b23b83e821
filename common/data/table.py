"""How many samples of each class each client holds: as numbers, and as a picture."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from common.data.source import DataSource
from common.settings.data import DataSettings

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Normalize

_INK = "#1b2a3a"
_POSITIVE = "#c2571a"

_LONG_TITLE = 24
"""Beside a longer title there is no room for the sizes."""

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
    positive
        Whether a class counts as positive, shape (classes,); ``None`` if nobody said which do.
    left_out
        Number of training samples that no client holds.
    """

    title: str
    class_names: tuple[str, ...]
    counts: NDArray[np.int64]
    features: NDArray[np.int64]
    positive: NDArray[np.bool_] | None = None
    left_out: int = 0

    @property
    def marked_names(self) -> tuple[str, ...]:
        """Names of the classes, with a plus sign after those that count as positive."""
        if self.positive is None:
            return self.class_names
        return tuple(
            f"{name} +" if positive else name
            for name, positive in zip(self.class_names, self.positive, strict=True)
        )

    @property
    def shared_classes(self) -> int:
        """Number of classes of which several clients hold samples."""
        return int(((self.counts > 0).sum(axis=1) > 1).sum())

    @property
    def positives(self) -> NDArray[np.int64] | None:
        """Number of positive samples on each client, shape (clients,); ``None`` if nobody said which classes are."""
        return None if self.positive is None else self.counts[self.positive].sum(axis=0)

    @property
    def rates(self) -> NDArray[np.float64] | None:
        """Part of each client's samples that is positive, its imratio, shape (clients,)."""
        found = self.positives
        return None if found is None else found / self.counts.sum(axis=0)


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
        title=_title(name, settings),
        class_names=problem.class_names or ("samples",),
        counts=counts.astype(np.int64),
        features=np.array(
            [problem.features if part.features is None else len(part.features) for part in parts]
        ),
        positive=None if source.positive is None else np.isin(np.arange(classes), source.positive),
        left_out=problem.samples - len(np.unique(np.concatenate([part.samples for part in parts]))),
    )


def _title(name: str, settings: DataSettings) -> str:
    title = f"{name}, {settings.partition.kind}"
    if settings.imbalance is not None:
        of = "" if settings.imbalance.of == "client" else " of the whole"
        title += f", imratio {settings.imbalance.imratio:.3g}{of}"
    return title


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
    positives, rates = table.positives, table.rates
    if positives is not None and rates is not None:
        bars = sizes_axes.bar(np.arange(clients), positives, width=0.8, color=_POSITIVE, linewidth=0)
        if numbers:
            sizes_axes.margins(y=0.2)
            for bar, size, rate in zip(bars, total, rates, strict=True):
                place = bar.get_x() + bar.get_width() / 2
                sizes_axes.annotate(
                    f"{rate:.1%}",
                    (place, size),
                    (0, 2),
                    textcoords="offset points",
                    ha="center",
                    fontsize=7,
                    color=_POSITIVE,
                )
    sizes_axes.set_ylabel("samples", color=_INK)
    sizes_axes.yaxis.set_major_locator(MaxNLocator(3, integer=True))
    sizes_axes.yaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    sizes_axes.grid(axis="y", color="#e4e8ed", linewidth=0.8)
    sizes_axes.set_axisbelow(True)
    sizes_axes.set_title(_heading(table), loc="left", color=_INK, fontsize=11, fontweight="bold", pad=10)

    # A power below one keeps a few samples of a class visible beside many.
    norm = PowerNorm(0.5, vmin=0, vmax=max(int(table.counts.max()), 1))
    image = counts_axes.imshow(table.counts, aspect="auto", cmap="Blues", norm=norm, interpolation="nearest")
    counts_axes.set_yticks(np.arange(classes), labels=[_short(name) for name in table.marked_names])
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
    space = "\n" if len(table.title) > _LONG_TITLE else " "
    return f"{table.title}:{space}{clients} of {sizes} samples"


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
