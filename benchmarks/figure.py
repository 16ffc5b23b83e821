"""How the figures of the results pages look."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

from fenchel.report.render.canvas import LINE
from fenchel.report.render.canvas import canvas as report_canvas

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_STYLE = {"font.size": 9, "axes.grid": True, "grid.color": LINE, "axes.titlelocation": "left"}


def canvas(path: Path, size: tuple[float, float], dpi: int = 160) -> AbstractContextManager[Figure]:
    """Yield an empty figure of a results page, and write what has been drawn."""
    return report_canvas(path, size, _STYLE, dpi)
