"""Named values in one file, replaced atomically.

Checkpoints and journals are such files: a magic number, a checksum, and an encoded payload.
"""

from __future__ import annotations

import os
import zlib
from pathlib import Path

from google.protobuf.message import DecodeError

from common.errors import CheckpointError, PayloadError
from common.payload import Value, Values, body_bytes, decode, encode
from proto import fenchel_pb2 as pb

_MAGIC = b"FNCHL\x01\x00\x00"
_HEADER = len(_MAGIC) + 4 + 4


def write(path: Path, values: Values, *, sync: bool = False) -> None:
    """Write values so that the file is at every moment either the old one or the new one.

    Parameters
    ----------
    path
        The file; its folder must exist.
    values
        What to write.
    sync
        Also survive the loss of power (costs milliseconds); without it the file survives the death of
        the process.
    """
    encoded = encode(values)
    descriptor = encoded.descriptor.SerializeToString()
    checksum = zlib.crc32(descriptor)
    for segment in encoded.segments:
        checksum = zlib.crc32(segment, checksum)
    temporary = path.with_name(path.name + ".new")
    with temporary.open("wb") as file:
        file.write(_MAGIC + checksum.to_bytes(4, "little") + len(descriptor).to_bytes(4, "little"))
        file.write(descriptor)
        file.writelines(encoded.segments)
        if sync:
            file.flush()
            os.fsync(file.fileno())
    temporary.replace(path)
    if sync:
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def read(path: Path) -> dict[str, Value]:
    """Read what :func:`write` wrote.

    Raises
    ------
    CheckpointError
        The file is missing, damaged, or not such a file.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({error.strerror})") from error
    view = memoryview(data)
    length = int.from_bytes(view[_HEADER - 4 : _HEADER], "little")
    if view[: len(_MAGIC)] != _MAGIC or len(view) < _HEADER + length:
        raise CheckpointError(f"{path}: not a file that Fenchel wrote, or cut off")
    if zlib.crc32(view[_HEADER:]) != int.from_bytes(view[len(_MAGIC) : len(_MAGIC) + 4], "little"):
        raise CheckpointError(f"{path}: damaged (its checksum is wrong)")
    try:
        descriptor = pb.Payload.FromString(bytes(view[_HEADER : _HEADER + length]))
        body_bytes(descriptor, len(data))
        return decode(descriptor, view[_HEADER + length :])
    except (DecodeError, PayloadError) as error:
        raise CheckpointError(f"{path}: damaged ({error})") from error
