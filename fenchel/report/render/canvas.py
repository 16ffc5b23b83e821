"""Style of static plots, and a context manager that writes them to PNG files."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fenchel.common.errors import MissingDependencyError
from fenchel.report.render.output import output_at

if TYPE_CHECKING:
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure
    from matplotlib.ticker import Formatter

COLORS = ("#1f62a8", "#c2501a", "#15806a", "#8447a0", "#9a7000", "#2b92bd", "#b02a62", "#68727e")
"""Colours of the curves in a plot."""

INK, SOFT, LINE = "#1c2127", "#5f6873", "#e5e7ea"
STYLE: Mapping[str, Any] = {
    "font.size": 9,
    "text.color": INK,
    "text.parse_math": False,  # the name of a run may contain a literal "$"
    "axes.edgecolor": LINE,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.labelcolor": SOFT,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 10,
    "axes.titleweight": "bold",
    "grid.color": LINE,
    "xtick.color": SOFT,
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "ytick.color": SOFT,
}
"""Matplotlib settings for plots of curves."""

LOGARITHMIC: Mapping[str, Any] = {**STYLE, "axes.axisbelow": True, "xtick.minor.size": 0, "ytick.minor.size": 0}
"""Matplotlib settings for axes with minor ticks, whose grid lies below the curves."""

_SHORT = 1e3  # ratio of the ends of a logarithmic axis below which 2 and 5 times the powers of ten are labelled, too


def can_draw() -> bool:
    """Return whether matplotlib is installed."""
    return find_spec("matplotlib") is not None


@contextmanager
def canvas(path: Path, size: tuple[float, float], style: Mapping[str, Any] = STYLE, dpi: int = 200) -> Iterator[Figure]:
    """Yield an empty figure, and write the figure to a file at the end of the ``with`` block.

    Parameters
    ----------
    path
        Path of the PNG file. Missing parent folders are created.
    size
        Width and height in inches.
    style
        Matplotlib settings for drawing and writing the figure.
    dpi
        Resolution in pixels per inch.

    Raises
    ------
    MissingDependencyError
        If matplotlib is not installed.
    SettingsError
        If the file cannot be written.
    """
    if not can_draw():
        raise MissingDependencyError(
            "the image cannot be drawn: matplotlib is not installed here: pip install 'fenchel[plots]'", source=path
        )
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with rc_context(dict(style)):  # type: ignore[arg-type]  # the stubs know only literal keys
        figure = Figure(figsize=size, layout="constrained")
        FigureCanvasAgg(figure)
        yield figure
        with output_at(path):
            figure.savefig(path, format="png", dpi=dpi, metadata={"Software": None})


def label_logarithmic(axis: Axis, text: Formatter | Callable[[float, float], str]) -> None:
    """Label a logarithmic axis with plain text, as powers written for TeX are not typeset in plots of this style."""
    from matplotlib.ticker import LogLocator, NullFormatter

    low, high = axis.get_view_interval()
    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if high < _SHORT * low else (1.0,)))
    axis.set_major_formatter(text)
    axis.set_minor_formatter(NullFormatter())
