"""What a process takes of the machine's memory, as the kernel counts it."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

_EVERY = 0.01  # seconds


def resident(process: int) -> int:
    """Return the bytes that a process has now."""
    return _counted(process, "VmRSS")


def peak(process: int) -> int:
    """Return the most bytes that a process has had since it began."""
    return _counted(process, "VmHWM")


def _counted(process: int, what: str) -> int:
    found = re.search(rf"{what}:\s+(\d+) kB", Path(f"/proc/{process}/status").read_text())
    assert found, "no process"
    return int(found[1]) << 10


@dataclass
class Growth:
    """How much more memory this process has had than at the start."""

    start: int
    most: int = 0


@contextmanager
def growth() -> Iterator[Growth]:
    """Look at this process's memory every few milliseconds for the duration of a ``with`` block.

    The peak that the kernel keeps never falls, and would hide what takes less than an earlier test did.
    """
    own = os.getpid()
    found = Growth(resident(own))
    ended = threading.Event()

    def look() -> None:
        while not ended.wait(_EVERY):
            found.most = max(found.most, resident(own) - found.start)

    looking = threading.Thread(target=look)
    looking.start()
    try:
        yield found
    finally:
        ended.set()
        looking.join()
