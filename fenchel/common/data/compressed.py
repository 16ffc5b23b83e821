"""Readers of compressed files."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, BinaryIO, cast

from fenchel.common.data.limits import UNLIMITED, DataLimits
from fenchel.common.errors import DataError

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

_OPENERS: Mapping[str, Callable[..., Any]] = MappingProxyType({".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open})
_PIECE = 1 << 16

COMPRESSIONS = tuple(_OPENERS)
"""Suffixes of compressed files."""


def missing(path: Path) -> DataError:
    """Return the error for a data file that does not exist."""
    seen = "" if path.is_absolute() else f" in {Path.cwd()}"
    return DataError(f"the file does not exist{seen}; check data.file, or --data of a client", source=path)


class _Counted(io.RawIOBase):
    """Decompressed content of a file, read in order, with a limit on its size. It can be rewound."""

    def __init__(self, stream: BinaryIO, path: Path, limits: DataLimits) -> None:
        self._stream, self._path, self._limits = stream, path, limits
        self._read = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        """Read the next bytes, or raise a ``DataError`` if all bytes together exceed the limit."""
        view = memoryview(buffer)
        piece = self._stream.read(min(len(view), _PIECE))
        self._read += len(piece)
        self._limits.require_bytes(self._read, self._path)
        view[: len(piece)] = piece
        return len(piece)

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Rewind to the beginning, which is the only supported position."""
        if (offset, whence) != (0, os.SEEK_SET):
            raise io.UnsupportedOperation("a compressed file is read in order")
        self._read = self._stream.seek(0)
        return self._read


@contextmanager
def opened(path: Path, limits: DataLimits = UNLIMITED) -> Iterator[BinaryIO]:
    """Open a file for reading bytes, decompressed according to its suffix.

    A compressed file can be read in order and rewound, but not otherwise repositioned.

    Raises
    ------
    DataError
        If the file is missing or damaged, or exceeds the limit on bytes. A plain file above the limit is rejected on
        opening, and a compressed file when more bytes than the limit have been read.
    """
    opener = _OPENERS.get(path.suffix.lower())
    try:
        with (opener or open)(path, "rb") as stream:
            if opener is None:
                limits.require_bytes(os.fstat(stream.fileno()).st_size, path)
                yield cast(BinaryIO, stream)
            else:
                yield io.BufferedReader(_Counted(stream, path, limits), _PIECE)
    except FileNotFoundError as error:
        raise missing(path) from error
    except (OSError, EOFError, lzma.LZMAError, zlib.error) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise DataError(f"the file cannot be read: {reason}", source=path) from error


def plain_name(path: Path) -> str:
    """Return the lower-case file name without a suffix for compression."""
    return path.name.lower().removesuffix(path.suffix.lower() if path.suffix.lower() in COMPRESSIONS else "")
