"""Named values in one file, replaced atomically, and readable by their owner only.

Checkpoints and journals are such files: a magic number, a checksum, and an encoded payload.
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
"""Whose file it is, and so who has to make room for it, and what is then started again."""

_START_AGAIN: dict[Owner, str] = {
    "server": "go on with --resume RUN, or begin anew if nothing of the run was saved yet",
    "client": "start this client again",
}


@contextlib.contextmanager
def writing(path: Path, owner: Owner = "server") -> Iterator[None]:
    """Turn what the operating system says about a file that cannot be written into words for people."""
    try:
        yield
    except OSError as error:
        if too_many_files(error):
            raise too_many_files_error(path, owner) from error
        reason = error.strerror or str(error)
        raise StorageError(
            f"cannot be written ({reason}); what was there before is untouched. Make room on this {owner}'s "
            f"disk, or the folder writable, and {_START_AGAIN[owner]}: nothing that counted is lost",
            source=path,
        ) from error


def too_many_files_error(path: Path, owner: Owner = "server") -> TooManyFilesError:
    """Return the error that says that a file cannot be opened for now."""
    return TooManyFilesError(
        f"cannot be opened, as too many files are open in this process or on this machine; nothing that was there "
        f"before is lost. Allow more of them (ulimit -n), and {_START_AGAIN[owner]}",
        source=path,
    )


@dataclass(frozen=True)
class Content:
    """What a file of values holds, before it is written.

    Attributes
    ----------
    descriptor
        What the values are, as bytes.
    segments
        The values in pieces, in order. They refer to the arrays' own memory.
    size
        Bytes of the file.
    """

    descriptor: bytes
    segments: tuple[Buffer, ...]
    size: int

    @classmethod
    def of(cls, values: Values) -> Content:
        """Encode values."""
        encoded = encode(values)
        descriptor = encoded.descriptor.SerializeToString()
        return cls(descriptor, encoded.segments, _HEADER + len(descriptor) + encoded.size)


def write(path: Path, values: Values, *, previous: Path | None = None, sync: bool = False) -> None:
    """Write values so that the file is at every moment either the old one or the new one.

    Parameters
    ----------
    previous
        Where the old file is kept, in the same folder; ``None``: nowhere.
    sync
        Also survive the loss of power (costs milliseconds); without it the file survives the death of the process.
    """
    write_content(path, Content.of(values), previous=previous, sync=sync)


def write_content(
    path: Path, content: Content, *, previous: Path | None = None, sync: bool = False, owner: Owner = "server"
) -> None:
    """Write what is encoded already, as :func:`write` does."""
    checksum = zlib.crc32(content.descriptor)
    for segment in content.segments:
        checksum = zlib.crc32(segment, checksum)
    with writing(path, owner):
        if sync and previous is not None and not path.exists():
            settle(path.parent)  # the first of many: its folder is new, too
        with replacing(path, private=True, sync=sync, previous=previous) as file:
            length = len(content.descriptor).to_bytes(4, "little")
            file.write(_MAGIC + checksum.to_bytes(4, "little") + length)
            file.write(content.descriptor)
            file.writelines(content.segments)
        if sync:
            _sync_folder(path.parent)


def write_text(path: Path, text: str, *, sync: bool = False) -> None:
    """Write a text file that is at every moment either the old one or the new one.

    Parameters
    ----------
    path, text
        The file, and what is to be in it.
    """
    with writing(path):
        with replacing(path, sync=sync) as file:
            file.write(text.encode())
        if sync:
            settle(path.parent)


def write_private(path: Path, content: bytes) -> None:
    """Write a client's file, at no moment half written nor readable by others; the disk has it on return."""
    with writing(path, "client"):
        make_private_folder(path.parent)
        with replacing(path, private=True, sync=True) as file:
            file.write(content)
        settle(path.parent)


@contextlib.contextmanager
def replacing(
    path: Path, *, private: bool = False, sync: bool = False, previous: Path | None = None
) -> Iterator[BinaryIO]:
    """Open a file for bytes that take the place of what is at ``path`` once they are whole; errors are as they come.

    Parameters
    ----------
    private
        Whether only its owner can read it.
    sync
        Have the disk keep the bytes; their name it keeps after :func:`settle`.
    previous
        Where the old file is kept, in the same folder; ``None``: nowhere.
    """
    temporary = path.with_name(path.name + ".new")
    try:
        temporary.unlink(missing_ok=True)  # one that a crash has left would keep its rights
        with open(temporary, "xb", opener=owner_only if private else None) as file:
            yield file
            if sync:
                file.flush()
                os.fsync(file.fileno())
        if previous is not None:
            _keep(path, previous)
        temporary.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):  # half a file would only take the room that is missing
            temporary.unlink()
        raise


def owner_only(path: str, flags: int) -> int:
    """Open a file that only its owner can read, as ``opener`` of :func:`open`."""
    # Created with its mode: a key is at no moment readable by others.
    return os.open(path, flags, 0o600)


def make_private_folder(folder: Path) -> None:
    """Make a folder, and those that are missing above it, for their owner alone; leave what is there as it is."""
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
    except FileNotFoundError:
        make_private_folder(folder.parent)  # parents=True would give it the rights that the umask leaves
        folder.mkdir(mode=0o700, exist_ok=True)


def _keep(path: Path, previous: Path) -> None:
    """Give the file that is there a second name, so that there is a whole file under either name at any moment."""
    linked = previous.with_name(previous.name + ".new")
    linked.unlink(missing_ok=True)
    with contextlib.suppress(FileNotFoundError):  # the first time there is none
        os.link(path, linked)
        linked.replace(previous)


def settle(folder: Path) -> None:
    """Have the disk keep what lies in a folder under its name, and the folder under its own, up to the mount point.

    Syncing a file keeps its bytes, and nothing of its name. Without this, a folder that was made a moment ago
    can be gone after the loss of power, with all that was synced in it.
    """
    _sync_folder(folder)
    if folder.is_mount():
        return
    for each in folder.absolute().parents:
        with contextlib.suppress(PermissionError):  # this process has made nothing where it may not even look
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
    """Read what :func:`write` wrote."""
    try:
        data = path.read_bytes()
    except OSError as error:
        if too_many_files(error):
            raise too_many_files_error(path, owner) from error
        raise CheckpointError(f"cannot be read ({error.strerror})", source=path) from error
    view = memoryview(data)
    length = int.from_bytes(view[_HEADER - 4 : _HEADER], "little")
    if view[: len(_MAGIC)] != _MAGIC or len(view) < _HEADER + length:
        raise CheckpointError("not a file that Fenchel wrote, or cut off", source=path)
    if zlib.crc32(view[_HEADER:]) != int.from_bytes(view[len(_MAGIC) : len(_MAGIC) + 4], "little"):
        raise CheckpointError("damaged (its checksum is wrong)", source=path)
    try:
        descriptor = pb.Payload.FromString(bytes(view[_HEADER : _HEADER + length]))
        # Written by this project, and its checksum is right: also long vectors with seeded supports are its own.
        return outline(descriptor, len(data), sys.maxsize).decode(view[_HEADER + length :])
    except (DecodeError, PayloadError) as error:
        raise CheckpointError(f"damaged ({error})", source=path) from error
