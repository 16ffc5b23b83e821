"""Bar chart of a run's projected durations over several links, by parts of the time."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fenchel.common.storage.time_parts import TIME_PARTS
from fenchel.report.formatting import seconds_text
from fenchel.report.projection.projection import Projection
from fenchel.report.render.canvas import STYLE, canvas

_COLORS = {
    "compute": "#1f62a8",
    "encryption": "#8447a0",
    "coding": "#2b92bd",
    "serialisation": "#9a7000",
    "propagation": "#c2501a",
    "queueing": "#b02a62",
    "away": "#1c2127",
    "waiting": "#15806a",
    "server": "#68727e",
    "evaluation": "#c3c9d0",
}


def draw_projections(projections: Sequence[tuple[str, Projection]], path: Path, *, title: str) -> Path:
    """Draw a bar for each link, stacked from the parts of the rounds' time and the evaluations.

    Parameters
    ----------
    projections
        Name of each link and the run's projection to that link, from top to bottom.
    path
        Path of the PNG file. Missing parent folders are created.
    """
    with canvas(path, (7.5, 1.5 + 0.38 * len(projections)), {**STYLE, "axes.grid.axis": "x"}) as figure:
        axes = figure.subplots()
        places = range(len(projections))
        starts = [0.0] * len(projections)
        for part in (*TIME_PARTS, "evaluation"):
            widths = [_seconds(projection, part) for _, projection in projections]
            if any(widths):
                axes.barh(places, widths, left=starts, color=_COLORS[part], label=part, height=0.62)
                starts = [start + width for start, width in zip(starts, widths, strict=True)]
        for place, (_, projection) in enumerate(projections):
            words = f" {seconds_text(projection.total)}"
            axes.annotate(words, (starts[place], place), va="center", fontsize=8)
        axes.set_yticks(places, [name for name, _ in projections])
        axes.invert_yaxis()
        axes.set_axisbelow(True)
        axes.margins(x=0.1)
        axes.set_title(title)
        axes.set_xlabel("seconds")
        figure.legend(frameon=False, loc="outside lower center", ncols=5)
    return path


def _seconds(projection: Projection, part: str) -> float:
    if part == "evaluation":
        return float(projection.evaluation.sum())
    return max(float(getattr(projection.parts, part)), 0.0)
