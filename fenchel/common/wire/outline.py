"""Checked descriptors of message bodies, and decoding of bodies to named values.

Received data is not trusted: :func:`outline` checks a descriptor before memory is allocated, and
:meth:`Outline.decode` checks the body. :mod:`fenchel.common.wire.schema` compares the values with a schema.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from fenchel.common.crypto.ciphertexts import Buffer
from fenchel.common.errors import PayloadError
from fenchel.common.wire import index_sets
from fenchel.common.wire.codecs import ValueLayout, part_of
from fenchel.common.wire.values import Value, aligned
from fenchel.proto import fenchel_pb2 as pb

MAX_ARRAYS = 10_000
_KEPT_BYTES = 4096  # size limit of cached descriptors in bytes, because senders are untrusted


class FloatSpan(NamedTuple):
    """Span of a body with floating-point numbers, from byte ``start`` to before ``stop``."""

    start: int
    stop: int
    dtype: np.dtype[Any]


class Outline(NamedTuple):
    """Layout of a message's body, from its checked descriptor.

    Attributes
    ----------
    parts
        Values of the payload, in the order of the body.
    size
        Bytes of the body.
    """

    parts: tuple[ValueLayout, ...]
    size: int

    def float_spans(self) -> list[FloatSpan]:
        """Return the spans of the body with floating-point numbers."""
        spans = []
        offset = 0
        for part in self.parts:
            for place, length in enumerate(part.lengths, 1):
                # The values of a sparse vector are the last piece of its part. Ciphertexts have no dtype.
                if part.dtype is not None and part.dtype.kind == "f" and place == len(part.lengths):
                    spans.append(FloatSpan(offset, offset + length, part.dtype))
                offset += aligned(length)
        return spans

    def decode(self, body: Buffer) -> dict[str, Value]:
        """Return the values by name; raise ``PayloadError`` if the body does not match the outline.

        Dense arrays, sparse values and ciphertexts are read-only views of ``body``.
        """
        if len(body) != self.size:
            raise PayloadError(f"the values of the message have {len(body)} bytes, expected {self.size}")
        view = memoryview(body).toreadonly()
        values: dict[str, Value] = {}
        offset = 0
        for part in self.parts:
            pieces = []
            for length in part.lengths:
                pieces.append(view[offset : offset + length])
                offset += aligned(length)
            values[part.item.name] = part.decode(pieces)
        return values


class Received(NamedTuple):
    """Complete body of a received message.

    Attributes
    ----------
    outline
        Content that the descriptor announced.
    body
        Bytes of the body.
    finite
        True if all floating-point numbers of the body are known to be finite.
    """

    outline: Outline
    body: Buffer
    finite: bool = False

    def values(self) -> dict[str, Value]:
        """Decode the body; raise the errors of :meth:`Outline.decode`."""
        return self.outline.decode(self.body)


def outline(descriptor: pb.Payload, limit: int, longest: int = index_sets.MAX_SEEDED_SIZE) -> Outline:
    """Check a descriptor and return its outline, before memory is allocated for the body.

    Parameters
    ----------
    limit
        Largest body to accept, in bytes.
    longest
        Largest sum of the lengths of sparse vectors with seeded index sets to accept. A few bytes announce such a
        vector of any length, and each of its positions takes about 3 ns.

    Raises
    ------
    PayloadError
        If the descriptor is invalid, or exceeds a limit.
    """
    if len(descriptor.arrays) > MAX_ARRAYS:
        raise PayloadError(f"the message has {len(descriptor.arrays)} arrays; expected at most {MAX_ARRAYS}")
    size = drawn = 0
    names = set()
    parts = []
    for item in descriptor.arrays:
        name = item.name
        if not name or name in names:
            raise PayloadError(f"the name {name!r} is empty or occurs twice in one message")
        names.add(name)
        part = part_of(item)
        parts.append(part)
        for length in part.lengths:
            size += aligned(length)
        drawn += part.drawn
    if size != descriptor.body_bytes:
        raise PayloadError(f"the arrays need {size} bytes, but the message announces {descriptor.body_bytes}")
    if size > limit:
        raise PayloadError(
            f"a message of {size:,} bytes exceeds the limit of {limit:,}; raise network.max_message_bytes if this "
            "is intended"
        )
    if drawn > longest:
        raise PayloadError(
            f"the sparse vectors with index sets from seeds have {drawn:,} entries in all; expected at most {longest:,}"
        )
    return Outline(tuple(parts), size)


class Outlines:
    """Outlines of successive messages. Most descriptors equal the previous one, whose outline is cached.

    Parameters
    ----------
    limit
        Largest body to accept, in bytes.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._last: tuple[pb.Payload, Outline] | None = None

    def of(self, descriptor: pb.Payload) -> Outline:
        """Return a descriptor's outline, the same object for equal descriptors; raise errors of :func:`outline`."""
        if self._last is not None and self._last[0] == descriptor:
            return self._last[1]
        if descriptor.ByteSize() > _KEPT_BYTES:
            return outline(descriptor, self._limit)
        own = pb.Payload()
        own.CopyFrom(descriptor)  # a reference would keep the whole message, which may be large
        outlined = outline(own, self._limit)
        self._last = own, outlined
        return outlined
