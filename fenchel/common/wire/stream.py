"""Interface of a bidirectional stream of frames."""

from __future__ import annotations

from typing import Protocol


class Stream(Protocol):
    """One side of the client stream between the server and one client.

    gRPC implements it between processes, and a pair of queues within a process.
    """

    async def read(self) -> bytes | None:
        """Return the next frame, or ``None`` if the other side has closed the stream."""
        ...

    async def write(self, frame: bytes) -> None:
        """Send one frame, and return when the transport has room for another."""
        ...
