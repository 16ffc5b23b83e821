"""Metrics in the format of Prometheus. Only this module imports its library, which is optional."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from fenchel.common.errors import MissingDependencyError

if TYPE_CHECKING:
    from prometheus_client import Counter, Gauge, Histogram

KIND = "text/plain; version=0.0.4; charset=utf-8"
"""Media type of :meth:`Exposition.text`."""

LATENCIES = tuple(digit * 10.0**power for power in range(-3, 3) for digit in (1.0, 2.5, 5.0))
"""Bounds of a histogram's buckets, in seconds, from a millisecond to several minutes."""


class Exposition:
    """Prometheus metrics of the server or of the clients in this process.

    Raises
    ------
    MissingDependencyError
        If prometheus_client is not installed.
    """

    def __init__(self) -> None:
        try:
            import prometheus_client
        except ImportError:
            raise MissingDependencyError(
                "metrics need prometheus_client, which is not installed; install it with pip install "
                "'fenchel[metrics]', or leave the option out",
                key="--metrics",
            ) from None
        # Creation times are of no use here, and double the number of series.
        prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]
        self._library = prometheus_client
        # A separate registry, because all libraries in this process share the default one.
        self._registry = prometheus_client.CollectorRegistry()

    def counter(self, name: str, meaning: str, *labels: str) -> Counter:
        """Return a metric that only increases. Its name ends in ``_total``."""
        return self._library.Counter(name, meaning, labels, registry=self._registry)

    def gauge(self, name: str, meaning: str, *labels: str) -> Gauge:
        """Return a metric that can increase and decrease. Without labels it is NaN until it is set."""
        made = self._library.Gauge(name, meaning, labels, registry=self._registry)
        if not labels:
            made.set(math.nan)
        return made

    def histogram(self, name: str, meaning: str, *labels: str) -> Histogram:
        """Return a metric that counts durations by bucket."""
        return self._library.Histogram(name, meaning, labels, registry=self._registry, buckets=LATENCIES)

    def info(self, name: str, meaning: str, **values: str) -> None:
        """Add constant texts, as the labels of a metric with the value 1."""
        self._library.Info(name, meaning, registry=self._registry).info(values)

    def text(self) -> bytes:
        """Return the current values of all metrics. Any thread may call this method."""
        return self._library.generate_latest(self._registry)
