"""The relay on real sockets.

What it must impose is checked strictly from below; from above there is room for a busy machine.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
import socket
import struct
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from fenchel.common.errors import UnreachableError
from fenchel.common.settings.link import parse_link
from fenchel.deploy.netem.proxy import NetworkProxy
from tests.messages import raises

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
MIB = 1 << 20


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(1 << 16):
        writer.write(data)
        await writer.drain()
    writer.close()


async def swallow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Receive everything, then say how much it was."""
    size = 0
    while data := await reader.read(1 << 18):
        size += len(data)
    writer.write(b"%d" % size)
    writer.close()


async def pour(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Send as many bytes as the client asks for."""
    size = int(await reader.readline())
    writer.write(bytes(size))
    writer.close()


@asynccontextmanager
async def relayed(serve: Serve, each: bool = False, **link: Any) -> AsyncIterator[tuple[NetworkProxy, int]]:
    """A server and a relay in front of it; yields the relay and the port to dial."""
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    relay = NetworkProxy(server.sockets[0].getsockname()[:2], parse_link(link, "test"), seed=3, each=each)
    port = await relay.listen("127.0.0.1", 0)
    try:
        yield relay, port
    finally:
        await relay.close()
        server.close()


async def dial(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection("127.0.0.1", port)


async def send(writer: asyncio.StreamWriter, size: int) -> AsyncIterator[int]:
    """Send some bytes and then the end; yields how many the kernel has taken."""
    sent = 0
    while sent < size:
        writer.write(bytes(min(1 << 18, size - sent)))
        await writer.drain()
        sent += 1 << 18
        yield sent
    writer.write_eof()


async def upload(port: int, size: int) -> float:
    """Send some bytes, and return the seconds until the server has said that they are all there."""
    reader, writer = await dial(port)
    started = time.perf_counter()
    async for _ in send(writer, size):
        pass
    assert await reader.read() == b"%d" % size
    writer.close()
    return time.perf_counter() - started


async def download(port: int, size: int) -> float:
    reader, writer = await dial(port)
    started = time.perf_counter()
    writer.write(b"%d\n" % size)
    assert len(await reader.readexactly(size)) == size
    writer.close()
    return time.perf_counter() - started


@pytest.mark.parametrize("rtt", [0.0, 0.05])
async def test_every_exchange_takes_the_round_trip_and_a_new_connection_one_more(rtt: float) -> None:
    async with relayed(echo, rtt=rtt) as (_, port):
        started = time.perf_counter()
        reader, writer = await dial(port)
        took = []
        for _ in range(5):
            writer.write(b"?")
            await reader.readexactly(1)
            took.append(time.perf_counter() - started)
            started = time.perf_counter()
        assert took[0] >= 2 * rtt
        assert min(took[1:]) >= rtt
        assert min(took[1:]) <= rtt + 0.05
        writer.close()


async def test_a_long_delay_does_not_limit_what_goes_through() -> None:
    async with relayed(swallow, rtt=0.5) as (_, port):
        took = await upload(port, 128 * MIB)
    assert took >= 0.5
    # Were each chunk awaited before the next is sent, 512 chunks would take more than two minutes.
    assert took < 100


@pytest.mark.parametrize(
    ("direction", "transfer", "serve"), [("upload", upload, swallow), ("download", download, pour)]
)
async def test_bytes_leave_at_the_bandwidth_of_their_direction(
    direction: str, transfer: Callable[[int, int], Awaitable[float]], serve: Serve
) -> None:
    rate, size = 4e6, 4_000_000
    limited: dict[str, Any] = {direction: rate}
    async with relayed(serve, **limited) as (_, port):
        took = await transfer(port, size)
        assert took >= size / rate * 0.999
        assert took <= size / rate * 1.1 + 0.5
    limited = {"download" if direction == "upload" else "upload": rate}
    async with relayed(serve, **limited) as (_, port):
        assert await transfer(port, size) < size / rate  # the other direction is free


async def test_connections_share_the_bandwidth_of_their_link_fairly() -> None:
    rate, size = 4e6, 1_000_000
    async with relayed(swallow, upload=rate) as (relay, port):
        took = await asyncio.gather(*(upload(port, size) for _ in range(4)))
        assert max(took) >= 4 * size / rate * 0.98
        assert min(took) >= 0.6 * max(took)
        assert relay.traffic.up == 4 * size
        assert relay.traffic.connections == 4


async def test_with_each_every_host_has_a_link_of_its_own() -> None:
    rate, size = 2e6, 1_000_000
    async with relayed(swallow, each=True, upload=rate) as (relay, port):
        one = asyncio.create_task(upload(port, size))
        reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=("127.0.0.2", 0))
        writer.write(bytes(size))
        writer.write_eof()
        assert await reader.read() == b"%d" % size
        writer.close()
        await one
        assert sorted(relay.lines) == ["127.0.0.1", "127.0.0.2"]
        assert [line.traffic.up for line in relay.lines.values()] == [size, size]


async def test_jitter_keeps_every_byte_in_its_place() -> None:
    chance = random.Random(5)
    sent = [chance.randbytes(chance.randint(1, 3000)) for _ in range(300)]
    async with relayed(echo, rtt=0.01, jitter=0.02, upload="50MB/s") as (_, port):
        reader, writer = await dial(port)

        async def send() -> None:
            for piece in sent:
                writer.write(piece)
                await writer.drain()
                await asyncio.sleep(0.001 if chance.random() < 0.3 else 0)
            writer.write_eof()

        received, _ = await asyncio.gather(reader.read(-1), send())
        assert hashlib.sha256(received).digest() == hashlib.sha256(b"".join(sent)).digest()
        writer.close()


@pytest.mark.slow  # make test-all
async def test_jitter_makes_round_trips_differ_and_is_on_top_of_the_round_trip() -> None:
    async with relayed(echo, rtt=0.01, jitter=0.02) as (_, port):
        reader, writer = await dial(port)
        took = []
        for _ in range(60):
            started = time.perf_counter()
            writer.write(b"?")
            await reader.readexactly(1)
            took.append(time.perf_counter() - started)
        writer.close()
    assert min(took) >= 0.01
    assert sum(took) / len(took) >= 0.02  # 30 ms on average: by chance below 20 less than once in 10^9
    assert max(took) - min(took) >= 0.02


@pytest.mark.slow  # make test-all
async def test_a_server_that_does_not_read_stops_the_client_and_little_is_held_in_between() -> None:
    reading = asyncio.Event()

    async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reading.wait()
        await swallow(reader, writer)

    async with relayed(slow, rtt=0.02, upload="50MB/s") as (_, port):
        reader, writer = await dial(port)
        sent = 0

        async def send_all() -> None:
            nonlocal sent
            async for size in send(writer, 64 * MIB):
                sent = size

        sending, before = asyncio.create_task(send_all()), -1
        while sent != before:
            before = sent
            await asyncio.sleep(1.0)
        # The relay holds 50 MB/s for 0.11 s; kernels keep some megabytes in the four buffers of two connections.
        assert sent < 32 * MIB
        reading.set()
        await sending
        assert await reader.read() == b"%d" % (64 * MIB)
        writer.close()


async def test_one_side_may_end_while_the_other_goes_on() -> None:
    async def late_answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked = await reader.read(-1)
        await asyncio.sleep(0.1)
        writer.write(b"to " + asked)
        writer.close()

    async with relayed(late_answer, rtt=0.02) as (relay, port):
        reader, writer = await dial(port)
        writer.write(b"you")
        writer.write_eof()
        assert await reader.read() == b"to you"
        writer.close()
        while relay.traffic.open:
            await asyncio.sleep(0.01)


async def test_a_cut_resets_all_connections_and_new_ones_wait_until_the_link_is_up_again() -> None:
    async with relayed(echo, rtt=0.02, cut_at=[0.5], cut_for=0.8) as (relay, port):
        started = time.perf_counter()
        ends = [await dial(port) for _ in range(2)]
        for reader, writer in ends:
            writer.write(b"?")
            assert await reader.readexactly(1) == b"?"
        for reader, _ in ends:
            with pytest.raises(ConnectionResetError):
                await reader.readexactly(1)
        assert time.perf_counter() - started >= 0.5
        reader, writer = await dial(port)
        writer.write(b"!")
        assert await reader.readexactly(1) == b"!"
        assert time.perf_counter() - started >= 0.5 + 0.8
        assert relay.traffic.cuts == 1
        assert relay.traffic.connections == 3
        writer.close()
        for _, broken in ends:
            broken.close()


async def test_a_server_that_resets_is_seen_to_reset() -> None:
    async def rude(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(1)
        linger = struct.pack("ii", 1, 0)  # closing is a reset
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        writer.transport.abort()

    async with relayed(rude, rtt=0.02) as (_, port):
        reader, writer = await dial(port)
        writer.write(b"?")
        with pytest.raises(ConnectionResetError):
            await reader.readexactly(1)
        writer.close()


async def test_a_server_that_is_not_there_is_told_of_once_and_the_client_is_reset() -> None:
    said: list[str] = []
    with socket.socket() as silent:  # keeps the port, but does not listen
        silent.bind(("127.0.0.1", 0))
        relay = NetworkProxy(silent.getsockname(), parse_link({}, ""), say=said.append)
        port = await relay.listen("127.0.0.1", 0)
        for _ in range(3):
            reader, writer = await dial(port)
            with pytest.raises(ConnectionResetError):
                await reader.readexactly(1)
            writer.close()
        await relay.close()
    assert len(said) == 1
    assert "cannot be reached" in said[0]


async def test_a_port_in_use_is_said_to_be_so() -> None:
    async with relayed(echo) as (_, port):
        with raises(UnreachableError):
            await NetworkProxy(("127.0.0.1", 1), parse_link({}, "")).listen("127.0.0.1", port)
