"""Messages in frames of at most 1 MiB.

A message is a head (a protobuf message) and a body (bytes, see :mod:`fenchel.common.wire.payload`). The first frame has
the head, and the body if it fits. Otherwise the body follows in frames of its own, which are the same bytes for every
receiver of a broadcast.

A frame is one ``proto.Frame``. This module writes and parses its bytes directly and copies a body once on each side,
where the protobuf library would copy it three times. Tests compare the result with that library.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from typing import TypeAlias

from google.protobuf.message import DecodeError

from fenchel.common.crypto.ciphertexts import Buffer
from fenchel.common.errors import WireError
from fenchel.common.version import SAME_VERSION
from fenchel.common.wire.payload import Encoded
from fenchel.common.wire.values import MEMORY_ALIGNMENT
from fenchel.proto import fenchel_pb2 as pb

FRAME_BYTES = 1 << 20
_OVERHEAD = 16  # bytes of the tags and lengths of a frame's two fields
_HEAD_LIMIT = FRAME_BYTES - _OVERHEAD
CHUNK_BYTES = FRAME_BYTES - 4096  # size of a chunk in bytes, which leaves room for the head of most messages
# Size limit in bytes of a chunk in the head's frame: copying a larger chunk takes longer than sending another frame.
_JOINED_BYTES = 512 << 10
_KEPT_BYTES = 64 << 20  # largest body of a broadcast whose frames are cached, in bytes

Head: TypeAlias = pb.Hello | pb.Welcome | pb.Instruction | pb.Reply | pb.Farewell
_HEADS: dict[int, type[Head]] = {1: pb.Hello, 2: pb.Welcome, 3: pb.Instruction, 4: pb.Reply, 5: pb.Farewell}
_WITH_BODY = (pb.Instruction, pb.Reply)
_NUMBERS = {head: number for number, head in _HEADS.items()}
_CHUNK = 15
_PADDING = 15  # number of the padding field of Instruction and Reply
_REMEMBERED = 1024  # number of cached lengths, most of which recur every round


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _varint_bytes(number: int) -> int:
    return max(-(-number.bit_length() // 7), 1)


@lru_cache(_REMEMBERED)
def _padding(head: int, chunk: int) -> bytes:
    """Return a field for the end of a head of ``head`` bytes, so that the chunk after it is aligned.

    A receiver computes in place with a body that came in one frame, or copies the body if it is not aligned.
    """
    tags = 2
    rest = tags + _varint_bytes(chunk)
    # One of these sizes always completes the alignment, even if a longer head takes one more byte for its length.
    sizes = (0, *range(2, 2 * MEMORY_ALIGNMENT + 2))
    size = next(size for size in sizes if (rest + _varint_bytes(head + size) + head + size) % MEMORY_ALIGNMENT == 0)
    return _field(_PADDING, size - tags) + bytes(size - tags) if size else b""


@lru_cache(_REMEMBERED)
def _field(number: int, length: int) -> bytes:
    """Return tag and length of a length-delimited protobuf field."""
    return _varint(number << 3 | 2) + _varint(length)


class Body:
    """Body of one message, divided into frames.

    The frames of a body with several receivers are made once and kept if it has at most 64 MiB. Other frames are made
    each time, so that sending needs no second copy of the body.

    Parameters
    ----------
    encoded
        Payload of the message.
    shared
        Whether the body has several receivers.
    """

    def __init__(self, encoded: Encoded, *, shared: bool = True) -> None:
        self.payload = encoded.descriptor.SerializeToString()
        self.size = encoded.size
        self._segments = encoded.segments
        self._starts = [0, *accumulate(len(segment) for segment in encoded.segments)]
        self._kept: dict[int, Buffer] | None = {} if shared and encoded.size <= _KEPT_BYTES else None
        self._joined: tuple[bytes, bytes] = (b"", b"")  # latest head, and the frame that begins with this head

    def detach(self) -> None:
        """Make all frames, if they are kept. Unless :attr:`refers_to_arrays`, the arrays may change afterwards."""
        if self._kept is not None:
            for start in range(0, self.size, CHUNK_BYTES):
                self._frame(start)

    @property
    def refers_to_arrays(self) -> bool:
        """True if frames are made from the arrays' own memory whenever they are sent, so the arrays must not change."""
        return self._kept is None

    def content(self) -> bytes:
        """Return the whole body in one piece."""
        return b"".join(parse(frame).chunk for frame in self.frames())

    def frames(self, offset: int = 0) -> Iterator[bytes]:
        """Yield the frames of the body from byte ``offset`` on, a multiple of ``CHUNK_BYTES``."""
        for start in range(offset, self.size, CHUNK_BYTES):
            yield bytes(self._frame(start))

    def _frame(self, start: int) -> Buffer:
        if self._kept is None:
            return b"".join(self._pieces(start))
        if start not in self._kept:
            self._kept[start] = b"".join(self._pieces(start))
            if len(self._kept) * CHUNK_BYTES >= self.size:
                self._segments = ()  # all frames are kept, so the arrays may be freed
        return self._kept[start]

    def opening(self, head: bytes, start: int) -> bytes | None:
        """Return a frame with a head and the chunk of the body at byte ``start``.

        The result is ``None`` if there is no such chunk, if it does not fit, or if its frame is kept and so large that
        sending it takes less time than copying it. Most receivers of a broadcast get the same head, so the latest frame
        is cached.

        Parameters
        ----------
        start
            Position of the chunk, a multiple of ``CHUNK_BYTES``.
        """
        length = min(CHUNK_BYTES, self.size - start)
        if length <= 0 or len(head) + length + _OVERHEAD > FRAME_BYTES:
            return None
        if self._kept is None:
            return b"".join([head, *self._pieces(start)])
        if self.size > _JOINED_BYTES:
            return None
        if self._joined[0] != head:
            opened = b"".join([head, self._kept[0]] if self._kept else [head, *self._pieces(0)])
            self._joined = head, opened
            self._kept[0] = memoryview(opened)[len(head) :]
            self._segments = ()
        return self._joined[1]

    def _pieces(self, start: int) -> list[Buffer]:
        stop = min(start + CHUNK_BYTES, self.size)
        pieces: list[Buffer] = [_field(_CHUNK, stop - start)]
        index = bisect_right(self._starts, start) - 1
        while start < stop:
            low = self._starts[index]
            piece = memoryview(self._segments[index])[start - low : stop - low]
            pieces.append(piece)
            start += len(piece)
            index += 1
        return pieces


def frames(head: Head, body: Body | None = None, resume: int = 0) -> Iterator[bytes]:
    """Yield the frames of a message.

    Parameters
    ----------
    body
        Body with the arrays; ``None`` for a message without arrays.
    resume
        Bytes of the body that the receiver has already. They are rounded down to whole chunks and announced in the
        head.

    Raises
    ------
    WireError
        If the head does not fit into a frame.
    """
    resume -= resume % CHUNK_BYTES
    if isinstance(head, _WITH_BODY):
        head.resume = resume
    text = head.SerializeToString()
    if body is not None:
        # Protobuf allows fields in any order, so the descriptor and the rest of the head may be concatenated.
        number = 1 if isinstance(head, pb.Instruction) else 2
        text = _field(number, len(body.payload)) + body.payload + text
    if len(text) > _HEAD_LIMIT:
        raise WireError(
            f"the head of the message has {len(text):,} bytes, too many for a frame; send fewer arrays at once"
        )
    number = _NUMBERS[type(head)]
    if body is not None and 0 < body.size - resume <= CHUNK_BYTES:
        text += _padding(len(text), body.size - resume)
    text = _field(number, len(text)) + text
    opening = None if body is None else body.opening(text, resume)
    yield opening or text
    if body is not None:
        yield from body.frames(resume + CHUNK_BYTES if opening else resume)


@dataclass(frozen=True)
class Frame:
    """Parsed frame: the head, if it is a message's first frame, and a chunk of the body."""

    head: Head | None
    chunk: memoryview


def parse(data: bytes) -> Frame:
    """Parse one frame; raise ``WireError`` if it is too long or malformed."""
    if len(data) > FRAME_BYTES:
        raise WireError(f"a frame has {len(data):,} bytes of a message; expected at most {FRAME_BYTES:,}")
    view = memoryview(data)
    head: Head | None = None
    chunk: memoryview | None = None
    position, end = 0, len(data)
    while position < end:
        tag, position = _read_varint(data, position)
        length, position = _read_varint(data, position)
        number, start = tag >> 3, position
        position += length
        if tag & 7 != 2 or position > end:
            raise WireError(f"a message cannot be decoded{SAME_VERSION}")
        if number == _CHUNK and chunk is None:
            chunk = view[start:position]
        elif number in _HEADS and head is None:
            try:
                head = _HEADS[number].FromString(data[start:position])
            except DecodeError as error:
                raise WireError(f"the head of a message cannot be decoded ({error}){SAME_VERSION}") from None
        else:
            raise WireError(f"a message has an unknown or repeated field {number}{SAME_VERSION}")
    return Frame(head, view[:0] if chunk is None else chunk)


def _read_varint(data: bytes, position: int) -> tuple[int, int]:
    result = shift = 0
    while position < len(data) and shift < 35:
        octet = data[position]
        position += 1
        if octet < 0x80:
            return result | octet << shift, position
        result |= (octet & 0x7F) << shift
        shift += 7
    raise WireError(f"a message is cut off, or cannot be decoded{SAME_VERSION}")
