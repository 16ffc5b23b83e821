"""Files of named values, which are replaced atomically and readable by their owner only.

Checkpoints and journals are such files. Each has a magic number, a checksum and an encoded payload.
"""

from __future__ import annotations

import contextlib
import os
import sys
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Literal, TypeAlias

from google.protobuf.message import DecodeError

from fenchel.common.crypto.ciphertexts import Buffer
from fenchel.common.errors import CheckpointError, PayloadError, StorageError, TooManyFilesError, too_many_files
from fenchel.common.wire.outline import outline
from fenchel.common.wire.payload import encode
from fenchel.common.wire.values import Value, Values
from fenchel.proto import fenchel_pb2 as pb

_MAGIC = b"FNCHL\x01\x00\x00"
_HEADER = len(_MAGIC) + 4 + 4

Owner: TypeAlias = Literal["server", "client"]
"""Role that owns a file, for the advice in errors."""

_START_AGAIN: dict[Owner, str] = {
    "server": "go on with --resume RUN, or begin anew if nothing of the run was saved yet",
    "client": "start this client again",
}


@contextlib.contextmanager
def writing(path: Path, owner: Owner = "server") -> Iterator[None]:
    """Turn an ``OSError`` of writing a file into a ``StorageError`` with advice for the operator."""
    try:
        yield
    except OSError as error:
        if too_many_files(error):
            raise too_many_files_error(path, owner) from error
        reason = error.strerror or str(error)
        raise StorageError(
            f"the file cannot be written ({reason}), and its old content is unchanged. Make room on this {owner}'s "
            f"disk, or make the folder writable, and {_START_AGAIN[owner]}",
            source=path,
        ) from error


def too_many_files_error(path: Path, owner: Owner = "server") -> TooManyFilesError:
    """Return the error of a file that cannot be opened because too many files are open."""
    return TooManyFilesError(
        "the file cannot be opened, because this process or machine has too many open files; its content is "
        f"unchanged. Raise the limit (ulimit -n), and {_START_AGAIN[owner]}",
        source=path,
    )


@dataclass(frozen=True)
class Content:
    """Encoded content of a file of values.

    Attributes
    ----------
    descriptor
        Serialised descriptor of the values.
    segments
        Values in pieces, in order. They refer to the arrays' own memory.
    size
        Bytes of the file.
    """

    descriptor: bytes
    segments: tuple[Buffer, ...]
    size: int

    @classmethod
    def of(cls, values: Values) -> Content:
        """Return the content of a file with these values."""
        encoded = encode(values)
        descriptor = encoded.descriptor.SerializeToString()
        return cls(descriptor, encoded.segments, _HEADER + len(descriptor) + encoded.size)


def write(path: Path, values: Values, *, previous: Path | None = None, sync: bool = False) -> None:
    """Write values to a file, which is replaced atomically.

    Parameters
    ----------
    previous
        Path in the same folder under which the old file is kept; ``None`` drops it.
    sync
        True if the file must survive a power loss. The sync takes milliseconds. Without it, the file survives the death
        of the process.

    Raises
    ------
    StorageError
        If the file cannot be written.
    """
    write_content(path, Content.of(values), previous=previous, sync=sync)


def write_content(
    path: Path, content: Content, *, previous: Path | None = None, sync: bool = False, owner: Owner = "server"
) -> None:
    """Write encoded values; see :func:`write`."""
    checksum = zlib.crc32(content.descriptor)
    for segment in content.segments:
        checksum = zlib.crc32(segment, checksum)
    with writing(path, owner):
        if sync and previous is not None and not path.exists():
            settle(path.parent)  # sync the parent folder as well, whose entry may be new
        with replacing(path, private=True, sync=sync, previous=previous) as file:
            length = len(content.descriptor).to_bytes(4, "little")
            file.write(_MAGIC + checksum.to_bytes(4, "little") + length)
            file.write(content.descriptor)
            file.writelines(content.segments)
        if sync:
            _sync_folder(path.parent)


def write_text(path: Path, text: str, *, sync: bool = False) -> None:
    """Write a text file, which is replaced atomically."""
    with writing(path):
        with replacing(path, sync=sync) as file:
            file.write(text.encode())
        if sync:
            settle(path.parent)


def write_private(path: Path, content: bytes) -> None:
    """Write a client's file atomically and synced to the disk, readable by its owner only at every moment."""
    with writing(path, "client"):
        make_private_folder(path.parent)
        with replacing(path, private=True, sync=True) as file:
            file.write(content)
        settle(path.parent)


@contextlib.contextmanager
def replacing(
    path: Path, *, private: bool = False, sync: bool = False, previous: Path | None = None
) -> Iterator[BinaryIO]:
    """Open a temporary file that replaces ``path`` when the block ends without an error. Errors pass unchanged.

    Parameters
    ----------
    private
        Whether only the owner can read the file.
    sync
        Whether the bytes are synced to the disk. :func:`settle` syncs the name.
    previous
        Path in the same folder under which the old file is kept; ``None`` drops it.
    """
    temporary = path.with_name(path.name + ".new")
    try:
        temporary.unlink(missing_ok=True)  # a file left behind by a crash would keep its old permissions
        with open(temporary, "xb", opener=owner_only if private else None) as file:
            yield file
            if sync:
                file.flush()
                os.fsync(file.fileno())
        if previous is not None:
            _keep(path, previous)
        temporary.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):  # remove the incomplete file, which would take space on a full disk
            temporary.unlink()
        raise


def owner_only(path: str, flags: int) -> int:
    """Open a file that only its owner can read; an ``opener`` of :func:`open`."""
    # The mode is set at creation, so that a key is never readable by other users, not even briefly.
    return os.open(path, flags, 0o600)


def make_private_folder(folder: Path) -> None:
    """Make a folder and its missing parents for their owner alone. Existing folders keep their permissions."""
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
    except FileNotFoundError:
        make_private_folder(folder.parent)  # parents=True would give parents the permissions of the umask
        folder.mkdir(mode=0o700, exist_ok=True)


def _keep(path: Path, previous: Path) -> None:
    """Link the existing file to a second name, so that each name has a complete file at every moment."""
    linked = previous.with_name(previous.name + ".new")
    linked.unlink(missing_ok=True)
    with contextlib.suppress(FileNotFoundError):  # there may be no file yet
        os.link(path, linked)
        linked.replace(previous)


def settle(folder: Path) -> None:
    """Sync the names in a folder to the disk, and the names of the folder and its parents, up to the mount point.

    Syncing a file keeps its bytes but not its name. Without this, a new folder and all synced files in it could vanish
    in a power loss.
    """
    _sync_folder(folder)
    if folder.is_mount():
        return
    for each in folder.absolute().parents:
        with contextlib.suppress(PermissionError):  # skip unreadable folders, which contain no files of this process
            _sync_folder(each)
            if each.is_mount():
                return


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read(path: Path, owner: Owner = "server") -> dict[str, Value]:
    """Read a file that :func:`write` wrote; raise ``CheckpointError`` if it is unreadable or damaged."""
    try:
        data = path.read_bytes()
    except OSError as error:
        if too_many_files(error):
            raise too_many_files_error(path, owner) from error
        raise CheckpointError(
            f"the file cannot be read ({error.strerror}); check its permissions, or restore it from a copy", source=path
        ) from error
    view = memoryview(data)
    length = int.from_bytes(view[_HEADER - 4 : _HEADER], "little")
    if view[: len(_MAGIC)] != _MAGIC or len(view) < _HEADER + length:
        raise CheckpointError("Fenchel did not write this file, or it is cut off; restore it from a copy", source=path)
    if zlib.crc32(view[_HEADER:]) != int.from_bytes(view[len(_MAGIC) : len(_MAGIC) + 4], "little"):
        raise CheckpointError("the file is damaged (wrong checksum); restore it from a copy", source=path)
    try:
        descriptor = pb.Payload.FromString(bytes(view[_HEADER : _HEADER + length]))
        # The checksum shows that Fenchel wrote the file, so long vectors with seeded index sets are accepted.
        return outline(descriptor, len(data), sys.maxsize).decode(view[_HEADER + length :])
    except (DecodeError, PayloadError) as error:
        raise CheckpointError(f"damaged ({error})", source=path) from error
