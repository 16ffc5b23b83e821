"""Files that only their owner can read."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from fenchel.common.errors import CredentialError, SettingsError
from fenchel.common.storage.store import replacing, settle

WRITABLE = "make room on the disk, or make the folder writable"
"""Remedy for a file that cannot be written."""


def read(path: Path) -> bytes:
    """Return the content of a file. Raise ``CredentialError`` if it cannot be read."""
    with explained(path, "cannot be read", "check the path and the permissions"):
        return path.read_bytes()


def write(folder: Path, files: Mapping[str, bytes], force: bool) -> None:
    """Write files, by name, that only their owner can read.

    With ``force`` existing files are replaced, each of them atomically, because a process may be using it. They are
    synced to disk, so that a power failure does not bring back an old file, such as an old revocation list.

    Raises
    ------
    SettingsError
        If a file exists and ``force`` is false.
    CredentialError
        If the folder cannot be written.
    """
    with explained(folder, "cannot be written", WRITABLE):
        # Parent folders keep their permissions: they contain no secrets, and other users may own folders in them.
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
        for name in files:
            path = folder / name
            if path.exists() and not force:
                raise SettingsError("the file exists already; give --force to replace it", source=path)
        for name, content in files.items():
            with replacing(folder / name, private=True, sync=force) as file:
                file.write(content)
        if force:
            settle(folder)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Exclude other processes from the same folder for the duration of a ``with`` block.

    Raises
    ------
    CredentialError
        If the folder cannot be opened or locked.
    """
    with explained(folder, "cannot be locked", "make the folder accessible, on a file system with locks"):
        descriptor = os.open(folder, os.O_RDONLY)
    try:
        with explained(folder, "cannot be locked", "make the folder accessible, on a file system with locks"):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


@contextmanager
def explained(path: Path, what: str, remedy: str) -> Iterator[None]:
    """Convert errors of the operating system into a ``CredentialError`` that names the file and the remedy."""
    try:
        yield
    except OSError as error:
        raise CredentialError(f"{what} ({error.strerror}); {remedy}", source=path) from None
