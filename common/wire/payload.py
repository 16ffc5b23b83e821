"""Named arrays to bytes.

A payload is a mapping from names to values (:mod:`fenchel.common.wire.values`). Encoding gives a descriptor
(``proto.Payload``: names, types, shapes) and a body, the concatenation of all arrays' bytes, each aligned to
8 bytes so that decoding (:mod:`fenchel.common.wire.outline`) needs no copy. Of a sparse vector, which entries
are given (its support) travels in whichever of the encodings of :mod:`fenchel.common.wire.index_sets` is the
smallest. The body may be larger than a protobuf message can be: it travels in chunks
(:mod:`fenchel.common.wire.frames`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from fenchel.common.crypto.ciphertexts import LARGEST, Buffer, Ciphertexts
from fenchel.common.errors import PayloadError
from fenchel.common.wire import index_sets
from fenchel.common.wire.values import ALIGNMENT, DTYPES, Array, SparseVector, Values, naming
from fenchel.proto import fenchel_pb2 as pb

_BOOLEANS, _INTEGERS, _REALS = (bool, np.bool_), (int, np.integer), (float, np.floating)
_CODES: Mapping[np.dtype[Any], pb.DType.ValueType] = {dtype: code for code, dtype in DTYPES.items()}


@dataclass(frozen=True)
class Encoded:
    """A payload ready to travel."""

    descriptor: pb.Payload  # what the body holds
    segments: tuple[Buffer, ...]
    """The body in pieces, in order. They refer to the arrays' own memory: a large array that is being sent must not
    change."""
    size: int  # bytes of the body

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
    """Encode named values."""
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
            packed = index_sets.pack(item.sparse.encoding, value.indices, value.size)
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
            if not -LARGEST - 1 <= value <= LARGEST:
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
        raise PayloadError(f"sparse vector {name!r} has {value.values.shape} values for {value.indices.shape} indices")
    if not 0 <= value.size <= LARGEST:
        raise PayloadError(f"sparse vector {name!r} has the size {value.size}, which none can have")
    with naming(name):
        index_sets.check(value.indices, value.size)
        encoding = index_sets.smallest(value.indices, value.size, seeded=value.seed is not None)
        seed = 0
        if value.seed is not None and encoding == pb.SEEDED:
            seed = value.seed
            index_sets.check_seed(seed, value.indices, value.size)
    return pb.Sparse(
        dtype=_code(name, value.values.dtype), size=value.size, count=len(value.indices), encoding=encoding, seed=seed
    )


def payload_bits(value: Array | SparseVector, encoding: index_sets.Encoding | None = None) -> int:
    """Return the bits of an array's values and, of a sparse vector, of its support, without padding and framing.

    These are the payload sizes of docs/specifications/fedpdm.md, sections 2.1 and 8. Values whose support the receiver
    knows already can travel as a dense array, and then cost their own bits only.

    value: a dense array or a sparse vector.
    encoding: of a sparse vector's support; default: the one in which it travels, which is the smallest.
    """
    if not isinstance(value, SparseVector):
        return 8 * value.nbytes
    if encoding is None:
        encoding = index_sets.smallest(value.indices, value.size, seeded=value.seed is not None)
    return 8 * value.values.nbytes + index_sets.bits(encoding, value.indices, value.size)


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
