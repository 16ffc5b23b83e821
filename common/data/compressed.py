"""Reading files that may be compressed."""

from __future__ import annotations

import bz2
import gzip
import lzma
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any, BinaryIO, cast

from fenchel.common.errors import DataError

_OPENERS: Mapping[str, Callable[..., Any]] = MappingProxyType({".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open})

COMPRESSIONS = tuple(_OPENERS)
"""Suffixes of compressed files."""


def missing(path: Path) -> DataError:
    """Return the error of a data file that is not there."""
    seen = "" if path.is_absolute() else f" in {Path.cwd()}"
    return DataError(f"there is no such file{seen}; check data.file, or the --data of a client", source=path)


@contextmanager
def opened(path: Path) -> Iterator[BinaryIO]:
    """Open a file for reading bytes, decompressing it as its suffix says."""
    try:
        with _OPENERS.get(path.suffix.lower(), open)(path, "rb") as stream:
            yield cast(BinaryIO, stream)
    except FileNotFoundError as error:
        raise missing(path) from error
    except (OSError, EOFError, lzma.LZMAError, zlib.error) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise DataError(f"cannot be read: {reason}", source=path) from error


def plain_name(path: Path) -> str:
    """Return the lower-case file name without the suffix of its compression."""
    return path.name.lower().removesuffix(path.suffix.lower() if path.suffix.lower() in COMPRESSIONS else "")
