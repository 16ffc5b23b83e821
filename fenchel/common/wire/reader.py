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

from fenchel.common.crypto.ciphertexts import Buffer
from fenchel.common.errors import WireError
from fenchel.common.version import SAME_VERSION
from fenchel.common.wire.buffer_pool import BufferPool
from fenchel.common.wire.frames import Frame, parse
from fenchel.common.wire.outline import FloatSpan, Outline, Outlines, Received
from fenchel.common.wire.schema import is_finite
from fenchel.common.wire.stream import Stream
from fenchel.proto import fenchel_pb2 as pb

SMALLEST_PIECE = 64 << 10  # smaller ones in the middle of a message cost more than they bring

_NOTHING = Outline((), 0)

HeadT = TypeVar("HeadT", pb.Instruction, pb.Reply)


class Assembly:
    """The body of one incoming message, collected from chunks.

    A body that came whole in its first frame is used as it is, without a copy.

    size: bytes of the body, which a check has allowed.
    received: bytes that are here already.
    buffer_pool: where the memory comes from.
    spans: where the body holds floating-point numbers. They are looked at chunk by chunk, while they are in the
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
        self._buffer_pool = buffer_pool or BufferPool()
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
            return self._buffer_pool.take(self.size)
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
    first_ns, last_ns
        When the first frame came, also on an earlier stream, and the last, by the performance counter.
    outline
        Checked announcement of the body.
    assembly
        Body, as far as it is here.
    """

    head: HeadT
    opening: memoryview
    frame_bytes: int
    first_ns: int
    last_ns: int = 0
    outline: Outline = _NOTHING
    assembly: Assembly = field(default_factory=lambda: Assembly(0))

    @property
    def is_whole(self) -> bool:
        """True if the body came with the head."""
        return len(self.opening) == self.outline.size

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
    """Reads messages of one kind from a stream.

    Each message is begun, described, accepted or discarded, and taken; then comes the rest of its body.

    kind: of heads.
    peer: the other side, as errors name it.
    largest: bytes of the largest body to accept.
    begun: what an earlier stream has brought of a message, as the peer knows since the beginning of this one.
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
        self._noun = kind.DESCRIPTOR.name.lower()
        self._peer = peer
        self._largest = largest
        self._outlines = Outlines(largest)
        self._buffer_pool = buffer_pool or BufferPool()
        self._begun: IncomingMessage[HeadT] | None = begun
        self.farewell: pb.Farewell | None = None
        """With what the server has ended the stream of a client."""

    async def begin(self) -> IncomingMessage[HeadT] | None:
        """Return the next message, of which only the head has been read; ``None`` at the end of the stream."""
        data = await self._stream.read()
        if data is None:
            return None
        now = time.perf_counter_ns()
        frame = parse(data)
        if isinstance(frame.head, self._kind):
            return IncomingMessage(frame.head, frame.chunk, len(data), now)
        if isinstance(frame.head, pb.Farewell) and self._kind is pb.Instruction:
            self.farewell = frame.head
            return None
        raise self._misplaced(frame)

    def describe(self, message: IncomingMessage[HeadT]) -> None:
        """Check what a message announces of its body.

        Raises
        ------
        PayloadError
            It is malformed, or larger than may be.
        """
        message.outline = self._outlines.of(message.head.payload)

    def accept(self, message: IncomingMessage[HeadT]) -> None:
        """Prepare for the body of a message that has been described, or for the rest of it.

        Raises
        ------
        WireError
            It goes on where nothing began, or otherwise than it began.
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
            It is larger than any body may be.
        """
        size = message.head.payload.body_bytes
        if size > self._largest:
            raise WireError(
                f"{self._peer} sent a message of {size:,} bytes, and at most {self._largest:,} are accepted "
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
            raise WireError(
                f"{self._peer} sent a piece of {len(chunk)} bytes in the middle of a message; all but the last have at "
                f"least {SMALLEST_PIECE:,}{SAME_VERSION}"
            )

    def _resumed(self, head: HeadT) -> IncomingMessage[HeadT]:
        """Return the message with whose body this head goes on, once: after that the body may be in use."""
        begun, self._begun = self._begun, None
        if begun is None or begun.head.sequence != head.sequence:
            raise WireError(f"{self._peer} goes on with a message that has not begun here{SAME_VERSION}")
        if begun.head.payload != head.payload:
            # What was checked and accounted for on the way are the arrays of the beginning.
            raise WireError(f"{self._peer} goes on with other values than those it began with{SAME_VERSION}")
        begun.assembly.rewind(head.resume)
        return begun

    def _misplaced(self, frame: Frame) -> WireError:
        if frame.head is None:
            return WireError(f"{self._peer} sent data that belongs to no {self._noun}{SAME_VERSION}")
        return WireError(f"{self._peer} sent a message that does not belong here{SAME_VERSION}")
