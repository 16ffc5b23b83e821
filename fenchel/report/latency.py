"""Histograms of latencies by phase, for whole calls and for their time on the network."""

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
_LEAST = 1e-6  # lower end of the lowest bin in seconds, which also counts latencies below the resolution of clocks
_PER_DECADE = 10


@dataclass(frozen=True)
class Histogram:
    """Histogram of the latencies of one phase, with k bins.

    Attributes
    ----------
    phase
        Name of the phase.
    what
        ``total``: from queueing to the decoded reply. ``network``: time on the network in both directions.
    edges
        Edges of the bins in seconds, shape (k + 1,), ten per decade.
    counts
        Number of answered calls in each bin, shape (k,), int64.
    p50, p90, p99
        Quantiles of the latencies in seconds.
    """

    phase: str
    what: What
    edges: Floats
    counts: NDArray[np.int64]
    p50: float
    p90: float
    p99: float


def histograms(calls: pa.Table) -> list[Histogram]:
    """Return the histograms of all phases with an answered call, in the order of their first calls.

    Late and failed calls are left out, as in the costs of phases (:func:`fenchel.report.summary.costs_by`).

    Parameters
    ----------
    calls
        Rows of ``calls.parquet``.
    """
    calls = columns.answered(calls)
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
    # Bin edges are integer powers of one ratio, so that all phases and runs have the same bins.
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
