"""Encoding of named arrays to bytes.

A payload is a mapping from names to values (:mod:`fenchel.common.wire.values`). Encoding gives a descriptor
(``proto.Payload``: names, types, shapes) and a body, which concatenates the bytes of all arrays. Each is aligned to 8
bytes, so that decoding (:mod:`fenchel.common.wire.outline`) needs no copy. :mod:`fenchel.common.wire.codecs` encodes
the single values. A body may exceed the size limit of protobuf messages, as it is sent in chunks
(:mod:`fenchel.common.wire.frames`).
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from fenchel.common.crypto.ciphertexts import Buffer
from fenchel.common.errors import PayloadError
from fenchel.common.wire.codecs import encode_value
from fenchel.common.wire.values import ALIGNMENT, Values
from fenchel.proto import fenchel_pb2 as pb


@dataclass(frozen=True)
class Encoded:
    """Encoded payload.

    Attributes
    ----------
    descriptor
        Names, types and shapes of the values.
    segments
        Body in pieces, in order. They refer to the arrays' own memory, so a large array must not change while it is
        sent.
    size
        Bytes of the body.
    """

    descriptor: pb.Payload
    segments: tuple[Buffer, ...]
    size: int

    def joined(self) -> bytes:
        """Return the body in one piece (a copy)."""
        return b"".join(self.segments)


def encode(values: Values) -> Encoded:
    """Encode named values; raise ``PayloadError`` if a value has no name or cannot be sent."""
    descriptor = pb.Payload()
    segments: list[Buffer] = []
    size = 0

    def append(piece: Buffer) -> None:
        nonlocal size
        segments.append(piece)
        size += len(piece)
        if padding := -size % ALIGNMENT:
            segments.append(bytes(padding))
            size += padding

    for name, value in values.items():
        if not name:
            raise PayloadError("a value of the message has no name; give it one")
        for piece in encode_value(descriptor.arrays.add(name=name), value):
            append(piece)
    descriptor.body_bytes = size
    return Encoded(descriptor, tuple(segments), size)


def digest(*parts: str | Values) -> bytes:
    """Return the SHA-256 of texts and named values."""
    hashed = hashlib.sha256()
    for part in parts:
        if isinstance(part, str):
            hashed.update(f"{len(part)}:{part}".encode())
            continue
        encoded = encode(part)
        hashed.update(encoded.descriptor.SerializeToString(deterministic=True))
        for segment in encoded.segments:
            hashed.update(segment)
    return hashed.digest()
