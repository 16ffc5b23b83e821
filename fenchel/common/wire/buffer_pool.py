"""Memory that is used again.

A federation moves arrays of the same sizes in every round. Fetching fresh pages from the operating
system for each of them costs more than filling them: on a virtual machine it was measured to double the
time of a round. So buffers are used again, and the C allocator is told to keep what was freed.
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
_BLOCK_BYTES = 32 << 20  # the largest threshold that glibc takes
KEPT_BYTES = 128 << 20


def keep_freed_memory(kept_bytes: int = KEPT_BYTES) -> None:
    """Let the C allocator keep so much freed memory; does nothing where there is no glibc."""
    if sys.platform != "linux":
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _BLOCK_BYTES)
        mallopt(_M_TRIM_THRESHOLD, kept_bytes)


class BufferPool:
    """Hands out a buffer again once nobody looks at it any more.

    Parameters
    ----------
    kept_bytes
        How much memory of buffers it holds on to, idle or in use, over all of its users; the rest is given back.
    """

    def __init__(self, kept_bytes: int = _BLOCK_BYTES) -> None:
        self._kept_bytes = kept_bytes
        self._buffers: deque[NDArray[np.uint8]] = deque()
        self._total = 0
        # How many references a buffer has that nobody looks at differs between versions of Python.
        lent = [np.empty(1, np.uint8)]
        (self._idle,) = _references(lent)
        view = lent[0].data
        if _references(lent) <= [self._idle]:
            self._kept_bytes = 0  # nothing is used again where Python does not tell
        del view

    def take(self, size: int) -> memoryview:
        """Return a buffer of ``size`` bytes with arbitrary contents; fresh pages come when they are written."""
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
    """Return how many references there are to each buffer: every array and memoryview of it holds one."""
    return [sys.getrefcount(buffer) for buffer in buffers]
