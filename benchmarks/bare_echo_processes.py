"""The processes of the bare echo: a server, and those of the clients.

``server CLIENTS PROCESSES SIZE ROUNDS CERTIFICATES`` prints the seconds of each round as JSON;
``clients PORT COUNT SIZE CERTIFICATES`` is one of the processes that it starts.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc

FRAME_BYTES = 1 << 20
_OPTIONS = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.use_local_subchannel_pool", 1),
)
_METHOD = "/bare.Echo/Work"


def _frames(size: int) -> list[bytes]:
    return [bytes(min(FRAME_BYTES, size - start)) for start in range(0, size, FRAME_BYTES)]


@dataclass
class _Echo:
    """The server: starts a round on every stream and waits until everything has come back."""

    clients: int
    size: int
    complete: asyncio.Event = field(default_factory=asyncio.Event)
    starts: list[asyncio.Queue[bool]] = field(default_factory=list)
    ends: list[asyncio.Queue[None]] = field(default_factory=list)

    async def work(self, frames: AsyncIterator[bytes], context: grpc.aio.ServicerContext[Any, Any]) -> None:
        start: asyncio.Queue[bool] = asyncio.Queue()
        end: asyncio.Queue[None] = asyncio.Queue()
        self.starts.append(start)
        self.ends.append(end)
        if len(self.starts) == self.clients:
            self.complete.set()
        chunks = _frames(self.size)

        async def send() -> None:
            for chunk in chunks:
                await context.write(chunk)

        while await start.get():
            sending = asyncio.create_task(send())
            received = 0
            while received < self.size:
                received += len(await context.read())
            await sending
            end.put_nowait(None)

    async def round(self) -> None:
        for start in self.starts:
            start.put_nowait(True)
        for end in self.ends:
            await end.get()


async def measure(
    clients: int, processes: int, size: int, rounds: int, certificates: Path | None = None
) -> list[float]:
    """Return the seconds of each round.

    size: bytes down and up each stream in a round.
    certificates: for TLS: folder of a server's and a client's certificates; ``None``: without.
    """
    echo = _Echo(clients, size)
    server = grpc.aio.server(options=_OPTIONS)
    handler: grpc.RpcMethodHandler[Any, Any] = grpc.stream_stream_rpc_method_handler(echo.work)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("bare.Echo", {"Work": handler}),))
    if certificates is None:
        port = server.add_insecure_port("127.0.0.1:0")
    else:
        from fenchel.common.tls.credentials import Credentials

        port = server.add_secure_port("127.0.0.1:0", Credentials.load(certificates / "server").for_server())
    await server.start()
    shares = [clients // processes + (place < clients % processes) for place in range(processes)]
    started = [
        subprocess.Popen(  # noqa: ASYNC220 (starting takes no time that matters)
            [
                sys.executable,
                "-m",
                "benchmarks.bare_echo_processes",
                "clients",
                str(port),
                str(share),
                str(size),
                str(certificates or ""),
            ]
        )
        for share in shares
    ]
    try:
        await asyncio.wait_for(echo.complete.wait(), 300)
        seconds = []
        for _ in range(rounds + 1):
            begin = time.perf_counter()
            await echo.round()
            seconds.append(time.perf_counter() - begin)
        for start in echo.starts:
            start.put_nowait(False)
        return seconds[1:]
    finally:
        for process in started:
            process.terminate()
        for process in started:
            process.wait()
        with contextlib.suppress(asyncio.CancelledError):
            await server.stop(0.5)


async def _clients(port: int, count: int, size: int, certificates: str) -> None:
    async def one() -> None:
        if certificates:
            from fenchel.common.tls.credentials import Credentials

            credentials = Credentials.load(Path(certificates) / "client-000")
            channel = grpc.aio.secure_channel(f"localhost:{port}", credentials.for_channel(), options=_OPTIONS)
        else:
            channel = grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=_OPTIONS)
        async with channel:
            call: grpc.aio.StreamStreamCall[Any, Any] = channel.stream_stream(_METHOD)()
            while True:
                received: list[bytes] = []
                length = 0
                while length < size:
                    frame = await call.read()
                    if not isinstance(frame, bytes):
                        return
                    received.append(frame)
                    length += len(frame)
                for frame in received:
                    await call.write(frame)

    await asyncio.gather(*(one() for _ in range(count)))


def main(role: str, *words: str) -> None:
    """Be the server, or the clients of one process."""
    *numbers, certificates = words
    if role == "clients":
        port, count, size = map(int, numbers)
        asyncio.run(_clients(port, count, size, certificates))
    else:
        clients, processes, size, rounds = map(int, numbers)
        folder = Path(certificates) if certificates else None
        print(json.dumps(asyncio.run(measure(clients, processes, size, rounds, folder))))


if __name__ == "__main__":
    main(*sys.argv[1:])
