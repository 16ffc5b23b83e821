"""Codecs of the kinds of values in messages.

A new kind of array needs a class of values in :mod:`fenchel.common.wire.values`, a codec here, and a message in
``proto.Array``. Other code treats all kinds alike and leaves their differences to the codecs.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, NamedTuple

import numpy as np

from fenchel.common.arrays import Array
from fenchel.common.crypto.ciphertexts import LARGEST, Buffer, Ciphertexts
from fenchel.common.crypto.packing import Layout
from fenchel.common.errors import EncryptionError, PayloadError
from fenchel.common.wire import index_sets
from fenchel.common.wire.values import DTYPES, Entries, Scalar, SparseVector, Value, aligned
from fenchel.proto import fenchel_pb2 as pb

_MAX_DIMENSIONS = 32
_CODES: Mapping[np.dtype[Any], pb.DType.ValueType] = {dtype: code for code, dtype in DTYPES.items()}


class ValueInfo(NamedTuple):
    """Summary of one value's descriptor, for the disclosure record.

    Attributes
    ----------
    content
        Kind of the value: ``dense``, ``sparse``, ``scalar`` or ``ciphertexts``.
    dtype
        Data type of the entries; for a scalar ``real``, ``integer``, ``boolean`` or ``text``; empty for ciphertexts.
    bytes
        Bytes in the body, without padding.
    key
        Id of the ciphertexts' public key, in hexadecimal digits.
    entries
        Number of stored entries of a sparse vector.
    additions
        Number of fresh vectors of which ciphertexts are the sum.
    """

    name: str
    content: str
    dtype: str
    shape: tuple[int, ...]
    bytes: int
    key: str = ""
    entries: int | None = None
    additions: int | None = None


class ValueLayout(NamedTuple):
    """One value of a payload, as its descriptor announces it.

    Attributes
    ----------
    item
        Descriptor of the value.
    dtype
        Data type of the entries of an array that is not encrypted.
    shape
        Shape of the array; empty for scalars.
    lengths
        Bytes of each piece in the body, without padding. The entries come last.
    drawn
        Length of a sparse vector whose index set follows from a seed, else 0.
    """

    item: pb.Array
    codec: Codec
    dtype: np.dtype[Any] | None = None
    shape: tuple[int, ...] = ()
    lengths: tuple[int, ...] = ()
    drawn: int = 0

    def decode(self, pieces: Sequence[memoryview]) -> Value:
        """Return the value. An array is a read-only view of the pieces of the body."""
        try:
            value: Value = self.codec.decode(self, pieces)
        except PayloadError as error:
            raise error.at(array=self.item.name) from None
        return value

    @property
    def description(self) -> ValueInfo:
        """Summary of the descriptor: all that the message shows without its body."""
        return self.codec.describe(self)


class Codec(ABC):
    """Codec of one kind of value. Callers add the value's name to its errors (``PayloadError.at``).

    Attributes
    ----------
    kind
        Name of the content in ``proto.Array``.
    types
        Python types of the values.
    noun
        Name of the kind for messages to people.
    is_scalar
        True if values are part of the descriptor and take no bytes of the body.
    """

    kind: ClassVar[str]
    types: ClassVar[tuple[type, ...]]
    noun: ClassVar[str]
    is_scalar: ClassVar[bool] = False

    def named(self, value: Any) -> str:
        """Return a description of a value for error messages."""
        return self.noun

    @abstractmethod
    def encode(self, item: pb.Array, value: Any) -> tuple[Buffer, ...]:
        """Fill a value's descriptor and return the pieces of the body, which refer to the value's own memory."""

    @abstractmethod
    def part(self, item: pb.Array) -> ValueLayout:
        """Return the outline of the value that a descriptor announces, without allocating memory for the value.

        Raise ``PayloadError`` if the descriptor is invalid.
        """

    @abstractmethod
    def decode(self, part: ValueLayout, pieces: Sequence[memoryview]) -> Any:
        """Return the value in the pieces of a body."""

    def describe(self, part: ValueLayout) -> ValueInfo:
        """Return a summary of the descriptor."""
        dtype = "" if part.dtype is None else part.dtype.name
        return ValueInfo(part.item.name, self.kind, dtype, part.shape, sum(part.lengths))

    @abstractmethod
    def detached(self, value: Any) -> Any:
        """Return a copy of a value in memory of its own. Its arrays are writable."""


class ArrayCodec(Codec):
    """Codec of one kind of array that is not encrypted."""

    @abstractmethod
    def entries(self, value: Any) -> Entries:
        """Return the stored entries of an array."""

    @abstractmethod
    def bounds(self, least: int, most: int, itemsize: int, given: int | None) -> tuple[int, int]:
        """Return the smallest and the largest number of bytes that an array takes in a body.

        Parameters
        ----------
        least, most
            Smallest and largest number of entries of the array, including zeros.
        itemsize
            Bytes of an entry.
        given
            Number of stored entries, if it is known.
        """


class _Dense(ArrayCodec):
    """Codec of NumPy arrays."""

    kind, types, noun = "dense", (np.ndarray,), "a dense array"

    def encode(self, item: pb.Array, value: Array) -> tuple[Buffer, ...]:
        item.dense.dtype = _code(value.dtype)
        item.dense.shape.extend(value.shape)
        return (_bytes_of(value),)

    def part(self, item: pb.Array) -> ValueLayout:
        dense = item.dense
        dtype, shape = _dtype(dense.dtype), tuple(dense.shape)
        if len(shape) > _MAX_DIMENSIONS:
            raise PayloadError(f"the array has {len(shape)} dimensions; expected at most {_MAX_DIMENSIONS}")
        length = math.prod(shape) * dtype.itemsize
        # NumPy rejects a shape whose non-zero dimensions multiply to more than its limit, even if the array is empty.
        if (length or math.prod(side or 1 for side in shape) * dtype.itemsize) > LARGEST:
            raise PayloadError(f"the array has the shape {shape}, which is impossible")
        return ValueLayout(item, self, dtype, shape, (length,))

    def decode(self, part: ValueLayout, pieces: Sequence[memoryview]) -> Array:
        return _numbers(part, pieces).reshape(part.shape)

    def detached(self, value: Array) -> Array:
        return value.copy()

    def entries(self, value: Array) -> Entries:
        return Entries(value, value.shape)

    def bounds(self, least: int, most: int, itemsize: int, given: int | None) -> tuple[int, int]:
        return least * itemsize, aligned(most * itemsize)


class _Sparse(ArrayCodec):
    """Codec of sparse vectors. Their index set is sent in the smallest of the encodings of ``index_sets``."""

    kind, types, noun = "sparse", (SparseVector,), "a sparse vector"

    def encode(self, item: pb.Array, value: SparseVector) -> tuple[Buffer, ...]:
        seed = 0
        if value.values.shape != value.indices.shape:
            raise PayloadError(
                f"the sparse vector has {value.values.shape} values for {value.indices.shape} indices; expected the "
                "same number"
            )
        if not 0 <= value.size <= LARGEST:
            raise PayloadError(f"the sparse vector has the size {value.size}; expected 0 to {LARGEST:,}")
        index_sets.check(value.indices, value.size)
        encoding = index_sets.smallest(value.indices, value.size, seeded=value.seed is not None)
        if value.seed is not None and encoding == pb.SEEDED:
            seed = value.seed
            index_sets.check_seed(seed, value.indices, value.size)
        packed = index_sets.pack(encoding, value.indices, value.size)
        item.sparse.CopyFrom(
            pb.Sparse(
                dtype=_code(value.values.dtype),
                size=value.size,
                count=len(value.indices),
                encoding=encoding,
                seed=seed,
                index_bytes=len(packed),
            )
        )
        return packed, _bytes_of(value.values)

    def part(self, item: pb.Array) -> ValueLayout:
        sparse = item.sparse
        index_sets.check_index_bytes(sparse.encoding, sparse.index_bytes, sparse.count, sparse.size)
        if sparse.size > LARGEST:
            raise PayloadError(f"the sparse vector has the size {sparse.size}, which is impossible")
        if sparse.seed and sparse.encoding != pb.SEEDED:
            raise PayloadError("the sparse vector has both a seed and encoded indices; expected one of them")
        dtype = _dtype(sparse.dtype)
        lengths = sparse.index_bytes, sparse.count * dtype.itemsize
        drawn = sparse.size if sparse.encoding == pb.SEEDED else 0
        return ValueLayout(item, self, dtype, (sparse.size,), lengths, drawn)

    def decode(self, part: ValueLayout, pieces: Sequence[memoryview]) -> SparseVector:
        sparse, values = part.item.sparse, _numbers(part, pieces)
        indices = index_sets.unpack(sparse.encoding, pieces[0], sparse.count, sparse.size, sparse.seed)
        return SparseVector(indices, values, sparse.size, sparse.seed if sparse.encoding == pb.SEEDED else None)

    def describe(self, part: ValueLayout) -> ValueInfo:
        return super().describe(part)._replace(entries=part.item.sparse.count)

    def detached(self, value: SparseVector) -> SparseVector:
        return replace(value, indices=value.indices.copy(), values=value.values.copy())

    def entries(self, value: SparseVector) -> Entries:
        return Entries(value.values, (value.size,), value.indices)

    def bounds(self, least: int, most: int, itemsize: int, given: int | None) -> tuple[int, int]:
        # The smallest encoding of the indices, which every sender uses, takes at most one bit for each entry.
        indices = aligned(-(-most // 8))
        return (given or 0) * itemsize, indices + aligned((most if given is None else given) * itemsize)


class _Ciphertexts(Codec):
    """Codec of vectors under Paillier encryption."""

    kind, types, noun = "ciphertexts", (Ciphertexts,), "an encrypted vector"

    def encode(self, item: pb.Array, value: Ciphertexts) -> tuple[Buffer, ...]:
        value.check()
        if len(value.data) != value.size:
            raise PayloadError(f"the ciphertexts have {len(value.data)} bytes, expected {value.size}")
        item.ciphertexts.CopyFrom(
            pb.Ciphertexts(
                key_id=value.key_id,
                slot_bits=value.layout.slot_bits,
                fraction_bits=value.layout.fraction_bits,
                value_bits=value.layout.value_bits,
                slots=value.layout.slots,
                count=value.count,
                additions=value.additions,
                ciphertext_bytes=value.ciphertext_bytes,
            )
        )
        return (value.data,)

    def _announced(self, item: pb.Array, data: Buffer = b"") -> Ciphertexts:
        """Return the announced ciphertexts after checking that the numbers of their descriptor are consistent."""
        sent = item.ciphertexts
        try:
            layout = Layout(sent.slot_bits, sent.fraction_bits, sent.slots, sent.value_bits)
        except EncryptionError as error:
            raise PayloadError(f"the layout of the ciphertexts is invalid: {error}") from None
        value = Ciphertexts(sent.key_id, layout, sent.count, sent.additions, sent.ciphertext_bytes, data)
        value.check()
        return value

    def part(self, item: pb.Array) -> ValueLayout:
        announced = self._announced(item)
        return ValueLayout(item, self, shape=(announced.count,), lengths=(announced.size,))

    def decode(self, part: ValueLayout, pieces: Sequence[memoryview]) -> Ciphertexts:
        return self._announced(part.item, pieces[0])

    def describe(self, part: ValueLayout) -> ValueInfo:
        sent = part.item.ciphertexts
        return super().describe(part)._replace(key=sent.key_id.hex(), additions=sent.additions)

    def detached(self, value: Ciphertexts) -> Ciphertexts:
        return value.copy()


class _Scalar(Codec):
    """Codec of numbers and texts, which are part of the descriptor."""

    kind, types, noun = "scalar", (bool, np.bool_, int, np.integer, float, np.floating, str), "a number or a text"
    is_scalar = True

    def named(self, value: Scalar | np.generic) -> str:
        return f"the {type(value).__name__} {value!r:.80}"

    def encode(self, item: pb.Array, value: Scalar | np.generic) -> tuple[Buffer, ...]:
        match value:
            case bool() | np.bool_():
                item.scalar.boolean = bool(value)
            case int() | np.integer():
                if not -LARGEST - 1 <= value <= LARGEST:
                    raise PayloadError(f"the integer {value} does not fit 64 bits")
                item.scalar.integer = int(value)
            case float() | np.floating():
                item.scalar.real = float(value)
            case str():
                item.scalar.text = value
        return ()

    def part(self, item: pb.Array) -> ValueLayout:
        if item.scalar.WhichOneof("value") is None:
            raise PayloadError(_UNKNOWN)
        return ValueLayout(item, self)

    def decode(self, part: ValueLayout, pieces: Sequence[memoryview]) -> Scalar:
        scalar: Scalar = getattr(part.item.scalar, part.item.scalar.WhichOneof("value") or "")
        return scalar

    def describe(self, part: ValueLayout) -> ValueInfo:
        return super().describe(part)._replace(dtype=part.item.scalar.WhichOneof("value") or "")

    def detached(self, value: Scalar | np.generic) -> Scalar | np.generic:
        return value


CODECS: Mapping[str, Codec] = {codec.kind: codec for codec in (_Dense(), _Sparse(), _Ciphertexts(), _Scalar())}
"""Codecs by the name of the kind in a descriptor."""

ARRAY_TYPES = tuple(kind for codec in CODECS.values() if isinstance(codec, ArrayCodec) for kind in codec.types)
"""Types of arrays that are not encrypted."""

_BY_TYPE = {kind: codec for codec in CODECS.values() for kind in codec.types}
_UNKNOWN = "it has no value of a kind that this version knows"


def codec_of(kind: type) -> Codec | None:
    """Return the codec of values of a type, or ``None`` if they cannot be sent."""
    found = _BY_TYPE.get(kind)  # subclasses are not found here
    return found or next((codec for codec in CODECS.values() if issubclass(kind, codec.types)), None)


def entries_of(value: Value) -> Entries | None:
    """Return the stored entries of an array, or ``None`` for a scalar or an encrypted vector."""
    codec = codec_of(type(value))
    return codec.entries(value) if isinstance(codec, ArrayCodec) else None


def noun_of(value: Value) -> str:
    """Return a description of a value for error messages, such as ``a dense array``."""
    codec = codec_of(type(value))
    return f"a {type(value).__name__}" if codec is None else codec.named(value)


def encode_value(item: pb.Array, value: object) -> tuple[Buffer, ...]:
    """Fill the descriptor of a value, which has its name already, and return the pieces of the body.

    Raise ``PayloadError`` if the value cannot be sent.
    """
    codec = codec_of(type(value))
    if codec is None:
        raise PayloadError(f"a {type(value).__name__} cannot be sent; use arrays, numbers or strings", array=item.name)
    try:
        return codec.encode(item, value)
    except PayloadError as error:
        raise error.at(array=item.name) from None


def part_of(item: pb.Array) -> ValueLayout:
    """Return the outline of one value; raise ``PayloadError`` if its descriptor is invalid."""
    try:
        codec = CODECS.get(item.WhichOneof("content") or "")
        if codec is None:
            raise PayloadError(_UNKNOWN)
        return codec.part(item)
    except PayloadError as error:
        raise error.at(array=item.name) from None


def _code(dtype: np.dtype[Any]) -> pb.DType.ValueType:
    """Return the protocol's code of a data type, or raise a ``PayloadError`` if it has none."""
    code = _CODES.get(dtype) or _CODES.get(dtype.newbyteorder("<"))
    if code is None:
        known = ", ".join(str(known) for known in _CODES)
        raise PayloadError(f"the array has dtype {dtype}, which cannot be sent; use one of {known}")
    return code


def _dtype(code: pb.DType.ValueType) -> np.dtype[Any]:
    dtype = DTYPES.get(code)
    if dtype is None:
        raise PayloadError(f"the array has a dtype of code {code}, which this version of Fenchel does not know")
    return dtype


def _bytes_of(array: Array) -> Buffer:
    """Return the array's little-endian bytes in C order, without a copy where it has them already."""
    array = np.asarray(array)  # convert subclasses such as matrices and masked arrays to plain arrays
    as_it_is = array.flags.c_contiguous and array.dtype in _CODES
    contiguous = array if as_it_is else np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
    return contiguous.reshape(-1).view(np.uint8).data


def _numbers(part: ValueLayout, pieces: Sequence[memoryview]) -> Array:
    """Return the last piece as numbers; reject booleans other than 0 and 1, with which NumPy computes wrong results."""
    assert part.dtype is not None
    numbers = np.frombuffer(pieces[-1], part.dtype) if len(pieces[-1]) else np.empty(0, part.dtype)
    if part.dtype.kind == "b" and numbers.size and numbers.view(np.uint8).max() > 1:
        raise PayloadError("the boolean array has bytes other than 0 and 1")
    return numbers
