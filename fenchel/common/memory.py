"""Memory size of the machine."""

from __future__ import annotations

import os
from pathlib import Path

_CONTAINER = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))


def memory_bytes() -> int:
    """Return the memory of this machine in bytes, or that of the container if it is less."""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for path in _CONTAINER:
        limit = path.read_text().strip() if path.exists() else ""
        if limit.isdecimal():  # "max" means no limit
            memory = min(memory, int(limit))
    return memory
