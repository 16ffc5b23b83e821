"""Reassembly of messages from the frames of a stream.

Server and clients use it. Received data is not trusted: memory is allocated only for a checked descriptor, as the bytes
arrive. A body that resumes after a broken stream must have the descriptor with which it began.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import numpy as np

from fenchel.common.arrays import is_finite
from fenchel.common.crypto.ciphertexts import Buffer
from fenchel.common.errors import WireError
from fenchel.common.version import SAME_VERSION
from fenchel.common.wire.buffer_pool import BufferPool
from fenchel.common.wire.frames import Frame, parse
from fenchel.common.wire.outline import FloatSpan, Outline, Outlines, Received
from fenchel.common.wire.stream import Stream
from fenchel.common.wire.values import MEMORY_ALIGNMENT
from fenchel.proto import fenchel_pb2 as pb

SMALLEST_PIECE = 64 << 10  # smallest chunk within a message, in bytes, to bound the overhead of frames

_NOTHING = Outline((), 0)

HeadT = TypeVar("HeadT", pb.Instruction, pb.Reply)


def _is_aligned(chunk: memoryview) -> bool:
    address: int = np.frombuffer(chunk, np.uint8).__array_interface__["data"][0]
    return address % MEMORY_ALIGNMENT == 0


class Assembly:
    """Body of one incoming message, collected from chunks.

    A body that came whole in its first frame is used in place, without a copy, if it is aligned in memory.

    Parameters
    ----------
    size
        Bytes of the body, within the checked limits.
    received
        Bytes that have arrived already.
    buffer_pool
        Pool from which the memory is taken.
    spans
        Spans of the body with floating-point numbers. Each chunk is checked while it is in the processor's cache. A
        second pass over the whole body would take as long as copying it.
    """

    def __init__(
        self, size: int, received: int = 0, buffer_pool: BufferPool | None = None, spans: Sequence[FloatSpan] = ()
    ) -> None:
        self.size = size
        self._spans = spans
        self._looked_at = 0
        self._suspicious = False
        self.received = received
        self._buffer_pool = buffer_pool
        self._buffer: memoryview | None = None
        self._unwanted = False

    @property
    def complete(self) -> bool:
        """True if every byte has arrived."""
        return self.received == self.size

    def add(self, chunk: memoryview) -> None:
        """Add the next chunk; raise ``WireError`` if it exceeds the declared size."""
        if self.received + len(chunk) > self.size:
            raise WireError(f"the message has more than the {self.size:,} bytes that it declared")
        start, stop = self.received, self.received + len(chunk)
        if len(chunk) and not self._unwanted:
            if len(chunk) == self.size and _is_aligned(chunk):
                self._buffer = chunk
            else:
                self._buffer = self._memory() if self._buffer is None else self._buffer
                self._buffer[start:stop] = chunk
                self._look_at(start, stop)
        self.received = stop

    @property
    def finite(self) -> bool:
        """True if all floating-point numbers are known to be finite. Otherwise the caller must check them exactly."""
        floats = sum(span.stop - span.start for span in self._spans)
        return not self._suspicious and floats > 0 and self._looked_at == floats

    def _look_at(self, start: int, stop: int) -> None:
        assert self._buffer is not None
        for span in self._spans:
            low, high = max(start, span.start), min(stop, span.stop)
            if low >= high or self._suspicious:
                continue
            if (low - span.start) % span.dtype.itemsize or (high - low) % span.dtype.itemsize:
                self._suspicious = True  # correct senders never split a number between chunks
            else:
                self._suspicious = not is_finite(np.frombuffer(self._buffer[low:high], span.dtype))
                self._looked_at += high - low

    def _memory(self) -> memoryview:
        # The kernel allocates pages on the first write, so an exaggerated announced size costs only address space.
        try:
            return (self._buffer_pool or BufferPool()).take(self.size)
        except MemoryError:
            raise WireError(
                f"there is not enough memory for a message of {self.size:,} bytes. Give this process more, begin a "
                "new run with a smaller model, or, on the server, lower network.in_flight_bytes"
            ) from None

    def let_go(self) -> None:
        """Release the memory, and discard all further chunks."""
        self._buffer, self._unwanted = None, True

    def rewind(self, received: int) -> None:
        """Keep only the first ``received`` bytes, after which the sender resumes.

        Raise ``WireError`` if fewer bytes have arrived.
        """
        if received > self.received:
            raise WireError(
                f"the sender resumes the message at byte {received:,}, but only {self.received:,} bytes have arrived"
            )
        self._suspicious = self._suspicious or received != self.received
        self.received = received

    def body(self) -> Buffer:
        """Return the whole body."""
        assert self.complete
        return b"" if self._buffer is None else self._buffer


@dataclass(slots=True, eq=False)
class IncomingMessage(Generic[HeadT]):
    """Message that is being received.

    Attributes
    ----------
    head
        Head of the message.
    opening
        Chunk of the body that came with the head, until it is taken.
    frame_bytes
        Bytes of the frame with the head.
    first_ns
        Time of the first frame by the performance counter, in nanoseconds; it may have come on an earlier stream.
    last_ns
        Time at which the body was complete, by the same counter; 0 until then.
    outline
        Checked announcement of the body.
    is_whole
        True if the whole body came with the head.
    assembly
        Received part of the body; set by :meth:`MessageReader.accept` or :meth:`MessageReader.discard`.
    """

    head: HeadT
    opening: memoryview
    frame_bytes: int
    first_ns: int
    last_ns: int = 0
    outline: Outline = _NOTHING
    is_whole: bool = False
    assembly: Assembly = field(init=False)

    @property
    def is_complete(self) -> bool:
        """True if the whole body has been taken."""
        return self.assembly.complete

    def announce(self, partial: pb.Partial) -> None:
        """Write the number of received bytes to a message for the sender, which then sends the rest."""
        partial.sequence, partial.received = self.head.sequence, self.assembly.received

    def received(self) -> Received:
        """Return the complete body."""
        return Received(self.outline, self.assembly.body(), self.assembly.finite)


class MessageReader(Generic[HeadT]):
    """Reader of messages of one kind from a stream, in ascending order of their sequence numbers.

    For each message the caller calls ``begin``, ``check``, ``accept`` or ``discard``, ``take``, and then ``more`` until
    the body is complete.

    Parameters
    ----------
    kind
        Type of the heads.
    peer
        Name of the other side in errors.
    largest
        Bytes of the largest body to accept.
    begun
        Message that an earlier stream left incomplete and that was announced to the peer.
    """

    def __init__(
        self,
        stream: Stream,
        kind: type[HeadT],
        peer: str,
        largest: int,
        *,
        buffer_pool: BufferPool | None = None,
        begun: IncomingMessage[HeadT] | None = None,
    ) -> None:
        self._stream = stream
        self._kind: type[HeadT] = kind
        self._peer = peer
        self._largest = largest
        self._outlines = Outlines(largest)
        self._buffer_pool = buffer_pool
        self._begun: IncomingMessage[HeadT] | None = begun
        self.farewell: pb.Farewell | None = None
        """Farewell with which the server ended the client stream."""

    async def begin(self) -> IncomingMessage[HeadT] | None:
        """Return the next message with its head alone, or ``None`` at a farewell or the end of the stream.

        Raise ``WireError`` for any other message.
        """
        data = await self._stream.read()
        if data is None:
            return None
        now = time.perf_counter_ns()
        frame = parse(data)
        if isinstance(frame.head, self._kind):
            self._forget_before(frame.head)
            return IncomingMessage(frame.head, frame.chunk, len(data), now)
        if isinstance(frame.head, pb.Farewell) and self._kind is pb.Instruction:
            self.farewell = frame.head
            return None
        raise self._misplaced(frame)

    def check(self, message: IncomingMessage[HeadT]) -> None:
        """Check the descriptor of a message's body.

        Raises
        ------
        PayloadError
            If the descriptor is malformed, or the body exceeds the largest size.
        """
        message.outline = self._outlines.of(message.head.payload)
        message.is_whole = len(message.opening) == message.outline.size

    def accept(self, message: IncomingMessage[HeadT]) -> None:
        """Prepare for the body of a checked message, or for the rest of it.

        Raises
        ------
        WireError
            If the message resumes a body of which no part has arrived, or one with another descriptor.
        """
        if message.head.resume:
            begun = self._resumed(message.head)
            message.assembly, message.first_ns = begun.assembly, begun.first_ns
            return
        # A body in the same frame as its head is checked at once, and needs no spans.
        spans = () if message.is_whole else message.outline.float_spans()
        message.assembly = Assembly(message.outline.size, buffer_pool=self._buffer_pool, spans=spans)

    def discard(self, message: IncomingMessage[HeadT]) -> None:
        """Prepare to read the chunks of a body without keeping them.

        Raises
        ------
        WireError
            If the body exceeds the largest size.
        """
        size = message.head.payload.body_bytes
        if size > self._largest:
            raise self._error(
                f"sent a message of {size:,} bytes, and at most {self._largest:,} are accepted "
                "(network.max_message_bytes)"
            )
        message.assembly = Assembly(size, received=min(message.head.resume, size))
        message.assembly.let_go()

    def take(self, message: IncomingMessage[HeadT]) -> None:
        """Add the chunk of the body that came with the head."""
        chunk, message.opening = message.opening, memoryview(b"")
        self._add(message, chunk, is_short=0 < len(chunk) < SMALLEST_PIECE)

    async def more(self, message: IncomingMessage[HeadT]) -> int:
        """Read the next chunk of the body; return the bytes of its frame, or 0 at the end of the stream."""
        data = await self._stream.read()
        if data is None:
            return 0
        frame = parse(data)
        if frame.head is not None:
            raise self._misplaced(frame)
        self._add(message, frame.chunk, is_short=len(frame.chunk) < SMALLEST_PIECE)
        return len(data)

    def _add(self, message: IncomingMessage[HeadT], chunk: memoryview, *, is_short: bool) -> None:
        message.assembly.add(chunk)
        if message.is_complete:
            message.last_ns = time.perf_counter_ns()
        elif is_short:
            raise self._error(
                f"sent a piece of {len(chunk)} bytes in the middle of a message; all but the last have at least "
                f"{SMALLEST_PIECE:,}"
            )

    def _forget_before(self, head: HeadT) -> None:
        """Drop the message that an earlier stream left incomplete, if the peer skips it or sends it anew."""
        if self._begun is None:
            return
        begun = self._begun.head.sequence
        if begun < head.sequence or (begun == head.sequence and not head.resume):
            self._begun = None

    def _resumed(self, head: HeadT) -> IncomingMessage[HeadT]:
        """Return the message that this head resumes. A second call fails, because its body may then be in use."""
        begun, self._begun = self._begun, None
        if begun is None or begun.head.sequence != head.sequence:
            raise self._error(f"resumed message {head.sequence}, of which no part is kept here")
        if begun.head.payload.SerializeToString() != head.payload.SerializeToString():
            # Bytes received before the interruption were checked against the first descriptor, so both must agree.
            raise self._error("resumed a message with other values than it had begun with")
        begun.assembly.rewind(head.resume)
        return begun

    def _misplaced(self, frame: Frame) -> WireError:
        what = "data that belongs to no message" if frame.head is None else "a message that does not belong here"
        return self._error(f"sent {what}")

    def _error(self, problem: str) -> WireError:
        return WireError(f"{self._peer} {problem}; its stream is closed{SAME_VERSION}")
