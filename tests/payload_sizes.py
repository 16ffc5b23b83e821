"""Payload sizes as docs/specifications/fedpdm.md, sections 2.1 and 8, count them."""

from __future__ import annotations

from fenchel.common.arrays import Array, Indices
from fenchel.common.wire.index_sets import Encoding, pack, smallest
from fenchel.common.wire.values import SparseVector
from fenchel.proto import fenchel_pb2 as pb


def support_bits(encoding: Encoding, indices: Indices, size: int) -> int:
    """Bits of an encoded index set, without padding."""
    bits = {
        pb.DELTA_VARINT: 8 * len(pack(pb.DELTA_VARINT, indices, size)),
        pb.INDEX_LIST: len(indices) * (size - 1).bit_length(),
        pb.BITMAP: size,
        pb.SEEDED: 64,
        pb.EVERY_ENTRY: 0,
    }
    assert encoding != pb.EVERY_ENTRY or len(indices) == size
    return bits[encoding]


def payload_bits(value: Array | SparseVector, encoding: Encoding | None = None) -> int:
    """Bits of values and support, without padding and framing; by default in the encoding that travels."""
    if not isinstance(value, SparseVector):
        return 8 * value.nbytes
    if encoding is None:
        encoding = smallest(value.indices, value.size, seeded=value.seed is not None)
    return 8 * value.values.nbytes + support_bits(encoding, value.indices, value.size)
