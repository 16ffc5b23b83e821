"""Names of simulated clients, equal for all engines because random numbers depend on the names."""

from __future__ import annotations


def client_names(count: int, first: int = 0) -> list[str]:
    """Return the names of ``count`` clients, such as ``client-000``, with consecutive numbers from ``first`` on."""
    return [f"client-{number:03d}" for number in range(first, first + count)]
