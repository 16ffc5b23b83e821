"""The table as bars: how long a round of each system takes, on a logarithmic scale."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.peers.table import Measured
from fenchel.report.formatting import seconds_text
from fenchel.report.render.canvas import COLORS, INK, LOGARITHMIC, canvas

_OURS, _OTHERS = COLORS[0], "#c3c9d0"


def draw(measured: Mapping[int, Sequence[Measured]], of: str, path: Path) -> None:
    """Draw a panel for each size, a bar for each system, and a line from its quickest turn to its slowest.

    measured: by the length of the vector; the same systems in each.
    of: the system whose bars, and those of its variants, stand out.
    """
    systems = len(next(iter(measured.values())))
    style = {**LOGARITHMIC, "axes.grid.axis": "x"}
    with canvas(path, (10.0, 1.2 + 0.36 * systems), style) as figure:
        panels = figure.subplots(1, len(measured), sharey=True, squeeze=False)[0]
        for axes, (floats, ours) in zip(panels, measured.items(), strict=True):
            milliseconds = [1e3 * each.median for each in ours]
            colors = [_OURS if each.system.startswith(of) else _OTHERS for each in ours]
            axes.barh(range(systems), milliseconds, color=colors, height=0.62)
            for place, (each, value) in enumerate(zip(ours, milliseconds, strict=True)):
                low, high = (1e3 * end(each.medians) for end in (min, max))
                axes.plot([low, high], [place, place], color=INK, linewidth=1.2)
                axes.annotate(f"  {seconds_text(value / 1e3)}", (high, place), va="center", fontsize=8)
            axes.set_xscale("log")
            axes.set_xlim(left=1.0, right=max(milliseconds) * 12)
            axes.set_xticks(ticks := [10.0**power for power in range(5)], [f"{tick:,g}" for tick in ticks])
            axes.set_yticks(range(systems), [each.system for each in ours])
            axes.set_title(f"{floats:,} float32, four clients")
            axes.set_xlabel("milliseconds a round")
        panels[0].invert_yaxis()
