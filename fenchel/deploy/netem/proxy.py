"""Network emulation proxy: a TCP relay with the delay, bandwidth and cuts of an emulated link.

A client process dials the proxy in place of the server, and the proxy dials the server. Bytes are unchanged, so TLS
works end to end, and gRPC experiences delay, bandwidth and cuts as in a real network. Effects below TCP, such as lost
packets and the congestion control that follows, are not emulated.
"""

from __future__ import annotations

import asyncio
import contextlib
import select
import selectors
import socket
import struct
import sys
from collections.abc import Callable
from dataclasses import astuple, dataclass, field

import numpy as np

from fenchel.common.errors import UnreachableError
from fenchel.common.randomness import generator
from fenchel.common.settings.link import Link
from fenchel.deploy.netem.link_model import LinkModel, cut_times, ways

_RECEIVE_BUFFER = 1 << 17  # receive buffer in bytes; small, because buffered bytes bypass the link's rate limit
_RESET = struct.pack("ii", 1, 0)  # SO_LINGER: close with a reset, and discard unsent bytes


if sys.platform == "linux":

    class _FineSelector(selectors.EpollSelector):
        """Selector with a resolution of microseconds, because timeouts of epoll are in milliseconds."""

        def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
            if timeout is not None and timeout > 0:
                select.select([self.fileno()], [], [], timeout)
                timeout = 0
            return super().select(timeout)


def event_loop() -> asyncio.AbstractEventLoop:
    """Return an event loop whose timers are exact enough, on Linux, for delays within a data centre."""
    if sys.platform == "linux":
        return asyncio.SelectorEventLoop(_FineSelector())
    return asyncio.new_event_loop()


@dataclass
class LinkTraffic:
    """Traffic of a link.

    Attributes
    ----------
    up, down
        Bytes that arrived at the server and at the client.
    connections
        Number of connections made by clients, including those that did not reach the server.
    open
        Number of open connections.
    cuts
        Number of cuts of the link.
    """

    up: int = 0
    down: int = 0
    connections: int = 0
    open: int = 0
    cuts: int = 0


@dataclass
class _Lane:
    """One direction of a link. Its connections share the bandwidth in the order of their calls of :meth:`send`."""

    way: LinkModel
    count: Callable[[int], None]
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def send(self, size: int) -> float:
        """Wait until the queue accepts the bytes, and return their arrival time."""
        clock = asyncio.get_running_loop().time
        if self.way.rate is None:
            return self.way.arrival(clock(), size)
        async with self.turn:
            while (wait := self.way.full_for(clock())) > 0:
                await asyncio.sleep(wait)
            return self.way.arrival(clock(), size)


@dataclass
class _Passage:
    """One direction of one connection, with bytes that are received, delayed, and forwarded at their arrival times."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    lane: _Lane
    under_way: asyncio.Queue[tuple[float, bytes, bool]] = field(default_factory=asyncio.Queue)
    held: int = 0
    room: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self) -> None:
        """Forward bytes until one side ends the connection, and end the other side in the same way."""
        taking = asyncio.create_task(self._take_in())
        try:
            # If the receiver has disconnected, the task of the other direction closes the sender's connection.
            with contextlib.suppress(OSError):
                await self._hand_out()
        finally:
            taking.cancel()
            await asyncio.gather(taking, return_exceptions=True)

    async def _take_in(self) -> None:
        latest, broken, data = 0.0, False, b"-"
        while data:
            try:
                data = await self.reader.read(self.lane.way.chunk)
            except OSError:
                data, broken = b"", True
            latest = max(latest, await self.lane.send(len(data)))
            self.held += len(data)
            self.under_way.put_nowait((latest, data, broken))
            while self.held > self.lane.way.capacity:
                self.room.clear()
                await self.room.wait()

    async def _hand_out(self) -> None:
        clock = asyncio.get_running_loop().time
        while True:
            due, data, broken = await self.under_way.get()
            if (wait := due - clock()) > 0:
                await asyncio.sleep(wait)
            if broken:
                _reset(self.writer)
            elif not data:
                self.writer.write_eof()
            if not data:
                return
            self.writer.write(data)
            await self.writer.drain()
            self.held -= len(data)
            self.room.set()
            self.lane.count(len(data))


@dataclass
class Line:
    """Link in operation, whose connections share its bandwidth and its cuts.

    Attributes
    ----------
    link
        Settings of the link.
    seed, name
        Seed of the run and name of the link, for random numbers.
    server
        Host and port of the server.
    say
        Callback for messages about the link.
    traffic
        Traffic so far.
    """

    link: Link
    seed: int
    name: str
    server: tuple[str, int]
    say: Callable[[str], None] = lambda words: None
    traffic: LinkTraffic = field(default_factory=LinkTraffic)

    def __post_init__(self) -> None:
        up, down = ways(self.link, self._draws("up"), self._draws("down"))
        self._up, self._down = _Lane(up, self._count_up), _Lane(down, self._count_down)
        self._works = asyncio.Event()
        self._works.set()
        self._connections: set[asyncio.Task[None]] = set()
        self._cutting: asyncio.Task[None] | None = None
        self._reaches = True

    def _draws(self, purpose: str) -> np.random.Generator:
        return generator(self.seed, self.name, "link", purpose)

    def _count_up(self, size: int) -> None:
        self.traffic.up += size

    def _count_down(self, size: int) -> None:
        self.traffic.down += size

    def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Forward a connection made by a client."""
        if self._cutting is None:
            self._cutting = asyncio.create_task(self._cut_now_and_then())
        task = asyncio.create_task(self._connect(reader, writer))
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.traffic.connections += 1
        self.traffic.open += 1
        ends = [writer]
        whole = False
        try:
            _limit_buffer(writer)
            await self._works.wait()  # new connections wait while the link is down
            await asyncio.sleep(self.link.rtt)  # round trip of TCP's handshake
            try:
                from_server, to_server = await asyncio.open_connection(*self.server)
            except OSError as error:
                if self._reaches:  # report only the first of successive failures
                    self.say(f"{self.server[0]}:{self.server[1]} cannot be reached ({error.strerror or error})")
                self._reaches = False
                return
            self._reaches = True
            _limit_buffer(to_server)
            ends.append(to_server)
            async with asyncio.TaskGroup() as directions:
                directions.create_task(_Passage(reader, to_server, self._up).run())
                directions.create_task(_Passage(from_server, writer, self._down).run())
            whole = True
        finally:
            self.traffic.open -= 1
            for end in ends:
                if whole:
                    end.close()
                else:
                    _reset(end)

    async def _cut_now_and_then(self) -> None:
        clock = asyncio.get_running_loop().time
        begun = clock()
        for cut in cut_times(self.link, self._draws("cuts")):
            await asyncio.sleep(begun + cut - clock())
            self._works.clear()
            self.traffic.cuts += 1
            self.say(f"{self.name}: cut for {self.link.cut_for:g} s ({len(self._connections)} connections)")
            await self._end_connections()
            await asyncio.sleep(begun + cut + self.link.cut_for - clock())
            self._works.set()

    async def _end_connections(self) -> None:
        ending = list(self._connections)
        for task in ending:
            task.cancel()
        await asyncio.gather(*ending, return_exceptions=True)

    async def close(self) -> None:
        """Reset every connection."""
        if self._cutting is not None:
            self._cutting.cancel()
            await asyncio.gather(self._cutting, return_exceptions=True)
        await self._end_connections()


@dataclass
class NetworkProxy:
    """Listener that clients dial in place of the server.

    Attributes
    ----------
    server
        Host and port of the server.
    link
        Settings of the links.
    seed
        Seed of the run.
    name
        Client id, or another unique name, for the random numbers of the link.
    each
        True if each host that connects has its own link. Otherwise all connections share one link.
    say
        Callback for messages about the links.
    lines
        Links in operation, by host or ``name``.
    """

    server: tuple[str, int]
    link: Link
    seed: int = 0
    name: str = "link"
    each: bool = False
    say: Callable[[str], None] = lambda words: None
    lines: dict[str, Line] = field(default_factory=dict)
    _listening: asyncio.Server | None = None

    @property
    def traffic(self) -> LinkTraffic:
        """Total traffic of all links."""
        each = [astuple(line.traffic) for line in self.lines.values()]
        return LinkTraffic(*map(sum, zip(*each, strict=True)))

    async def listen(self, host: str, port: int) -> int:
        """Start to accept connections, and return the port, which is a free one if ``port`` is 0.

        Raises
        ------
        UnreachableError
            If the proxy cannot listen on this host and port.
        """
        try:
            self._listening = await asyncio.start_server(self._accept, host, port)
        except OSError as error:
            raise UnreachableError(
                f"cannot listen on {host}:{port} ({error.strerror or error}); if the port is in use, choose "
                "another, or check the host name"
            ) from None
        found: int = self._listening.sockets[0].getsockname()[1]
        return found

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = writer.get_extra_info("peername")
        name = str(peer[0]) if self.each and peer else self.name
        if name not in self.lines:
            self.lines[name] = Line(self.link, self.seed, name, self.server, self.say)
        self.lines[name].accept(reader, writer)

    async def close(self) -> None:
        """Stop listening, and reset every connection."""
        if self._listening is not None:
            self._listening.close()
        for line in self.lines.values():
            await line.close()


def _limit_buffer(writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):  # the peer may have closed the connection already
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BUFFER)


def _reset(writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):  # the peer may have closed the connection already
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    writer.transport.abort()
