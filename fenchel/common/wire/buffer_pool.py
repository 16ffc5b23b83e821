"""Reuse of memory for message bodies.

A federation moves arrays of the same sizes in every round. Fetching fresh pages from the operating system for each of
them costs more than filling them, and doubled the time of a round in a measurement on a virtual machine. Buffers are
therefore used again, and the C allocator is configured to keep freed memory.
"""

from __future__ import annotations

import ctypes
import sys
from collections import deque
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_BLOCK_BYTES = 32 << 20  # largest mmap threshold that glibc accepts, in bytes
KEPT_BYTES = 128 << 20


def keep_freed_memory(kept_bytes: int = KEPT_BYTES) -> None:
    """Configure the C allocator to keep up to ``kept_bytes`` of freed memory. Without glibc this has no effect."""
    if sys.platform != "linux":
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _BLOCK_BYTES)
        mallopt(_M_TRIM_THRESHOLD, kept_bytes)


class BufferPool:
    """Pool of buffers, each of which is lent again once nothing refers to it any more.

    Parameters
    ----------
    kept_bytes
        Limit on the memory of the buffers that the pool keeps, idle or lent. Other buffers are freed after use.
    """

    def __init__(self, kept_bytes: int = _BLOCK_BYTES) -> None:
        self._kept_bytes = kept_bytes
        self._buffers: deque[NDArray[np.uint8]] = deque()
        self._total = 0
        # Measure the reference count of an idle buffer, which differs between versions of Python.
        lent = [np.empty(1, np.uint8)]
        (self._idle,) = _references(lent)
        view = lent[0].data
        if _references(lent) <= [self._idle]:
            self._kept_bytes = 0  # disable reuse, because reference counts do not reflect views in this interpreter
        del view

    def take(self, size: int) -> memoryview:
        """Return a buffer of ``size`` bytes with arbitrary contents. A new buffer gets its pages when it is written."""
        for buffer, references in zip(self._buffers, _references(self._buffers), strict=True):
            if buffer.size == size and references <= self._idle:
                return buffer.data
        buffer = np.empty(size, np.uint8)
        if size <= min(_BLOCK_BYTES, self._kept_bytes):
            self._buffers.append(buffer)
            self._total += size
            while self._total > self._kept_bytes:
                self._total -= self._buffers.popleft().size
        return buffer.data


def _references(buffers: Iterable[NDArray[np.uint8]]) -> list[int]:
    """Return the reference count of each buffer, to which every array and memoryview of it adds one."""
    return [sys.getrefcount(buffer) for buffer in buffers]
