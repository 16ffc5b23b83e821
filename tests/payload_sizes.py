"""Payload sizes as docs/specifications/fedpdm.md, sections 2.1 and 8, count them."""

from __future__ import annotations

from fenchel.common.arrays import Array
from fenchel.common.wire.index_sets import Encoding, bits, smallest
from fenchel.common.wire.values import SparseVector


def payload_bits(value: Array | SparseVector, encoding: Encoding | None = None) -> int:
    """Bits of values and support, without padding and framing; by default in the encoding that travels."""
    if not isinstance(value, SparseVector):
        return 8 * value.nbytes
    if encoding is None:
        encoding = smallest(value.indices, value.size, seeded=value.seed is not None)
    return 8 * value.values.nbytes + bits(encoding, value.indices, value.size)
