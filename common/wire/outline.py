"""What the body of a message will hold, by its descriptor; and bytes to named arrays.

Nothing that arrives is trusted: :func:`outline` checks a descriptor before anything is allocated, and
:meth:`Outline.decode` checks the rest. What the values should be is a matter of :mod:`fenchel.common.wire.schema`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from fenchel.common.crypto.ciphertexts import LARGEST, Buffer, Ciphertexts
from fenchel.common.crypto.packing import Layout
from fenchel.common.errors import EncryptionError, PayloadError
from fenchel.common.wire import index_sets
from fenchel.common.wire.values import ALIGNMENT, DTYPES, Array, Scalar, SparseVector, Value, naming
from fenchel.proto import fenchel_pb2 as pb

MAX_ARRAYS = 10_000
_MAX_DIMENSIONS = 32
_KEPT_BYTES = 4096  # descriptors up to here are held on to: they come from anybody


class OutlinePart(NamedTuple):
    """One value of a payload, as its descriptor announces it."""

    item: pb.Array  # its descriptor
    kind: str  # ``dense``, ``sparse``, ``ciphertexts`` or ``scalar``
    dtype: np.dtype[Any] | None  # of the entries of a dense array or a sparse vector
    shape: tuple[int, ...]  # of a dense array
    lengths: tuple[int, ...]
    """Bytes of each piece in the body, without padding: of a sparse vector the indices come first."""


class FloatSpan(NamedTuple):
    """Where a body holds floating-point numbers: from byte ``start`` to before ``stop``."""

    start: int
    stop: int
    dtype: np.dtype[Any]


class Outline(NamedTuple):
    """What the body of a message will hold, by a descriptor that has been checked."""

    parts: tuple[OutlinePart, ...]  # in the order of the body
    size: int  # bytes of the body

    def float_spans(self) -> list[FloatSpan]:
        """Return where the body holds floating-point numbers."""
        spans = []
        offset = 0
        for part in self.parts:
            for place, length in enumerate(part.lengths, 1):
                # Of a sparse vector the values come last; ciphertexts are whole numbers throughout.
                if part.dtype is not None and part.dtype.kind == "f" and place == len(part.lengths):
                    spans.append(FloatSpan(offset, offset + length, part.dtype))
                offset += length + -length % ALIGNMENT
        return spans

    def decode(self, body: Buffer) -> dict[str, Value]:
        """Return the values.

        Dense arrays, sparse values and ciphertexts are read-only views of ``body``.
        """
        if len(body) != self.size:
            raise PayloadError(f"a message has {len(body)} bytes of values, but announced {self.size}")
        view = memoryview(body).toreadonly()
        values: dict[str, Value] = {}
        offset = 0
        for part in self.parts:
            pieces = []
            for length in part.lengths:
                pieces.append(view[offset : offset + length])
                offset += length + -length % ALIGNMENT
            values[part.item.name] = _value(part, pieces)
        return values


class Received(NamedTuple):
    """A body that has arrived."""

    outline: Outline  # what was announced of it
    body: Buffer  # its bytes
    finite: bool = False  # whether all its floating-point numbers are known to be finite

    def values(self) -> dict[str, Value]:
        """Return the values; errors as for :meth:`Outline.decode`."""
        return self.outline.decode(self.body)


def _value(part: OutlinePart, pieces: Sequence[memoryview]) -> Value:
    item, dtype = part.item, part.dtype
    if part.kind == "scalar":
        scalar: Scalar = getattr(item.scalar, item.scalar.WhichOneof("value") or "")
        return scalar
    if dtype is None:
        return _ciphertexts(item.name, item.ciphertexts, pieces[0])
    entries = np.frombuffer(pieces[-1], dtype) if len(pieces[-1]) else np.empty(0, dtype)
    if dtype.kind == "b":
        _check_booleans(item.name, entries)
    if part.kind == "dense":
        return entries.reshape(part.shape)
    sparse = item.sparse
    with naming(item.name):
        indices = index_sets.unpack(sparse.encoding, pieces[0], sparse.count, sparse.size, sparse.seed)
    seed = sparse.seed if sparse.encoding == pb.SEEDED else None
    return SparseVector(indices, entries, sparse.size, seed)


def _check_booleans(name: str, array: Array) -> None:
    """Refuse bytes other than 0 and 1 in a boolean array: numpy would compute nonsense with them."""
    if array.size and array.view(np.uint8).max() > 1:
        raise PayloadError(f"boolean array {name!r} has bytes other than 0 and 1")


def outline(descriptor: pb.Payload, limit: int, longest: int = index_sets.MAX_SEEDED_SIZE) -> Outline:
    """Check a descriptor and return what it announces, before anything is allocated.

    limit: largest body to accept, in bytes.
    longest: largest sum of the lengths of sparse vectors with seeded supports to accept. A few bytes announce such a
        vector, whatever its length, and each of its entries takes time (about 3 ns).
    """
    if len(descriptor.arrays) > MAX_ARRAYS:
        raise PayloadError(f"{len(descriptor.arrays)} arrays in one message; at most {MAX_ARRAYS} are accepted")
    size = drawn = 0
    names = set()
    parts = []
    for item in descriptor.arrays:
        name = item.name
        if not name or name in names:
            raise PayloadError(f"name {name!r} is empty or occurs twice in one message")
        names.add(name)
        part = _part(item)
        parts.append(part)
        for length in part.lengths:
            size += length + -length % ALIGNMENT
        if part.kind == "sparse" and item.sparse.encoding == pb.SEEDED:
            drawn += item.sparse.size
    if size != descriptor.body_bytes:
        raise PayloadError(f"the arrays need {size} bytes but the message announces {descriptor.body_bytes}")
    if size > limit:
        raise PayloadError(
            f"a message of {size:,} bytes is larger than the limit of {limit:,}; "
            "raise network.max_message_bytes if this is intended"
        )
    if drawn > longest:
        raise PayloadError(
            f"sparse vectors of {drawn:,} entries with supports that follow from seeds; "
            f"at most {longest:,} entries are accepted"
        )
    return Outline(tuple(parts), size)


class Outlines:
    """The outlines of messages that come one after the other: most announce the same as the one before.

    limit: largest body to accept, in bytes.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._last: tuple[pb.Payload, Outline] | None = None

    def of(self, descriptor: pb.Payload) -> Outline:
        """Return a message's outline, the same object as before if it announces the same; errors as :func:`outline`."""
        if self._last is not None and self._last[0] == descriptor:
            return self._last[1]
        if descriptor.ByteSize() > _KEPT_BYTES:
            return outline(descriptor, self._limit)
        own = pb.Payload()
        own.CopyFrom(descriptor)  # the rest of the message, which may be large, is not held
        told = outline(own, self._limit)
        self._last = own, told
        return told


def _part(item: pb.Array) -> OutlinePart:
    """Check the descriptor of one value."""
    kind = item.WhichOneof("content")
    if kind == "dense":
        dense = item.dense
        dtype, shape = _dtype(item.name, dense.dtype), tuple(dense.shape)
        if len(shape) > _MAX_DIMENSIONS:
            raise PayloadError(f"array {item.name!r} has {len(shape)} dimensions")
        length = math.prod(shape) * dtype.itemsize
        # Also an array without entries may not have sides whose product is beyond what numpy can address.
        if (length or math.prod(side or 1 for side in shape) * dtype.itemsize) > LARGEST:
            raise PayloadError(f"array {item.name!r} has the shape {shape}, which none can have")
        return OutlinePart(item, kind, dtype, shape, (length,))
    if kind == "sparse":
        sparse = item.sparse
        problem = index_sets.index_bytes_problem(sparse.encoding, sparse.index_bytes, sparse.count, sparse.size)
        if sparse.size > LARGEST:
            problem = f"its size is {sparse.size}, which no vector can have"
        elif sparse.seed and sparse.encoding != pb.SEEDED:
            problem = "it has a seed, and its indices travel as such"
        if problem:
            raise PayloadError(f"sparse vector {item.name!r}: {problem}")
        dtype = _dtype(item.name, sparse.dtype)
        return OutlinePart(item, kind, dtype, (), (sparse.index_bytes, sparse.count * dtype.itemsize))
    if kind == "ciphertexts":
        return OutlinePart(item, kind, None, (), (_ciphertexts(item.name, item.ciphertexts).size,))
    if kind == "scalar" and item.scalar.WhichOneof("value") is not None:
        return OutlinePart(item, kind, None, (), ())
    raise PayloadError(f"{item.name!r} has no value of a kind that this version knows")


def _ciphertexts(name: str, declared: pb.Ciphertexts, data: Buffer = b"") -> Ciphertexts:
    """Return ciphertexts whose numbers have been checked against each other."""
    try:
        layout = Layout(declared.slot_bits, declared.fraction_bits, declared.slots, declared.value_bits)
    except EncryptionError as error:
        raise PayloadError(f"ciphertexts {name!r}: {error}") from None
    value = Ciphertexts(declared.key_id, layout, declared.count, declared.additions, declared.ciphertext_bytes, data)
    if problem := value.problem():
        raise PayloadError(f"ciphertexts {name!r} {problem}")
    return value


def _dtype(name: str, code: pb.DType.ValueType) -> np.dtype[Any]:
    dtype = DTYPES.get(code)
    if dtype is None:
        raise PayloadError(f"array {name!r} has a dtype that this version does not know (code {code})")
    return dtype
