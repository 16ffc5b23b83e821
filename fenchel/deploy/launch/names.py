"""Names of simulated clients: the same wherever a run is started, since random numbers depend on them."""

from __future__ import annotations


def client_names(count: int, first: int = 0) -> list[str]:
    """Return ``client-000``, ``client-001``, ..."""
    return [f"client-{number:03d}" for number in range(first, first + count)]
