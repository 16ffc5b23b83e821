"""Files that only their owner can read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from fenchel.common.errors import CredentialError, SettingsError
from fenchel.common.storage.store import replacing, settle


def read(path: Path) -> bytes:
    """Return what a file holds."""
    with explained(path, "cannot be read"):
        return path.read_bytes()


def write(folder: Path, files: Mapping[str, bytes], force: bool) -> None:
    """Write files that only their owner can read; check first that none is there.

    With ``force`` each takes the place of the old one at once: somebody may be using them. The disk has them on
    return: the loss of power must not bring back what was replaced, such as a list of what was revoked.
    """
    with explained(folder, "cannot be written"):
        # What lies above holds names alone, and is passed through by users who are given a folder in it.
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
        for name in files:
            path = folder / name
            if path.exists() and not force:
                raise SettingsError("is there already; --force replaces it", source=path)
        for name, content in files.items():
            with replacing(folder / name, private=True, sync=force) as file:
                file.write(content)
        if force:
            settle(folder)


@contextmanager
def explained(path: Path, what: str) -> Iterator[None]:
    """Turn errors of the operating system into a CredentialError that names the file."""
    try:
        yield
    except OSError as error:
        raise CredentialError(f"{what} ({error.strerror})", source=path) from None
