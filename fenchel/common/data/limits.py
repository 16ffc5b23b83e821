"""Limits of what a data file may become when it is read.

A small file can announce, or decompress to, far more than a machine has. What follows is checked before it is
allocated, so that such a file is an error and not the end of the process.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from fenchel.common.errors import DataError
from fenchel.common.memory import memory_bytes

_COPIES = 4
"""Data are held up to three times while they are prepared, beside everything else in the memory."""


@dataclass(frozen=True)
class DataLimits:
    """Limits of one data file.

    Attributes
    ----------
    features
        How many features its samples may have.
    bytes
        Bytes that it may have when decompressed, and its values in memory with eight bytes each.
    """

    features: int = 100_000_000
    bytes: int = field(default_factory=lambda: memory_bytes() // _COPIES)

    def require_features(self, features: int, path: Path) -> None:
        """Refuse a file whose samples have more features than they may."""
        if features > self.features:
            raise DataError(
                f"has {features:,} features; the limit is {self.features:,}. If so many are meant, raise it with "
                "--max-features of fenchel client or fenchel data import",
                source=path,
            )

    def require_bytes(self, size: int, path: Path) -> None:
        """Refuse a file that would take ``size`` bytes of memory or more, if these are more than it may."""
        if size > self.bytes:
            raise DataError(
                f"takes {size:,} bytes or more when read; the limit is {self.bytes:,}. On a machine that has several "
                "times that memory, raise it with --max-data-bytes of fenchel client or fenchel data import",
                source=path,
            )


ORDINARY: Final = DataLimits()
"""The limits of files of unknown origin."""

UNLIMITED: Final = DataLimits(sys.maxsize, sys.maxsize)
"""No limits, for files whose size is known: those of the catalogue, and those that Fenchel wrote."""


@contextmanager
def within_memory(path: Path) -> Iterator[None]:
    """Raise :class:`DataError` where a data file turns out to need more memory than there is."""
    try:
        yield
    except MemoryError as error:
        raise DataError(
            "needs more memory than this process has; use a machine or a container with more, or fewer samples",
            source=path,
        ) from error
