"""Counter in a file, which survives the process. After a power failure the count may be too small."""

from __future__ import annotations

import os
from pathlib import Path

from fenchel.common.storage.store import make_private_folder


def counted(path: Path | None) -> int:
    """Return the stored count, or 0 if the file is missing or damaged, or ``path`` is ``None``."""
    if path is None:
        return 0
    try:
        return int(path.read_bytes())
    except (OSError, ValueError):
        return 0


def write_count(path: Path, count: int) -> None:
    """Write a count into a file that only its owner can read, and create its folder if necessary."""
    make_private_folder(path.parent)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
    try:
        # A fixed length overwrites all digits of an older count.
        os.write(descriptor, f"{count:020d}\n".encode())
    finally:
        os.close(descriptor)
