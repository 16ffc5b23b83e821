"""Memory that is used again.

A federation moves arrays of the same sizes in every round. Fetching fresh pages from the operating
system for each of them costs more than filling them: on a virtual machine it was measured to double the
time of a round. So buffers are used again, and the C allocator is told to keep what was freed.
"""

from __future__ import annotations

import ctypes
import sys

import numpy as np

_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_BLOCK_BYTES = 32 << 20  # the largest threshold that glibc takes
_KEPT_BYTES = 128 << 20


def keep_freed_memory() -> None:
    """Let the C allocator keep up to 128 MiB of freed memory; does nothing where there is no glibc."""
    if sys.platform != "linux":
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _BLOCK_BYTES)
        mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)


class Recycler:
    """Hands out a buffer again once nobody looks at it any more; large ones are given back instead."""

    def __init__(self) -> None:
        self._buffer = np.empty(0, np.uint8)

    def take(self, size: int) -> memoryview:
        """Return a buffer of ``size`` bytes with arbitrary contents; fresh pages come when they are written.

        Raises
        ------
        MemoryError
            There is not so much memory.
        """
        # Every array and memoryview of the buffer holds a reference to it; two are this method's own.
        if self._buffer.size == size and sys.getrefcount(self._buffer) <= 2:
            return self._buffer.data
        buffer = np.empty(size, np.uint8)
        if size <= _BLOCK_BYTES:
            self._buffer = buffer
        return buffer.data
