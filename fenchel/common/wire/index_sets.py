"""Index sets of sparse vectors and their compact encodings.

An index set holds the positions of the stored entries in ascending order. It is sent in one of the encodings of
``proto.SupportEncoding`` (docs/specifications/fedpdm.md, sections 2.1 and 8), which :func:`smallest` chooses. A seeded
index set (docs/specifications/fedpdm.md, section 2.5) follows from a number, so both sides know it without its indices.

Received data is not trusted. :func:`check_index_bytes` checks the lengths that a sender declares, and :func:`unpack`
the bytes. Accepted data takes at most about 100 bytes of memory for each stored entry or each byte received.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from fenchel.common.arrays import Indices
from fenchel.common.errors import PayloadError
from fenchel.proto import fenchel_pb2 as pb

Encoding: TypeAlias = pb.SupportEncoding.ValueType
Octets: TypeAlias = NDArray[np.uint8]

SEED_BITS = 64
MAX_SEEDED_SIZE = 1 << 27
"""Longest vector whose index set may be sent as a seed, because the receiver hashes each of its positions."""

_LONGEST_VARINT = 9  # bytes of a varint of 63 bits
_BLOCK = 1 << 13  # indices processed at a time; a multiple of 8, so that each block fills whole bytes
_HASH_BLOCK = 1 << 15  # positions whose hashes fit the processor's cache
_WORD = 1 << 64
_GOLDEN = 0x9E3779B97F4A7C15
_MIX = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)


def check(indices: Indices, size: int) -> None:
    """Raise a ``PayloadError`` unless the indices are strictly increasing within a vector of ``size`` entries."""
    if indices.ndim != 1 or indices.dtype != np.int64:
        raise PayloadError("the indices are not a one-dimensional array of int64")
    if len(indices) and (indices[0] < 0 or indices[-1] >= size or not (indices[1:] > indices[:-1]).all()):
        raise PayloadError(f"the indices do not increase strictly within 0..{size - 1}")


def check_seed(seed: int, indices: Indices, size: int) -> None:
    """Raise a ``PayloadError`` unless the index set is the one that a receiver derives from the seed."""
    right = 0 <= seed < _WORD
    if right and len(indices):
        own = _start(seed) + indices.astype(np.uint64)
        _mix(own, np.empty_like(own))
        largest = _finished(own).max()
        # The set holds the smallest hashes if the number of hashes up to its largest equals its size.
        small = sum(np.count_nonzero(_finished(h) <= largest) for _, h in _mixed(seed, size))
        right = small == len(indices)
    if not right:
        raise PayloadError(f"the indices differ from the index set of the seed {seed}")


def smallest(indices: Indices, size: int, *, seeded: bool = False) -> Encoding:
    """Return the encoding that takes the fewest bits, and the faster one if two take the same.

    Parameters
    ----------
    indices
        Index set, valid by :func:`check`.
    seeded
        Whether the index set follows from a seed that may be sent in its place.
    """
    if len(indices) == size:
        return pb.EVERY_ENTRY
    costs = {pb.BITMAP: size, pb.INDEX_LIST: len(indices) * _width(size)}
    if seeded and size <= MAX_SEEDED_SIZE:
        costs[pb.SEEDED] = SEED_BITS
    if 8 * len(indices) <= min(costs.values()):  # cannot be smaller: each difference takes at least a byte
        length = sum(int(_varint_lengths(gaps).sum(dtype=np.int64)) for gaps in _gaps(indices))
        costs = {pb.DELTA_VARINT: 8 * length, **costs}
    return min(costs, key=costs.__getitem__)


def pack(encoding: Encoding, indices: Indices, size: int) -> bytes:
    """Return the encoded index set, which is empty if it needs no indices. A seed is part of the descriptor."""
    if encoding == pb.DELTA_VARINT:
        return b"".join(map(_packed_varint, _gaps(indices)))
    if encoding == pb.INDEX_LIST:
        return _pack_list(indices, _width(size))
    if encoding == pb.BITMAP:
        chosen = np.zeros(size, np.bool_)
        chosen[indices] = True
        return np.packbits(chosen, bitorder="little").tobytes()
    return b""


def check_index_bytes(encoding: Encoding, index_bytes: int, count: int, size: int) -> None:
    """Check the declared length of an encoded index set, without allocating memory.

    Raises
    ------
    PayloadError
        If the numbers contradict each other, or this version does not know the encoding.
    """
    if count > size:
        raise PayloadError(f"{count} entries do not fit a vector of {size}")
    if encoding == pb.DELTA_VARINT:
        fits = count <= index_bytes <= _LONGEST_VARINT * count
    elif encoding == pb.INDEX_LIST:
        fits = index_bytes == -(-count * _width(size) // 8)
    elif encoding == pb.BITMAP:
        fits = index_bytes == -(-size // 8)
    elif encoding == pb.SEEDED:
        fits = index_bytes == 0
    elif encoding == pb.EVERY_ENTRY:
        fits = index_bytes == 0 and count == size
    else:
        raise PayloadError(
            f"the indices have an encoding of code {encoding}, which this version of Fenchel does not know"
        )
    if not fits:
        raise PayloadError(
            f"{count} entries in {index_bytes} index bytes do not fit a vector of {size} in encoding "
            f"{pb.SupportEncoding.Name(encoding)}"
        )


def unpack(encoding: Encoding, packed: memoryview, count: int, size: int, seed: int) -> Indices:
    """Decode an index set that :func:`pack` encoded.

    Parameters
    ----------
    encoding, packed, count, size
        Received values, which :func:`check_index_bytes` accepts.
    seed
        Seed of a seeded index set.

    Returns
    -------
    Indices
        Shape (count,), int64, strictly increasing, within 0..size-1.

    Raises
    ------
    PayloadError
        If the bytes are not a valid encoding of ``count`` indices.
    """
    if encoding == pb.EVERY_ENTRY:
        return np.arange(size)
    if encoding == pb.SEEDED:
        return seeded_support(seed, size, count)
    octets = np.frombuffer(packed, np.uint8) if len(packed) else np.empty(0, np.uint8)
    if encoding == pb.BITMAP:
        return _unpack_bitmap(octets, count, size)
    listed = encoding == pb.INDEX_LIST
    indices = _unpack_list(octets, count, _width(size)) if listed else _unpack_varint(octets, count)
    check(indices, size)
    return indices


def splitmix64(number: int) -> int:
    """Return the output of the mixing function of the SplitMix64 generator for a 64-bit number."""
    mixed = (number + _GOLDEN) % _WORD
    mixed = (mixed ^ mixed >> 30) * _MIX[0] % _WORD
    mixed = (mixed ^ mixed >> 27) * _MIX[1] % _WORD
    return mixed ^ mixed >> 31


def seeded_support(seed: int, size: int, count: int, excluded: Indices | None = None) -> Indices:
    """Return the index set that follows from a seed (docs/specifications/fedpdm.md, section 2.5).

    It has the ``count`` admissible indices j with the smallest ``splitmix64(splitmix64(seed) + j)``. Every
    implementation finds the same set, in time O(size) and memory O(count).

    Parameters
    ----------
    seed
        Seed within 0..2^64-1.
    excluded
        Inadmissible indices, shape (n,), strictly increasing, within 0..size-1; none by default.

    Returns
    -------
    Indices
        Index set, shape (count,), strictly increasing.

    Raises
    ------
    ValueError
        If ``seed`` or ``count`` is out of range.
    """
    taken = np.empty(0, np.int64) if excluded is None else excluded
    admissible = size - len(taken)
    if not 0 <= seed < _WORD:
        raise ValueError(f"the seed is {seed}; expected 0 to 2^64 - 1")
    if not 0 <= count <= admissible:
        raise ValueError(
            f"count is {count}; expected 0 to {admissible}, as {admissible} of {size} indices are admissible"
        )
    if count == 0:
        return np.empty(0, np.int64)
    if count == admissible:
        return np.setdiff1d(np.arange(size), taken, assume_unique=True)
    # Hashes are nearly uniform, so a bound slightly higher than needed almost surely leaves enough of them.
    wanted = count + 8 * count**0.5 + 16
    while True:
        bound = min(int(wanted / admissible * (1 << 31)) + 1, 1 << 31) << 33
        indices, hashes = _hashed_below(bound, seed, size)
        if len(taken):
            free = ~np.isin(indices, taken, assume_unique=True)
            indices, hashes = indices[free], hashes[free]
        if len(indices) >= count:
            # No two hashes are equal, because splitmix64 is a bijection.
            chosen: Indices = indices[hashes <= np.partition(hashes, count - 1)[count - 1]]
            return chosen
        wanted *= 2


def _hashed_below(bound: int, seed: int, size: int) -> tuple[Indices, NDArray[np.uint64]]:
    """Return the indices whose hashes are below ``bound``, a multiple of 2^33, and the hashes of these indices."""
    expected = size * bound >> 64
    indices = np.empty(expected + 8 * math.isqrt(expected) + 64, np.int64)
    hashes = np.empty(len(indices), np.uint64)
    found = 0
    last = np.uint64(bound - 1)
    for start, h in _mixed(seed, size):
        # The upper 31 bits suffice for this comparison, and the last step of the hash does not change them.
        here = np.flatnonzero(h <= last)
        if found + len(here) > len(indices):
            room = len(indices) + _HASH_BLOCK
            indices, hashes = np.resize(indices, room), np.resize(hashes, room)
        place = slice(found, found + len(here))
        np.add(here, start, out=indices[place])
        hashes[place] = _finished(h[here])
        found += len(here)
    return indices[:found], hashes[:found]


def _mixed(seed: int, size: int) -> Iterator[tuple[int, NDArray[np.uint64]]]:
    """Yield the first index of each block of positions, and the block's hashes before the step :func:`_finished`.

    Every block overwrites the one before it.
    """
    steps = _start(seed) + np.arange(min(size, _HASH_BLOCK), dtype=np.uint64)
    mixed, spare = np.empty_like(steps), np.empty_like(steps)
    for start in range(0, size, _HASH_BLOCK):
        block = slice(0, min(_HASH_BLOCK, size - start))
        np.add(steps[block], np.uint64(start), out=mixed[block])
        _mix(mixed[block], spare[block])
        yield start, mixed[block]


def _start(seed: int) -> np.uint64:
    """Return the SplitMix64 state of index 0. The state of index i is this number plus i, and is mixed to its hash."""
    return np.uint64((splitmix64(seed) + _GOLDEN) % _WORD)


def _mix(h: NDArray[np.uint64], spare: NDArray[np.uint64]) -> None:
    """Apply all but the last step of :func:`splitmix64`, in place."""
    for shift, factor in zip((30, 27), _MIX, strict=True):
        np.right_shift(h, np.uint64(shift), out=spare)
        np.bitwise_xor(h, spare, out=h)
        np.multiply(h, np.uint64(factor), out=h)


def _finished(h: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return the hashes after the last step of :func:`splitmix64`."""
    return h ^ h >> np.uint64(31)


def _width(size: int) -> int:
    """Return the number of bits of the largest index of a vector."""
    return int(max(size - 1, 0)).bit_length()


def _gaps(indices: Indices) -> Iterator[Indices]:
    """Yield the first index and the differences of successive indices, block by block."""
    for start in range(0, len(indices), _BLOCK):
        yield np.diff(indices[start : start + _BLOCK], prepend=indices[start - 1] if start else 0)


def _varint_lengths(gaps: Indices) -> Octets:
    """Return the length of each number in LEB128, in bytes, shape (k,), uint8."""
    lengths = np.ones(len(gaps), np.uint8)
    for low in range(7, int(gaps.max()).bit_length(), 7):
        lengths += gaps >= 1 << low
    return lengths


def _packed_varint(numbers: Indices) -> bytes:
    """Return numbers in LEB128: 7 bits a byte, low bits first."""
    lengths = _varint_lengths(numbers)
    longest = int(lengths.max())
    if longest == 1:
        return numbers.astype(np.uint8).tobytes()
    ends = np.cumsum(lengths, dtype=np.int64)
    out = np.empty(ends[-1], np.uint8)
    place = ends - lengths
    for byte in range(longest):
        more = lengths > byte + 1
        out[place] = (numbers & 0x7F).astype(np.uint8) | more.view(np.uint8) << np.uint8(7)
        numbers, lengths, place = numbers[more] >> 7, lengths[more], place[more] + 1
    return out.tobytes()


def _unpack_varint(octets: Octets, count: int) -> Indices:
    gaps = np.empty(count, np.int64)
    read = found = 0
    while read < len(octets):
        block = octets[read : read + _BLOCK]
        ends = np.flatnonzero(block < 0x80)
        if not len(ends) or found + len(ends) > count:
            raise PayloadError(f"the encoded indices do not hold {count} LEB128 numbers, one for each entry")
        gaps[found : found + len(ends)] = _unpacked_varint(block, ends)
        found += len(ends)
        read += int(ends[-1]) + 1
    if found != count:
        raise PayloadError(f"the encoded indices do not hold {count} LEB128 numbers, one for each entry")
    if not gaps[1:].all():
        raise PayloadError("the encoded indices do not increase")
    indices = np.cumsum(gaps, out=gaps)
    if indices.min(initial=0) < 0:  # the first sum beyond 63 bits is negative
        raise PayloadError("an encoded index does not fit 63 bits")
    return indices


def _unpacked_varint(octets: Octets, ends: Indices) -> Indices:
    """Return the numbers whose last bytes are at ``ends``."""
    lengths = np.diff(ends, prepend=-1)
    if lengths.max() > _LONGEST_VARINT:
        raise PayloadError("an encoded index does not fit 63 bits")
    numbers = octets[ends].astype(np.int64)
    # The highest bits come last, so longer numbers are read from their last byte towards their first.
    long = np.flatnonzero(lengths > 1)
    if not numbers[long].all():
        raise PayloadError("an encoded index has more bytes than necessary")
    byte = 1
    while len(long):
        numbers[long] = numbers[long] << 7 | octets[ends[long] - byte] & 0x7F
        byte += 1
        long = long[lengths[long] > byte]
    return numbers


def _pack_list(indices: Indices, width: int) -> bytes:
    """Return the indices in ``width`` bits each, low bits first."""
    pieces = []
    for start in range(0, len(indices), _BLOCK):
        octets = np.ascontiguousarray(indices[start : start + _BLOCK], "<i8").view(np.uint8)
        each = np.unpackbits(octets.reshape(-1, 8), axis=1, count=width, bitorder="little")
        pieces.append(np.packbits(each, bitorder="little").tobytes())
    return b"".join(pieces)


def _unpack_list(octets: Octets, count: int, width: int) -> Indices:
    indices = np.empty(count, "<i8")
    for start in range(0, count, _BLOCK):
        block = indices[start : start + _BLOCK]
        piece = octets[start * width // 8 : -(-(start + len(block)) * width // 8)]
        content = np.unpackbits(piece, bitorder="little")
        if content[len(block) * width :].any():
            raise PayloadError("the bits after the last encoded index are not zero")
        each = np.zeros((len(block), 64), np.uint8)
        each[:, :width] = content[: len(block) * width].reshape(len(block), width)
        block[:] = np.packbits(each, axis=1, bitorder="little").view("<i8").reshape(-1)
    return indices.astype(np.int64, copy=False)


def _unpack_bitmap(octets: Octets, count: int, size: int) -> Indices:
    given = int(np.bitwise_count(octets).sum(dtype=np.int64))
    if given != count:
        raise PayloadError(f"the bitmap marks {given} indices, but there are {count} entries")
    if size % 8 and octets[-1] >> size % 8:
        raise PayloadError("the bits after the end of the bitmap are not zero")
    return np.flatnonzero(np.unpackbits(octets, count=size, bitorder="little").view(np.bool_))
