"""Limits on the memory for reading a data file.

A small file can announce, or decompress to, more bytes than a machine has. Sizes are checked before memory is
allocated, so that such a file causes an error and does not kill the process.
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
"""Ratio of the memory to the limit for one data file, because up to three copies exist during preparation."""


@dataclass(frozen=True)
class DataLimits:
    """Limits on one data file.

    Attributes
    ----------
    features
        Largest number of features.
    bytes
        Largest size in bytes of the decompressed file, and of its values in memory at eight bytes each.
    """

    features: int = 100_000_000
    bytes: int = field(default_factory=lambda: memory_bytes() // _COPIES)

    def require_features(self, features: int, path: Path) -> None:
        """Raise a ``DataError`` if the number of features exceeds the limit."""
        if features > self.features:
            raise DataError(
                f"the data set has {features:,} features, above the limit of {self.features:,}; if this is "
                "intended, raise the limit with --max-features of fenchel client or fenchel data import",
                source=path,
            )

    def require_bytes(self, size: int, path: Path) -> None:
        """Raise a ``DataError`` if ``size``, the least memory for a file in bytes, exceeds the limit."""
        if size > self.bytes:
            raise DataError(
                f"the data set takes at least {size:,} bytes in memory, above the limit of {self.bytes:,}; on a "
                "machine with several times that memory, raise the limit with --max-data-bytes of fenchel client "
                "or fenchel data import",
                source=path,
            )


ORDINARY: Final = DataLimits()
"""Limits for files of unknown origin."""

UNLIMITED: Final = DataLimits(sys.maxsize, sys.maxsize)
"""No limits, for files of known size: those of the catalogue, and those written by Fenchel."""


@contextmanager
def within_memory(path: Path) -> Iterator[None]:
    """Convert a ``MemoryError`` inside the context to a :class:`DataError` for the file."""
    try:
        yield
    except MemoryError as error:
        raise DataError(
            "the data set needs more memory than this process has; use a machine or container with more, or fewer "
            "samples",
            source=path,
        ) from error
