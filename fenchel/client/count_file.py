"""A count in a file of its own, which survives the process. After a loss of power it may be too small."""

from __future__ import annotations

import os
from pathlib import Path

from fenchel.common.storage.store import make_private_folder


def counted(path: Path | None) -> int:
    """Return what a count says; 0 where there is none, or a crash has spoilt it."""
    if path is None:
        return 0
    try:
        return int(path.read_bytes())
    except (OSError, ValueError):
        return 0


def write_count(path: Path, count: int) -> None:
    """Write a count, into a file that only its owner reads, as its folder if it is made."""
    make_private_folder(path.parent)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
    try:
        # Always as long, so that nothing old is left behind it.
        os.write(descriptor, f"{count:020d}\n".encode())
    finally:
        os.close(descriptor)
