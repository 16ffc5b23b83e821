"""Tests for the fields that are set in a protobuf message."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from operator import attrgetter

from google.protobuf.descriptor import Descriptor
from google.protobuf.message import Message


def presence(kind: Descriptor, prefix: str = "") -> Iterable[tuple[str, Callable[[Message], object]]]:
    """Yield the name of each field of a message type, and a function that tests whether a message has the field set.

    Names of nested fields contain dots. Payloads (the descriptors of arrays) are left out.
    """
    for descriptor in kind.fields:
        name, part = prefix + descriptor.name, descriptor.message_type
        if part is None and descriptor.has_presence:
            yield name, partial(_has, attrgetter(prefix.rstrip(".")) if prefix else None, descriptor.name)
        elif part is None or part.GetOptions().map_entry:
            yield name, attrgetter(name)
        elif descriptor.is_repeated:
            for inner, of in presence(part):
                yield f"{name}.{inner}", partial(_any, attrgetter(name), of)
        elif part.name != "Payload":
            yield from presence(part, f"{name}.")


def _has(of: Callable[[Message], Message] | None, name: str, message: Message) -> bool:
    return (message if of is None else of(message)).HasField(name)


def _any(parts: Callable[[Message], Iterable[Message]], of: Callable[[Message], object], message: Message) -> bool:
    return any(of(part) for part in parts(message))
