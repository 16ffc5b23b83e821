"""Values of a message to a cohort, equal for all clients or different for each client."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Each(Generic[T]):
    """A value of a message that differs between clients.

    It replaces a value that is sent to a cohort, or a schema in ``returns``. Any other value is the same for all
    clients and is encoded once.

    Parameters
    ----------
    values : Mapping[str, T]
        Value for each client, by client id. Every client of the cohort needs one.

    Examples
    --------
    >>> import fenchel
    >>> step_size = fenchel.Each({"client-000": 0.1, "client-001": 0.05})
    >>> step_size.values["client-001"]
    0.05
    """

    values: Mapping[str, T]


def for_client(values: Mapping[str, T | Each[T]], client: str) -> dict[str, T]:
    """Return a message's values for one client, with each :class:`Each` replaced by the client's own value."""
    return {name: value.values[client] if isinstance(value, Each) else value for name, value in values.items()}
