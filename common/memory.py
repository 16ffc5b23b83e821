"""Memory that is used again.

A federation moves arrays of the same sizes in every round. Fetching fresh pages from the operating
system for each of them costs more than filling them: on a virtual machine it was measured to double the
time of a round. So buffers are used again, and the C allocator is told to keep what was freed.
"""

from __future__ import annotations

import ctypes
import sys
from collections import deque

import numpy as np
from numpy.typing import NDArray

_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_BLOCK_BYTES = 32 << 20  # the largest threshold that glibc takes
KEPT_BYTES = 128 << 20


def keep_freed_memory() -> None:
    """Let the C allocator keep up to 128 MiB of freed memory; does nothing where there is no glibc."""
    if sys.platform != "linux":
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _BLOCK_BYTES)
        mallopt(_M_TRIM_THRESHOLD, KEPT_BYTES)


class Recycler:
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

    def take(self, size: int) -> memoryview:
        """Return a buffer of ``size`` bytes with arbitrary contents; fresh pages come when they are written.

        Raises
        ------
        MemoryError
            There is not so much memory.
        """
        for buffer in self._buffers:
            # Every array and memoryview of a buffer holds a reference to it; three are this class's own.
            if buffer.size == size and sys.getrefcount(buffer) <= 3:
                return buffer.data
        buffer = np.empty(size, np.uint8)
        if size <= min(_BLOCK_BYTES, self._kept_bytes):
            self._buffers.append(buffer)
            self._total += size
            while self._total > self._kept_bytes:
                self._total -= self._buffers.popleft().size
        return buffer.data
