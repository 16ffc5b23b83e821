"""Picture of the energy of a run, or of the best number of local steps of several runs, for each channel."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fenchel.report.render.canvas import STYLE, canvas

_FEW, _MANY = "#d8e6f3", "#1f62a8"  # colours of the smallest and the largest number of local steps, or of joules

_ALL_DIGITS = 1e6  # least whole number that is rounded


def draw_map(
    values: NDArray[np.float64], snrs: Sequence[float], bandwidths: Sequence[float], *, title: str, path: Path
) -> Path:
    """Draw a number for each signal-to-noise ratio and bandwidth as a coloured table, and return the path of the file.

    Parameters
    ----------
    values
        Positive numbers to draw, shape (bandwidths, snrs).
    snrs, bandwidths
        Signal-to-noise ratios in decibels, and bandwidths in hertz.
    path
        Path of the PNG file. Folders above it are created.
    """
    size = (1.6 + 0.72 * len(snrs), 1.3 + 0.5 * len(bandwidths))
    with canvas(path, size, {**STYLE, "axes.grid": False}) as figure:
        from matplotlib.colors import LinearSegmentedColormap, LogNorm

        axes = figure.subplots()
        low, high = float(values.min()), float(values.max())
        colors = LinearSegmentedColormap.from_list("steps", [_FEW, _MANY])
        axes.imshow(
            values, cmap=colors, norm=LogNorm(low, high if high > low else 2 * low), aspect="auto", origin="lower"
        )
        middle = np.sqrt(low * high)
        for (row, column), value in np.ndenumerate(values):
            light = high > low and value > middle
            # Numbers of local steps are whole, and are shown with all digits.
            words = f"{value:.0f}" if value.is_integer() and value < _ALL_DIGITS else f"{value:.3g}"
            axes.annotate(words, (column, row), ha="center", va="center", color="white" if light else "black")
        axes.set_title(title)
        axes.set_xticks(range(len(snrs)), [f"{snr:g}" for snr in snrs])
        axes.set_yticks(range(len(bandwidths)), [f"{bandwidth / 1e6:g}" for bandwidth in bandwidths])
        axes.set_xlabel("signal-to-noise ratio (dB)")
        axes.set_ylabel("bandwidth (MHz)")
        axes.spines[:].set_visible(False)
    return path
