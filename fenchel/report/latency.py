"""How long calls took, phase by phase: histograms of the whole call and of the network's part of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fenchel.report import columns
from fenchel.report.columns import Floats

What = Literal["total", "network"]
_COLUMNS: dict[What, str] = {"total": "total_s", "network": "network_s"}
_LEAST = 1e-6  # seconds; what took less, by the clocks' resolution, is counted here
_PER_DECADE = 10


@dataclass(frozen=True)
class Histogram:
    """The latencies of one phase; k bins.

    Attributes
    ----------
    phase
        Of the calls.
    what
        ``total``: from queued to the reply decoded; ``network``: on the way, there and back.
    edges
        Seconds, shape (k + 1,); of equal ratio, ten a decade.
    counts
        Answered calls in each bin, shape (k,), int64.
    p50, p90, p99
        Quantiles of the calls themselves, in seconds.
    """

    phase: str
    what: What
    edges: Floats
    counts: NDArray[np.int64]
    p50: float
    p90: float
    p99: float


def histograms(calls: pa.Table) -> list[Histogram]:
    """Return the histograms of each phase that has an answered call, in order of the phases' first calls.

    Parameters
    ----------
    calls
        Rows of ``calls.parquet``.
    """
    if not calls.num_rows or "phase" not in calls.column_names:
        return []
    phases, group = columns.grouped(calls, "phase")
    found = []
    for number, name in enumerate(phases):
        for what, column in _COLUMNS.items():
            seconds = columns.column(calls, column)[group == number]
            seconds = seconds[np.isfinite(seconds)]
            if seconds.size:
                found.append(_histogram(name, what, seconds))
    return found


def _histogram(phase: str, what: What, seconds: Floats) -> Histogram:
    shown = np.maximum(seconds, _LEAST)
    # Edges are whole powers, so that the bins of all phases and runs are the same ones.
    first = int(np.floor(np.log10(shown.min()) * _PER_DECADE + 1e-9))
    last = int(np.floor(np.log10(shown.max()) * _PER_DECADE + 1e-9)) + 1
    places = np.floor(np.log10(shown) * _PER_DECADE + 1e-9).astype(np.int64) - first
    p50, p90, p99 = (float(quantile) for quantile in np.quantile(seconds, (0.5, 0.9, 0.99)))
    return Histogram(
        phase=phase,
        what=what,
        edges=10.0 ** (np.arange(first, last + 1) / _PER_DECADE),
        counts=np.bincount(places, minlength=last - first),
        p50=p50,
        p90=p90,
        p99=p99,
    )
