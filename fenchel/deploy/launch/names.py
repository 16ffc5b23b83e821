"""Names of simulated clients, equal for all engines because random numbers depend on the names."""

from __future__ import annotations


def client_names(count: int, first: int = 0) -> list[str]:
    """Return ``client-000``, ``client-001``, ..."""
    return [f"client-{number:03d}" for number in range(first, first + count)]
