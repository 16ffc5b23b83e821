"""Files with access for their owner only."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from fenchel.common.errors import CredentialError, SettingsError
from fenchel.common.storage.store import replacing, settle


def read(path: Path) -> bytes:
    """Return the content of a file."""
    with explained(path, "cannot be read"):
        return path.read_bytes()


def write(folder: Path, files: Mapping[str, bytes], force: bool) -> None:
    """Write files that only their owner can read, and raise an error if one exists.

    With ``force`` each file is replaced atomically, as a process may be using it. Files are synced to disk before the
    return, so that a power failure does not bring back an old file, such as an old revocation list.
    """
    with explained(folder, "cannot be written"):
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
def explained(path: Path, what: str) -> Iterator[None]:
    """Convert errors of the operating system into a ``CredentialError`` that names the file."""
    try:
        yield
    except OSError as error:
        raise CredentialError(f"{what} ({error.strerror})", source=path) from None
