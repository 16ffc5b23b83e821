"""How much memory there is."""

from __future__ import annotations

import os
from pathlib import Path

_CONTAINER = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))


def memory_bytes() -> int:
    """Return the memory of this machine, or of the container if that has less, in bytes."""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for path in _CONTAINER:
        told = path.read_text().strip() if path.exists() else ""
        if told.isdecimal():  # "max": no limit
            memory = min(memory, int(told))
    return memory
