"""Values for all clients of a cohort, the same or different for each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np

from fenchel.common.wire.frames import Body
from fenchel.common.wire.payload import encode
from fenchel.common.wire.schema import ArraySpec, Expected, Form
from fenchel.common.wire.values import Value

T = TypeVar("T")


@dataclass(frozen=True)
class Each(Generic[T]):
    """A different value for each client, by client id."""

    values: Mapping[str, T]


def for_client(values: Mapping[str, T | Each[T]], client: str) -> dict[str, T]:
    """Return the values that one client is sent."""
    return {name: value.values[client] if isinstance(value, Each) else value for name, value in values.items()}


def forms_of(expected: Mapping[str, Expected | Each[Expected]]) -> dict[str, Form]:
    """Return in what form each value of the replies is declared to come."""
    specs = {
        name: next(iter(each.values.values()), None) if isinstance(each, Each) else each
        for name, each in expected.items()
    }
    return {name: spec.form if isinstance(spec, ArraySpec) else "clear" for name, spec in specs.items()}


def encoded(values: dict[str, Value]) -> Body:
    """Encode values; arrays that will be sent without a copy become read-only, so that no change slips in."""
    body = Body(encode(values))
    if body.refers_to_arrays:
        for value in values.values():
            if isinstance(value, np.ndarray):
                value.flags.writeable = False
    return body
