"""Heat map of a partition: the number of samples of each class at each client."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fenchel.common.data.table import PartitionTable
from fenchel.report.formatting import count_text
from fenchel.report.render.canvas import canvas

_INK = "#1b2a3a"
_MOST_NUMBERS = 30
"""Largest number of clients for which cells are wide enough for numbers."""
_MOST_NAMES = 40
"""Largest number of classes whose names do not overlap."""


def draw(table: PartitionTable, path: Path) -> None:
    """Draw a heat map of the counts as a PNG file, below a bar chart of the clients' sizes."""
    classes, clients = table.counts.shape
    total, places = table.counts.sum(axis=0), np.arange(clients)
    rows = 0.36 * min(classes, _MOST_NAMES) + 0.2
    size = (float(np.clip(0.55 * clients + 2.6, 6.0, 15.0)), rows + 2.3)
    with canvas(path, size, style={}, dpi=150) as figure:
        from matplotlib.colors import PowerNorm
        from matplotlib.ticker import MaxNLocator, StrMethodFormatter

        sizes, cells = figure.subplots(2, 1, sharex=True, height_ratios=[1.1, rows])

        sizes.set_title(_heading(table), loc="left", color=_INK, fontsize=11, fontweight="bold", pad=10)
        bars = sizes.bar(places, total, color="#3b6ea5")
        if table.positives is not None and table.rates is not None:
            sizes.bar(places, table.positives, color="#c2571a")
            if clients <= _MOST_NUMBERS:
                sizes.margins(y=0.2)
                sizes.bar_label(bars, [f"{rate:.1%}" for rate in table.rates], fontsize=7, color="#c2571a", padding=2)
        sizes.set_ylabel("samples", color=_INK)
        sizes.yaxis.set_major_locator(MaxNLocator(3, integer=True))
        sizes.yaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
        sizes.grid(axis="y", color="#e4e8ed", linewidth=0.8)
        sizes.set_axisbelow(True)

        # An exponent below 1 keeps a class with few samples visible.
        norm = PowerNorm(0.5, vmin=0, vmax=max(int(table.counts.max()), 1))
        image = cells.imshow(table.counts, aspect="auto", cmap="Blues", norm=norm, interpolation="nearest")
        names = [name if len(name) <= 16 else name[:15] + "…" for name in table.marked_names]
        cells.set_yticks(np.arange(classes), labels=names)
        if classes > _MOST_NAMES:
            cells.yaxis.set_major_locator(MaxNLocator(10, integer=True))
        cells.set_ylabel("class", color=_INK)
        cells.set_xlabel("client", color=_INK)
        if clients > _MOST_NUMBERS:
            cells.xaxis.set_major_locator(MaxNLocator(10, integer=True))
            figure.colorbar(image, ax=cells, pad=0.01, fraction=0.025, label="samples of the class")
        else:
            cells.set_xticks(places)
            for (row, column), count in np.ndenumerate(table.counts):
                ink = "white" if float(norm(int(count))) > 0.6 else _INK
                if count:
                    cells.text(column, row, str(count), ha="center", va="center", fontsize=7.5, color=ink)
        for axes in (sizes, cells):
            axes.tick_params(labelcolor=_INK, length=0)
            axes.spines[:].set_visible(False)
        sizes.tick_params(labelbottom=False)


def _heading(table: PartitionTable) -> str:
    total = table.counts.sum(axis=0)
    least, most = int(total.min()), int(total.max())
    sizes = f"{least:,}" if least == most else f"{least:,} to {most:,}"
    space = "\n" if len(table.title) > 24 else " "  # a longer title leaves no space for the sizes on its line
    return f"{table.title}:{space}{count_text(len(total), 'client')} of {sizes} samples"
