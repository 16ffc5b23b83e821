"""What stands between a client and a server, and takes down the bytes of each connection on their way."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field


@dataclass
class Relay:
    """Connections that are passed on.

    Attributes
    ----------
    server
        The port that they lead to.
    up, down
        What each connection has brought, and taken, so far.
    """

    server: int
    port: int = 0
    up: list[bytearray] = field(default_factory=list)
    down: list[bytearray] = field(default_factory=list)

    async def carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.up.append(up := bytearray())
        self.down.append(down := bytearray())
        there, back = await asyncio.open_connection("127.0.0.1", self.server)
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.gather(_pass(reader, back, up), _pass(there, writer, down))


@contextlib.asynccontextmanager
async def relaying(server: int, host: str = "127.0.0.1") -> AsyncIterator[Relay]:
    """Open a relay in front of a server, and leave no connection behind."""
    relay = Relay(server)
    carried: set[asyncio.Task[None]] = set()
    listening = await asyncio.start_server(
        lambda reader, writer: carried.add(asyncio.ensure_future(relay.carry(reader, writer))), host
    )
    relay.port = listening.sockets[0].getsockname()[1]
    try:
        yield relay
    finally:
        listening.close()
        for task in carried:
            task.cancel()
        await asyncio.gather(*carried)


async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, note: bytearray) -> None:
    with contextlib.suppress(ConnectionError), contextlib.closing(writer):
        while data := await reader.read(1 << 16):
            note += data
            writer.write(data)
            await writer.drain()
