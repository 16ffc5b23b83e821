"""Memory that is used again.

A federation moves arrays of the same sizes in every round. Fetching fresh pages from the operating
system for each of them costs more than filling them: on a virtual machine it was measured to double the
time of a round. So buffers are used again, and the C allocator is told to keep what was freed.
"""

from __future__ import annotations

import ctypes
import sys

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
        self._buffer = bytearray()

    def take(self, size: int) -> bytearray:
        """Return a buffer of ``size`` bytes with arbitrary contents."""
        if len(self._buffer) == size and _is_free(self._buffer):
            return self._buffer
        buffer = bytearray(size)
        self._buffer = buffer if size <= _BLOCK_BYTES else bytearray()
        return buffer


def _is_free(buffer: bytearray) -> bool:
    """Whether no array and no memoryview refers to the buffer: only then can its length change."""
    try:
        buffer.append(0)
        buffer.pop()
    except BufferError:
        return False
    return True
