"""Values for all clients of a cohort, the same or different for each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Each(Generic[T]):
    """A different value for each client, by client id."""

    values: Mapping[str, T]


def for_client(values: Mapping[str, T | Each[T]], client: str) -> dict[str, T]:
    """Return the values that one client is sent."""
    return {name: value.values[client] if isinstance(value, Each) else value for name, value in values.items()}
