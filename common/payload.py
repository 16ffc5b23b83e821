"""Named arrays to bytes and back.

A payload is a mapping from names to values: dense arrays, :class:`SparseVector`, :class:`Ciphertexts`,
and scalars. Encoding gives a descriptor (``proto.Payload``: names, types, shapes) and a body, the
concatenation of all arrays' bytes, each aligned to 8 bytes so that decoding needs no copy. Of a sparse vector, which
entries are given (its support) travels in whichever of the encodings of :mod:`common.supports` is the smallest. The
body may be larger than a protobuf message can be: it travels in chunks (:mod:`common.frames`).

Nothing that arrives is trusted: :func:`outline` checks a descriptor before anything is allocated, and
:meth:`Outline.decode` checks the rest. What the values should be is a matter of :mod:`common.expectation`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from common import supports
from common.arrays import Indices
from common.errors import EncryptionError, PayloadError
from common.paillier.packing import Layout
from proto import fenchel_pb2 as pb

Scalar: TypeAlias = bool | int | float | str
Array: TypeAlias = NDArray[Any]
Buffer: TypeAlias = bytes | memoryview

ALIGNMENT = 8
MAX_ARRAYS = 10_000
_MAX_DIMENSIONS = 32
KEY_ID_BYTES = 16
_KEPT_BYTES = 4096  # descriptors up to here are held on to: they come from anybody
_BOOLEANS, _INTEGERS, _REALS = (bool, np.bool_), (int, np.integer), (float, np.floating)
_LARGEST = (1 << 63) - 1  # what a size, an index or an integer may be

_DTYPES: Mapping[pb.DType.ValueType, np.dtype[Any]] = {
    pb.FLOAT64: np.dtype("<f8"),
    pb.FLOAT32: np.dtype("<f4"),
    pb.FLOAT16: np.dtype("<f2"),
    pb.INT64: np.dtype("<i8"),
    pb.UINT8: np.dtype("u1"),
    pb.BOOL: np.dtype("?"),
}
_CODES: Mapping[np.dtype[Any], pb.DType.ValueType] = {dtype: code for code, dtype in _DTYPES.items()}


@dataclass(frozen=True)
class SparseVector:
    """A vector of which some entries are given; the others are zero.

    An entry that is given may be zero, too: which ones are given is said by the indices alone.

    Attributes
    ----------
    indices
        Shape (k,), int64, strictly increasing, within 0..size-1.
    values
        Shape (k,), any payload dtype.
    size
        Length of the vector.
    seed
        Promises that ``indices`` are :func:`common.supports.seeded_support` of this seed, ``size`` and k, so that
        64 bits may travel in their place. Whoever receives indices as such finds ``None``.
    """

    indices: Indices
    values: Array
    size: int
    seed: int | None = None

    def dense(self) -> Array:
        """Return the vector with its zeros, shape (size,)."""
        out = np.zeros(self.size, self.values.dtype)
        out[self.indices] = self.values
        return out


@dataclass(frozen=True)
class Ciphertexts:
    """A vector under Paillier encryption, as it travels (:class:`common.paillier.vector.CipherVector` computes).

    Attributes
    ----------
    key_id
        16 bytes that name the public key.
    layout
        How the values lie in the plaintexts.
    count
        How many values there are.
    additions
        How many fresh vectors were added up; 0 for the trivial encryption of zeros.
    ciphertext_bytes
        Length of one ciphertext.
    data
        ``layout.ciphertexts(count)`` ciphertexts one after the other, big-endian, ``ciphertext_bytes`` each.
    """

    key_id: bytes
    layout: Layout
    count: int
    additions: int
    ciphertext_bytes: int
    data: Buffer = field(repr=False)

    @property
    def size(self) -> int:
        """Bytes that ``data`` must have."""
        return self.layout.ciphertexts(self.count) * self.ciphertext_bytes

    def problem(self) -> str | None:
        """Say how these numbers contradict each other, or return ``None``. The data is not looked at."""
        layout = self.layout
        if len(self.key_id) != KEY_ID_BYTES:
            return f"name their key by {len(self.key_id)} bytes, not {KEY_ID_BYTES}"
        # A ciphertext is a number modulo n^2, and n is two bits longer than all slots together.
        if self.ciphertext_bytes * 8 < 2 * layout.slot_bits * layout.slots:
            return f"of {self.ciphertext_bytes} bytes have no room for {layout}"
        most = min(layout.max_additions, _LARGEST)
        if not 0 <= self.additions <= most:
            return f"are declared to be a sum of {self.additions} vectors, and {layout} have room for {most}"
        if not 0 <= self.count <= _LARGEST or self.size > _LARGEST:
            return f"hold {self.count} values, which is more than there can be"
        return None


Value: TypeAlias = Array | SparseVector | Ciphertexts | Scalar
Values: TypeAlias = Mapping[str, Value]


@dataclass(frozen=True)
class Encoded:
    """A payload ready to travel.

    Attributes
    ----------
    descriptor
        What the body holds.
    segments
        The body in pieces, in order. They refer to the arrays' own memory: a large array that is
        being sent must not change.
    size
        Bytes of the body.
    """

    descriptor: pb.Payload
    segments: tuple[Buffer, ...]
    size: int

    def joined(self) -> bytes:
        """Return the body in one piece (a copy)."""
        return b"".join(self.segments)


def _code(name: str, dtype: np.dtype[Any]) -> pb.DType.ValueType:
    code = _CODES.get(dtype) or _CODES.get(dtype.newbyteorder("<"))
    if code is None:
        known = ", ".join(str(known) for known in _CODES)
        raise PayloadError(f"array {name!r} has dtype {dtype}, which cannot travel; use one of {known}")
    return code


def _bytes_of(array: Array) -> Buffer:
    """Return the array's little-endian bytes in C order, without a copy where it has them already."""
    array = np.asarray(array)  # no matrix, and no mask
    as_it_is = array.flags.c_contiguous and array.dtype in _CODES
    contiguous = array if as_it_is else np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
    return contiguous.reshape(-1).view(np.uint8).data


def encode(values: Values) -> Encoded:
    """Encode named values.

    Raises
    ------
    PayloadError
        For a name or a dtype that cannot travel, sparse indices that do not increase or do not follow from their
        seed, or ciphertexts of another length than they say.
    """
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
            raise PayloadError("a value that is to be sent needs a name")
        item = descriptor.arrays.add(name=name)
        if isinstance(value, SparseVector):
            item.sparse.CopyFrom(_sparse_described(name, value))
            packed = supports.pack(item.sparse.encoding, value.indices, value.size)
            item.sparse.index_bytes = len(packed)
            append(packed)
            append(_bytes_of(value.values))
        elif isinstance(value, Ciphertexts):
            problem = value.problem()
            if problem is None and len(value.data) != value.size:
                problem = f"have {len(value.data)} bytes, not {value.size}"
            if problem:
                raise PayloadError(f"ciphertexts {name!r} {problem}")
            item.ciphertexts.CopyFrom(_described(value))
            append(value.data)
        elif isinstance(value, np.ndarray):
            item.dense.dtype = _code(name, value.dtype)
            item.dense.shape.extend(value.shape)
            append(_bytes_of(value))
        elif isinstance(value, _BOOLEANS):
            item.scalar.boolean = bool(value)
        elif isinstance(value, _INTEGERS):
            if not -_LARGEST - 1 <= value <= _LARGEST:
                raise PayloadError(f"{name!r} is {value}, which does not fit 64 bits")
            item.scalar.integer = int(value)
        elif isinstance(value, _REALS):
            item.scalar.real = float(value)
        elif isinstance(value, str):
            item.scalar.text = value
        else:
            raise PayloadError(f"{name!r} is a {type(value).__name__}; arrays, numbers and text can travel")
    descriptor.body_bytes = size
    return Encoded(descriptor, tuple(segments), size)


def _sparse_described(name: str, value: SparseVector) -> pb.Sparse:
    """Check a sparse vector and choose how its indices travel; how many bytes they take is left open."""
    if value.values.shape != value.indices.shape:
        raise PayloadError(
            f"sparse vector {name!r} has {value.values.shape} values for {value.indices.shape} indices"
        )
    if not 0 <= value.size <= _LARGEST:
        raise PayloadError(f"sparse vector {name!r} has the size {value.size}, which none can have")
    with _said_of(name):
        supports.check(value.indices, value.size)
        encoding = supports.smallest(value.indices, value.size, seeded=value.seed is not None)
        seed = 0
        if value.seed is not None and encoding == pb.SEEDED:
            seed = value.seed
            supports.check_seed(seed, value.indices, value.size)
    return pb.Sparse(
        dtype=_code(name, value.values.dtype),
        size=value.size,
        count=len(value.indices),
        encoding=encoding,
        seed=seed,
    )


@contextmanager
def _said_of(name: str) -> Iterator[None]:
    """Name the sparse vector that an error is about."""
    try:
        yield
    except PayloadError as error:
        raise PayloadError(f"sparse vector {name!r}: {error}") from None


def payload_bits(value: Array | SparseVector, encoding: supports.Encoding | None = None) -> int:
    """Return the bits of an array's values and, of a sparse vector, of its support, without padding and framing.

    These are the payload sizes of the FedPDM specification, sections 2.1 and 8. Values whose support the receiver
    knows already can travel as a dense array, and then cost their own bits only.

    Parameters
    ----------
    value
        A dense array or a sparse vector.
    encoding
        Of a sparse vector's support; default: the one in which it travels, which is the smallest.
    """
    if not isinstance(value, SparseVector):
        return 8 * value.nbytes
    if encoding is None:
        encoding = supports.smallest(value.indices, value.size, seeded=value.seed is not None)
    return 8 * value.values.nbytes + supports.bits(encoding, value.indices, value.size)


def _described(value: Ciphertexts) -> pb.Ciphertexts:
    return pb.Ciphertexts(
        key_id=value.key_id,
        slot_bits=value.layout.slot_bits,
        fraction_bits=value.layout.fraction_bits,
        value_bits=value.layout.value_bits,
        slots=value.layout.slots,
        count=value.count,
        additions=value.additions,
        ciphertext_bytes=value.ciphertext_bytes,
    )


class Part(NamedTuple):
    """One value of a payload, as its descriptor announces it.

    Attributes
    ----------
    item
        Its descriptor.
    kind
        ``dense``, ``sparse``, ``ciphertexts`` or ``scalar``.
    dtype
        Of the entries of a dense array or a sparse vector.
    shape
        Of a dense array.
    lengths
        Bytes of each piece in the body, without padding: of a sparse vector the indices come first.
    """

    item: pb.Array
    kind: str
    dtype: np.dtype[Any] | None
    shape: tuple[int, ...]
    lengths: tuple[int, ...]


class FloatSpan(NamedTuple):
    """Where a body holds floating-point numbers: from byte ``start`` to before ``stop``."""

    start: int
    stop: int
    dtype: np.dtype[Any]


class Outline(NamedTuple):
    """What the body of a message will hold, by a descriptor that has been checked.

    Attributes
    ----------
    parts
        In the order of the body.
    size
        Bytes of the body.
    """

    parts: tuple[Part, ...]
    size: int

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

        Raises
        ------
        PayloadError
            The body is too short, or sparse indices are not as many as declared, or out of order or range.
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
    """A body that has arrived.

    Attributes
    ----------
    outline
        What was announced of it.
    body
        Its bytes.
    finite
        Whether all its floating-point numbers are known to be finite.
    """

    outline: Outline
    body: Buffer
    finite: bool = False

    def values(self) -> dict[str, Value]:
        """Return the values; errors as for :meth:`Outline.decode`."""
        return self.outline.decode(self.body)


def _value(part: Part, pieces: Sequence[memoryview]) -> Value:
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
    with _said_of(item.name):
        indices = supports.unpack(sparse.encoding, pieces[0], sparse.count, sparse.size, sparse.seed)
    seed = sparse.seed if sparse.encoding == pb.SEEDED else None
    return SparseVector(indices, entries, sparse.size, seed)


def _check_booleans(name: str, array: Array) -> None:
    """Refuse bytes other than 0 and 1 in a boolean array: numpy would compute nonsense with them."""
    if array.size and array.view(np.uint8).max() > 1:
        raise PayloadError(f"boolean array {name!r} has bytes other than 0 and 1")


def outline(descriptor: pb.Payload, limit: int, longest: int = supports.MAX_SEEDED_SIZE) -> Outline:
    """Check a descriptor and return what it announces, before anything is allocated.

    Parameters
    ----------
    descriptor
        As received.
    limit
        Largest body to accept, in bytes.
    longest
        Largest sum of the lengths of sparse vectors with seeded supports to accept. A few bytes announce such a
        vector, whatever its length, and each of its entries takes time (about 3 ns).

    Raises
    ------
    PayloadError
        Duplicate or empty names, unknown dtypes or encodings, sizes that contradict each other or exceed the limit.
    """
    if len(descriptor.arrays) > MAX_ARRAYS:
        raise PayloadError(
            f"{len(descriptor.arrays)} arrays in one message; at most {MAX_ARRAYS} are accepted"
        )
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

    Parameters
    ----------
    limit
        Largest body to accept, in bytes.
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


def _part(item: pb.Array) -> Part:
    """Check the descriptor of one value."""
    kind = item.WhichOneof("content")
    if kind == "dense":
        dense = item.dense
        dtype, shape = _dtype(item.name, dense.dtype), tuple(dense.shape)
        if len(shape) > _MAX_DIMENSIONS:
            raise PayloadError(f"array {item.name!r} has {len(shape)} dimensions")
        length = math.prod(shape) * dtype.itemsize
        # Also an array without entries may not have sides whose product is beyond what numpy can address.
        if (length or math.prod(side or 1 for side in shape) * dtype.itemsize) > _LARGEST:
            raise PayloadError(f"array {item.name!r} has the shape {shape}, which none can have")
        return Part(item, kind, dtype, shape, (length,))
    if kind == "sparse":
        sparse = item.sparse
        problem = supports.index_bytes_problem(sparse.encoding, sparse.index_bytes, sparse.count, sparse.size)
        if sparse.size > _LARGEST:
            problem = f"its size is {sparse.size}, which no vector can have"
        elif sparse.seed and sparse.encoding != pb.SEEDED:
            problem = "it has a seed, and its indices travel as such"
        if problem:
            raise PayloadError(f"sparse vector {item.name!r}: {problem}")
        dtype = _dtype(item.name, sparse.dtype)
        return Part(item, kind, dtype, (), (sparse.index_bytes, sparse.count * dtype.itemsize))
    if kind == "ciphertexts":
        return Part(item, kind, None, (), (_ciphertexts(item.name, item.ciphertexts).size,))
    if kind == "scalar" and item.scalar.WhichOneof("value") is not None:
        return Part(item, kind, None, (), ())
    raise PayloadError(f"{item.name!r} has no value of a kind that this version knows")


def _ciphertexts(name: str, declared: pb.Ciphertexts, data: Buffer = b"") -> Ciphertexts:
    """Return ciphertexts whose numbers have been checked against each other."""
    try:
        layout = Layout(declared.slot_bits, declared.fraction_bits, declared.slots, declared.value_bits)
    except EncryptionError as error:
        raise PayloadError(f"ciphertexts {name!r}: {error}") from None
    value = Ciphertexts(
        declared.key_id, layout, declared.count, declared.additions, declared.ciphertext_bytes, data
    )
    if problem := value.problem():
        raise PayloadError(f"ciphertexts {name!r} {problem}")
    return value


def _dtype(name: str, code: pb.DType.ValueType) -> np.dtype[Any]:
    dtype = _DTYPES.get(code)
    if dtype is None:
        raise PayloadError(f"array {name!r} has a dtype that this version does not know (code {code})")
    return dtype
