"""A bidirectional stream of frames, whatever carries it."""

from __future__ import annotations

from typing import Protocol


class Stream(Protocol):
    """One side of the stream between the server and one client.

    gRPC carries it between processes; a pair of queues carries it inside one.
    """

    async def read(self) -> bytes | None:
        """Return the next frame, or ``None`` when the other side has closed."""
        ...

    async def write(self, frame: bytes) -> None:
        """Send one frame; returns when the transport has room for another."""
        ...
