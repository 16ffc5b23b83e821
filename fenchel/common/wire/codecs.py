"""The kinds of values that travel, each with its codec: whoever adds a kind adds one here.

A codec describes a value in a descriptor (``proto.Array``) and gives the pieces of the body that hold it; checks a
descriptor before anything is allocated; makes the value of the pieces; and says what of it a reader of the wire sees.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from fenchel.common.crypto.ciphertexts import LARGEST, Buffer, Ciphertexts
from fenchel.common.crypto.packing import Layout
from fenchel.common.errors import EncryptionError, PayloadError
from fenchel.common.wire import index_sets
from fenchel.common.wire.values import DTYPES, Array, Scalar, SparseVector, Value, naming
from fenchel.proto import fenchel_pb2 as pb

_MAX_DIMENSIONS = 32
_CODES: Mapping[np.dtype[Any], pb.DType.ValueType] = {dtype: code for code, dtype in DTYPES.items()}


class Description(NamedTuple):
    """What a descriptor says of one value, for the account of what crossed."""

    name: str
    content: str  # ``dense``, ``sparse``, ``scalar`` or ``ciphertexts``
    dtype: str  # of its entries; of a scalar ``real``, ``integer``, ``boolean`` or ``text``; empty for ciphertexts
    shape: tuple[int, ...]
    bytes: int  # in the body, without padding
    key: str = ""  # of ciphertexts: the id of the public key, in hexadecimal digits
    entries: int | None = None  # that are given, of a sparse vector
    additions: int | None = None  # of ciphertexts: of how many fresh vectors they are the sum


class OutlinePart(NamedTuple):
    """One value of a payload, as its descriptor announces it."""

    item: pb.Array  # its descriptor
    kind: str  # key of :data:`CODECS`
    dtype: np.dtype[Any] | None = None  # of the entries of a dense array or a sparse vector
    shape: tuple[int, ...] = ()  # of a dense array
    lengths: tuple[int, ...] = ()  # bytes of each piece in the body, without padding; entries come last
    drawn: int = 0  # length of a sparse vector whose support follows from a seed

    def decode(self, pieces: Sequence[memoryview]) -> Value:
        """Return the value, a read-only view of the pieces of the body where it is an array."""
        return CODECS[self.kind].decode(self, pieces)

    @property
    def description(self) -> Description:
        """What a reader of the wire sees of the value."""
        return CODECS[self.kind].describe(self)


@dataclass(frozen=True)
class Codec:
    """How one kind of value travels."""

    types: tuple[type, ...]  # of the values
    encode: Callable[[pb.Array, Any], tuple[Buffer, ...]]
    """Fills a value's descriptor; returns the pieces of the body, which refer to the value's own memory."""
    part: Callable[[pb.Array], OutlinePart]  # checks a descriptor
    decode: Callable[[OutlinePart, Sequence[memoryview]], Value]
    describe: Callable[[OutlinePart], Description]


def encode_value(item: pb.Array, value: object) -> tuple[Buffer, ...]:
    """Fill the descriptor of a value, which has its name already; return the pieces of the body."""
    for codec in CODECS.values():
        if isinstance(value, codec.types):
            return codec.encode(item, value)
    raise PayloadError(f"{item.name!r} is a {type(value).__name__}; arrays, numbers and text can travel")


def part_of(item: pb.Array) -> OutlinePart:
    """Check the descriptor of one value."""
    kind = item.WhichOneof("content")
    if kind is None:
        raise _unknown(item)
    return CODECS[kind].part(item)


def _unknown(item: pb.Array) -> PayloadError:
    return PayloadError(f"{item.name!r} has no value of a kind that this version knows")


# Dense arrays


def _encode_dense(item: pb.Array, value: Array) -> tuple[Buffer, ...]:
    item.dense.dtype = _code(item.name, value.dtype)
    item.dense.shape.extend(value.shape)
    return (_bytes_of(value),)


def _dense_part(item: pb.Array) -> OutlinePart:
    dense = item.dense
    dtype, shape = _dtype(item.name, dense.dtype), tuple(dense.shape)
    if len(shape) > _MAX_DIMENSIONS:
        raise PayloadError(f"array {item.name!r} has {len(shape)} dimensions")
    length = math.prod(shape) * dtype.itemsize
    # Also an array without entries may not have sides whose product is beyond what numpy can address.
    if (length or math.prod(side or 1 for side in shape) * dtype.itemsize) > LARGEST:
        raise PayloadError(f"array {item.name!r} has the shape {shape}, which none can have")
    return OutlinePart(item, "dense", dtype, shape, (length,))


def _decode_dense(part: OutlinePart, pieces: Sequence[memoryview]) -> Array:
    return _entries(part, pieces).reshape(part.shape)


def _describe_dense(part: OutlinePart) -> Description:
    return Description(part.item.name, part.kind, _named(part.item.dense.dtype), part.shape, sum(part.lengths))


# Sparse vectors: their support travels in the smallest of the encodings of index_sets


def _encode_sparse(item: pb.Array, value: SparseVector) -> tuple[Buffer, ...]:
    name, seed = item.name, 0
    if value.values.shape != value.indices.shape:
        raise PayloadError(f"sparse vector {name!r} has {value.values.shape} values for {value.indices.shape} indices")
    if not 0 <= value.size <= LARGEST:
        raise PayloadError(f"sparse vector {name!r} has the size {value.size}, which none can have")
    with naming(name):
        index_sets.check(value.indices, value.size)
        encoding = index_sets.smallest(value.indices, value.size, seeded=value.seed is not None)
        if value.seed is not None and encoding == pb.SEEDED:
            seed = value.seed
            index_sets.check_seed(seed, value.indices, value.size)
    packed = index_sets.pack(encoding, value.indices, value.size)
    item.sparse.CopyFrom(
        pb.Sparse(
            dtype=_code(name, value.values.dtype),
            size=value.size,
            count=len(value.indices),
            encoding=encoding,
            seed=seed,
            index_bytes=len(packed),
        )
    )
    return packed, _bytes_of(value.values)


def _sparse_part(item: pb.Array) -> OutlinePart:
    sparse = item.sparse
    problem = index_sets.index_bytes_problem(sparse.encoding, sparse.index_bytes, sparse.count, sparse.size)
    if sparse.size > LARGEST:
        problem = f"its size is {sparse.size}, which no vector can have"
    elif sparse.seed and sparse.encoding != pb.SEEDED:
        problem = "it has a seed, and its indices travel as such"
    if problem:
        raise PayloadError(f"sparse vector {item.name!r}: {problem}")
    dtype = _dtype(item.name, sparse.dtype)
    lengths = sparse.index_bytes, sparse.count * dtype.itemsize
    drawn = sparse.size if sparse.encoding == pb.SEEDED else 0
    return OutlinePart(item, "sparse", dtype, lengths=lengths, drawn=drawn)


def _decode_sparse(part: OutlinePart, pieces: Sequence[memoryview]) -> SparseVector:
    sparse, entries = part.item.sparse, _entries(part, pieces)
    with naming(part.item.name):
        indices = index_sets.unpack(sparse.encoding, pieces[0], sparse.count, sparse.size, sparse.seed)
    return SparseVector(indices, entries, sparse.size, sparse.seed if sparse.encoding == pb.SEEDED else None)


def _describe_sparse(part: OutlinePart) -> Description:
    sparse = part.item.sparse
    dtype, size = _named(sparse.dtype), sum(part.lengths)
    return Description(part.item.name, part.kind, dtype, (sparse.size,), size, entries=sparse.count)


# Ciphertexts


def _encode_ciphertexts(item: pb.Array, value: Ciphertexts) -> tuple[Buffer, ...]:
    problem = value.problem()
    if problem is None and len(value.data) != value.size:
        problem = f"have {len(value.data)} bytes, not {value.size}"
    if problem:
        raise PayloadError(f"ciphertexts {item.name!r} {problem}")
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


def _declared(item: pb.Array, data: Buffer = b"") -> Ciphertexts:
    """Return ciphertexts whose numbers have been checked against each other."""
    told = item.ciphertexts
    try:
        layout = Layout(told.slot_bits, told.fraction_bits, told.slots, told.value_bits)
    except EncryptionError as error:
        raise PayloadError(f"ciphertexts {item.name!r}: {error}") from None
    value = Ciphertexts(told.key_id, layout, told.count, told.additions, told.ciphertext_bytes, data)
    if problem := value.problem():
        raise PayloadError(f"ciphertexts {item.name!r} {problem}")
    return value


def _ciphertexts_part(item: pb.Array) -> OutlinePart:
    return OutlinePart(item, "ciphertexts", lengths=(_declared(item).size,))


def _decode_ciphertexts(part: OutlinePart, pieces: Sequence[memoryview]) -> Ciphertexts:
    return _declared(part.item, pieces[0])


def _describe_ciphertexts(part: OutlinePart) -> Description:
    told = part.item.ciphertexts
    return Description(
        part.item.name, part.kind, "", (told.count,), sum(part.lengths), told.key_id.hex(), additions=told.additions
    )


# Numbers and texts, which are part of the descriptor


def _encode_scalar(item: pb.Array, value: Scalar | np.generic) -> tuple[Buffer, ...]:
    match value:
        case bool() | np.bool_():
            item.scalar.boolean = bool(value)
        case int() | np.integer():
            if not -LARGEST - 1 <= value <= LARGEST:
                raise PayloadError(f"{item.name!r} is {value}, which does not fit 64 bits")
            item.scalar.integer = int(value)
        case float() | np.floating():
            item.scalar.real = float(value)
        case str():
            item.scalar.text = value
    return ()


def _scalar_part(item: pb.Array) -> OutlinePart:
    if item.scalar.WhichOneof("value") is None:
        raise _unknown(item)
    return OutlinePart(item, "scalar")


def _decode_scalar(part: OutlinePart, pieces: Sequence[memoryview]) -> Scalar:
    scalar: Scalar = getattr(part.item.scalar, part.item.scalar.WhichOneof("value") or "")
    return scalar


def _describe_scalar(part: OutlinePart) -> Description:
    return Description(part.item.name, part.kind, part.item.scalar.WhichOneof("value") or "", (), 0)


CODECS: Mapping[str, Codec] = {
    "dense": Codec((np.ndarray,), _encode_dense, _dense_part, _decode_dense, _describe_dense),
    "sparse": Codec((SparseVector,), _encode_sparse, _sparse_part, _decode_sparse, _describe_sparse),
    "ciphertexts": Codec(
        (Ciphertexts,), _encode_ciphertexts, _ciphertexts_part, _decode_ciphertexts, _describe_ciphertexts
    ),
    "scalar": Codec(
        (bool, np.bool_, int, np.integer, float, np.floating, str),
        _encode_scalar,
        _scalar_part,
        _decode_scalar,
        _describe_scalar,
    ),
}
"""By the name that the descriptor has for the kind."""


def _code(name: str, dtype: np.dtype[Any]) -> pb.DType.ValueType:
    """Return the number of a type of entries; ``name``: of the array, for the error."""
    code = _CODES.get(dtype) or _CODES.get(dtype.newbyteorder("<"))
    if code is None:
        known = ", ".join(str(known) for known in _CODES)
        raise PayloadError(f"array {name!r} has dtype {dtype}, which cannot travel; use one of {known}")
    return code


def _dtype(name: str, code: pb.DType.ValueType) -> np.dtype[Any]:
    dtype = DTYPES.get(code)
    if dtype is None:
        raise PayloadError(f"array {name!r} has a dtype that this version does not know (code {code})")
    return dtype


def _named(code: pb.DType.ValueType) -> str:
    return pb.DType.Name(code).lower()


def _bytes_of(array: Array) -> Buffer:
    """Return the array's little-endian bytes in C order, without a copy where it has them already."""
    array = np.asarray(array)  # no matrix, and no mask
    as_it_is = array.flags.c_contiguous and array.dtype in _CODES
    contiguous = array if as_it_is else np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
    return contiguous.reshape(-1).view(np.uint8).data


def _entries(part: OutlinePart, pieces: Sequence[memoryview]) -> Array:
    """Return the last piece as numbers; refuse booleans other than 0 and 1, with which numpy would compute nonsense."""
    assert part.dtype is not None
    entries = np.frombuffer(pieces[-1], part.dtype) if len(pieces[-1]) else np.empty(0, part.dtype)
    if part.dtype.kind == "b" and entries.size and entries.view(np.uint8).max() > 1:
        raise PayloadError(f"boolean array {part.item.name!r} has bytes other than 0 and 1")
    return entries
