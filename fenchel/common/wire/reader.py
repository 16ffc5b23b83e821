"""Messages out of the frames of a stream: a head, and a body that is put together from pieces.

Both ends read through it. Nothing that arrives is trusted: memory is taken for what a checked descriptor announces,
when its bytes come, and a body that goes on after a stream broke must go on as it began.
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
from fenchel.proto import fenchel_pb2 as pb

SMALLEST_PIECE = 64 << 10  # smaller ones in the middle of a message cost more than they bring

_NOTHING = Outline((), 0)

HeadT = TypeVar("HeadT", pb.Instruction, pb.Reply)


class Assembly:
    """The body of one incoming message, collected from chunks.

    A body that came whole in its first frame is used as it is, without a copy.

    Parameters
    ----------
    size
        Bytes of the body, which a check has allowed.
    received
        Bytes that are here already.
    buffer_pool
        Where the memory comes from.
    spans
        Where the body holds floating-point numbers. They are looked at chunk by chunk, while they are in the
        processor's cache: a second pass over the whole body would take as long as copying it.
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
        """Take the next chunk."""
        if self.received + len(chunk) > self.size:
            raise WireError(f"a message has more than the {self.size:,} bytes that it declared")
        start, stop = self.received, self.received + len(chunk)
        if len(chunk) and not self._unwanted:
            if len(chunk) == self.size:
                self._buffer = chunk
            else:
                self._buffer = self._memory() if self._buffer is None else self._buffer
                self._buffer[start:stop] = chunk
                self._look_at(start, stop)
        self.received = stop

    @property
    def finite(self) -> bool:
        """True if all floating-point numbers are known to be finite; if not, they need a closer look."""
        floats = sum(span.stop - span.start for span in self._spans)
        return not self._suspicious and floats > 0 and self._looked_at == floats

    def _look_at(self, start: int, stop: int) -> None:
        assert self._buffer is not None
        for span in self._spans:
            low, high = max(start, span.start), min(stop, span.stop)
            if low >= high or self._suspicious:
                continue
            if (low - span.start) % span.dtype.itemsize or (high - low) % span.dtype.itemsize:
                self._suspicious = True  # cut in the middle of a number, which no honest sender does
            else:
                self._suspicious = not is_finite(np.frombuffer(self._buffer[low:high], span.dtype))
                self._looked_at += high - low

    def _memory(self) -> memoryview:
        # The operating system gives pages when bytes arrive, so a liar costs address space only.
        try:
            return (self._buffer_pool or BufferPool()).take(self.size)
        except MemoryError:
            raise WireError(
                f"there is no memory for a message of {self.size:,} bytes; give this process more, or begin a new run "
                "with a smaller model (or, if this is the server, with smaller network.in_flight_bytes)"
            ) from None

    def let_go(self) -> None:
        """Give the memory back, and keep nothing of what is still to come: it is not wanted any more."""
        self._buffer, self._unwanted = None, True

    def rewind(self, received: int) -> None:
        """Go back to the first ``received`` bytes; the sender goes on from there."""
        if received > self.received:
            raise WireError(f"a message goes on at byte {received:,}, but only {self.received:,} have arrived")
        self._suspicious = self._suspicious or received != self.received
        self.received = received

    def body(self) -> Buffer:
        """Return the whole body."""
        assert self.complete
        return b"" if self._buffer is None else self._buffer


@dataclass(slots=True, eq=False)
class IncomingMessage(Generic[HeadT]):
    """A message that arrives.

    Attributes
    ----------
    head
        Its head.
    opening
        Piece of the body that came with the head, until it is taken.
    frame_bytes
        Bytes of the frame with the head.
    first_ns
        When its first frame came, which may have been on an earlier stream, by the performance counter.
    last_ns
        When its last frame came.
    outline
        Checked announcement of the body.
    is_whole
        True if the whole body came with the head.
    assembly
        Body, as far as it is here; from :meth:`MessageReader.accept` or :meth:`MessageReader.discard` on.
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
        """True if all of the body has been taken."""
        return self.assembly.complete

    def announce(self, partial: pb.Partial) -> None:
        """Write how much of it is here, for the side that sends the rest."""
        partial.sequence, partial.received = self.head.sequence, self.assembly.received

    def received(self) -> Received:
        """Return the complete body."""
        return Received(self.outline, self.assembly.body(), self.assembly.finite)


class MessageReader(Generic[HeadT]):
    """Reads messages of one kind from a stream, in ascending order of their sequence numbers.

    Each message is begun, checked, accepted or discarded, and taken; then comes the rest of its body.

    Parameters
    ----------
    kind
        Type of the heads.
    peer
        The other side, as errors name it.
    largest
        Bytes of the largest body to accept.
    begun
        Message that an earlier stream left incomplete, as was announced to the peer.
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
        """Farewell with which the server ended a stream of instructions."""

    async def begin(self) -> IncomingMessage[HeadT] | None:
        """Return the next message, of which only the head has been read; ``None`` at the end of the stream."""
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
        """Check what a message announces of its body.

        Raises
        ------
        PayloadError
            The descriptor is malformed, or the body larger than may be.
        """
        message.outline = self._outlines.of(message.head.payload)
        message.is_whole = len(message.opening) == message.outline.size

    def accept(self, message: IncomingMessage[HeadT]) -> None:
        """Prepare for the body of a message that has been checked, or for the rest of it.

        Raises
        ------
        WireError
            The message resumes one of which nothing is here, or one with another descriptor.
        """
        if message.head.resume:
            begun = self._resumed(message.head)
            message.assembly, message.first_ns = begun.assembly, begun.first_ns
            return
        # A body that is here already is looked at as a whole.
        spans = () if message.is_whole else message.outline.float_spans()
        message.assembly = Assembly(message.outline.size, buffer_pool=self._buffer_pool, spans=spans)

    def discard(self, message: IncomingMessage[HeadT]) -> None:
        """Keep nothing of a body, whose pieces come all the same.

        Raises
        ------
        WireError
            The body is larger than any may be.
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
        """Take the piece of the body that came with the head."""
        chunk, message.opening = message.opening, memoryview(b"")
        self._add(message, chunk, is_short=0 < len(chunk) < SMALLEST_PIECE)

    async def more(self, message: IncomingMessage[HeadT]) -> int:
        """Take the next piece of the body; return the bytes of its frame, 0 at the end of the stream."""
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
        """Let go of what an earlier stream has brought, if the peer is past it or begins it anew."""
        if self._begun is None:
            return
        begun = self._begun.head.sequence
        if begun < head.sequence or (begun == head.sequence and not head.resume):
            self._begun = None

    def _resumed(self, head: HeadT) -> IncomingMessage[HeadT]:
        """Return the message that this head resumes, once: after that its body may be in use."""
        begun, self._begun = self._begun, None
        if begun is None or begun.head.sequence != head.sequence:
            raise self._error("resumed a message of which nothing is here")
        if begun.head.payload.SerializeToString() != head.payload.SerializeToString():
            # What was checked and accounted for on the way are the arrays of the beginning.
            raise self._error("resumed a message with other values than it had begun with")
        begun.assembly.rewind(head.resume)
        return begun

    def _misplaced(self, frame: Frame) -> WireError:
        what = "data that belongs to no message" if frame.head is None else "a message that does not belong here"
        return self._error(f"sent {what}")

    def _error(self, problem: str) -> WireError:
        return WireError(f"{self._peer} {problem}; its stream is ended{SAME_VERSION}")
