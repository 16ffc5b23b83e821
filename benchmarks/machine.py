"""What machine a measurement was made on."""

from __future__ import annotations

import datetime
import os
import platform
from importlib import metadata
from pathlib import Path

_LIBRARIES = ("fenchel", "grpcio", "protobuf", "numpy", "scipy", "pyarrow")


def description() -> str:
    """Return date, processor, memory and versions, for people."""
    model = "an unknown processor"
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
    versions = ", ".join(f"{name} {metadata.version(name)}" for name in _LIBRARIES)
    cores = len(os.sched_getaffinity(0))  # those that this process may use
    return (
        f"{datetime.date.today()}, {cores} cores of {model}, {memory:.0f} GB, {platform.system()}, "
        f"Python {platform.python_version()}, {versions}"
    )
