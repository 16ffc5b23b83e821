"""Small curves for notebooks, as SVG without scripts."""

from __future__ import annotations

from html import escape

import numpy as np
from numpy.typing import NDArray

_WIDTH, _HEIGHT, _EDGE = 240.0, 90.0, 6.0
_POINTS = 480  # largest number of points of a curve, two for each pixel across


def sparkline(title: str, x: NDArray[np.float64], y: NDArray[np.float64], *, logarithmic: bool, last: str) -> str:
    """Return an HTML figure of a curve with its title and last value; empty with fewer than two points.

    Parameters
    ----------
    x, y
        Coordinates, shape (n,). Points with non-finite y (or non-positive y on a logarithmic axis) are omitted. Long
        curves are thinned evenly.
    last
        Last value, as text.
    """
    known = np.isfinite(y) & (y > 0 if logarithmic else True)
    if known.sum() < 2:
        return ""
    x, y = x[known], np.log(y[known]) if logarithmic else y[known]
    rows = np.unique(np.linspace(0, x.size - 1, min(x.size, _POINTS)).astype(int))
    x, y = x[rows], y[rows]
    across = _EDGE + (x - x[0]) / (x[-1] - x[0]) * (_WIDTH - 2 * _EDGE)
    span = y.max() - y.min()
    down = _HEIGHT - _EDGE - (y - y.min()) / (span or 1.0) * (_HEIGHT - 2 * _EDGE)
    points = " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(across, down, strict=True))
    name = f"{title} (logarithmic)" if logarithmic else title
    return (
        f'<figure style="display:inline-block;margin:0 1em 0 0"><figcaption>{escape(name)}: {escape(last)}</figcaption>'
        f'<svg width="{_WIDTH:.0f}" height="{_HEIGHT:.0f}" role="img" aria-label="{escape(name)}">'
        f'<rect width="100%" height="100%" fill="none" stroke="#b4bac2"/>'
        f'<polyline points="{points}" fill="none" stroke="#1f6fb4" stroke-width="1.8"/></svg></figure>'
    )
