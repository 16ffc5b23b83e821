"""Metrics in the form that Prometheus reads; the only place that knows its library, which is optional."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from fenchel.common.errors import MissingDependencyError

if TYPE_CHECKING:
    from prometheus_client import Counter, Gauge, Histogram

KIND = "text/plain; version=0.0.4; charset=utf-8"
"""Media type of :meth:`Exposition.text`."""

LATENCIES = tuple(digit * 10.0**power for power in range(-3, 3) for digit in (1.0, 2.5, 5.0))
"""Bounds of a histogram's buckets, in seconds: a millisecond to some minutes."""


class Exposition:
    """The metrics of one role in this process."""

    def __init__(self) -> None:
        try:
            import prometheus_client
        except ImportError:
            raise MissingDependencyError(
                "needs the library prometheus_client: pip install 'fenchel[metrics]', or leave the option out",
                key="--metrics",
            ) from None
        # When each series began: nobody asks, and it doubles their number.
        prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]
        self._library = prometheus_client
        # A registry of its own: the library's is shared by all that this process imports.
        self._registry = prometheus_client.CollectorRegistry()

    def counter(self, name: str, meaning: str, *labels: str) -> Counter:
        """Return a metric that only grows; its name ends in ``_total``."""
        return self._library.Counter(name, meaning, labels, registry=self._registry)

    def gauge(self, name: str, meaning: str, *labels: str) -> Gauge:
        """Return a metric that goes up and down; without labels it is NaN until it is set."""
        made = self._library.Gauge(name, meaning, labels, registry=self._registry)
        if not labels:
            made.set(math.nan)
        return made

    def histogram(self, name: str, meaning: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
        """Return a metric that counts observations by size."""
        return self._library.Histogram(name, meaning, labels, registry=self._registry, buckets=buckets)

    def info(self, name: str, meaning: str, **values: str) -> None:
        """Add words that do not change, as the labels of a metric that is 1."""
        self._library.Info(name, meaning, registry=self._registry).info(values)

    def text(self) -> bytes:
        """Return all metrics as they are now. May be called in another thread."""
        return self._library.generate_latest(self._registry)

    def names(self) -> set[str]:
        """Return the names of all series that there can be, those of histograms with their endings."""
        found = set()
        for family in self._registry.collect():
            endings = {"counter": ["_total"], "info": ["_info"], "histogram": ["_bucket", "_sum", "_count"]}
            found |= {family.name + ending for ending in endings.get(family.type, [""])}
        return found
