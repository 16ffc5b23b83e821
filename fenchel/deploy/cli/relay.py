"""Command ``fenchel relay``: network emulation proxy between clients and their server."""

from __future__ import annotations

import asyncio
import signal
from typing import Annotated

import typer
from rich.console import Console
from rich.live import Live
from rich.text import Text

from fenchel.common.settings.link import PRESETS, parse_link
from fenchel.deploy.address import Address
from fenchel.deploy.netem.proxy import NetworkProxy, event_loop
from fenchel.report.formatting import bytes_text

_REFRESH_SECONDS = 0.5


def relay(
    listen: Annotated[str, typer.Option(metavar="HOST:PORT", help="address that the clients dial")],
    to: Annotated[str, typer.Option(metavar="HOST:PORT", help="address of the server")],
    link: Annotated[str | None, typer.Option(metavar="PRESET", help=f"one of {', '.join(PRESETS)}")] = None,
    rtt: Annotated[str | None, typer.Option(metavar="TIME", help="round-trip time, such as 257.5ms")] = None,
    jitter: Annotated[
        str | None, typer.Option(metavar="TIME", help="mean of the random addition to the round trip")
    ] = None,
    up: Annotated[
        str | None, typer.Option(metavar="RATE", help="bandwidth to the server, such as 20Mbit or 1.5MB/s")
    ] = None,
    down: Annotated[str | None, typer.Option(metavar="RATE", help="bandwidth from the server")] = None,
    cut_every: Annotated[
        str | None, typer.Option(metavar="TIME", help="mean time until the link is cut, at random")
    ] = None,
    cut_at: Annotated[
        list[str] | None,
        typer.Option(metavar="TIME", help="time of a cut after the first connection; repeat for several"),
    ] = None,
    cut_for: Annotated[str | None, typer.Option(metavar="TIME", help="duration of a cut")] = None,
    seed: Annotated[int, typer.Option(min=0, help="seed of jitter and cuts")] = 0,
    each: Annotated[
        bool, typer.Option("--each", help="use a link for each host that dials; default: all clients share one")
    ] = False,
    idle: Annotated[
        float | None,
        typer.Option(
            min=0, help="seconds without a connection after which the command ends, once there was one; default: never"
        ),
    ] = None,
) -> None:
    """Emulate a network between clients and a server: clients connect to this proxy until Ctrl-C ends it."""
    given = {
        "preset": link,
        "rtt": rtt,
        "jitter": jitter,
        "upload": up,
        "download": down,
        "cut_every": cut_every,
        "cut_at": cut_at or None,
        "cut_for": cut_for,
    }
    chosen = parse_link({key: value for key, value in given.items() if value is not None}, "fenchel relay")
    console = Console(highlight=False, soft_wrap=True)
    at, server = Address.parse(listen, "--listen"), Address.parse(to, "--to")
    relaying = NetworkProxy((server.host, server.port), chosen, seed, each=each, say=console.print)
    with asyncio.Runner(loop_factory=event_loop) as runner:
        runner.run(_until_stopped(relaying, at, console, idle))


async def _until_stopped(relaying: NetworkProxy, at: Address, console: Console, idle: float | None) -> None:
    """Run the proxy until Ctrl-C, SIGTERM or ``idle`` seconds after the last connection. Then print the traffic."""
    port = await relaying.listen(at.host, at.port)
    server, link = f"{relaying.server[0]}:{relaying.server[1]}", relaying.link
    console.print(f"{Address(at.host, port)} leads to {server}: {link.in_words}")
    stopped = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    quiet, known = 0.0, 0
    try:
        with Live(console=console, auto_refresh=False, transient=True) as live:
            while not stopped.is_set() and (idle is None or quiet < idle):
                if console.is_terminal:
                    live.update(Text(_counters(relaying)), refresh=True)
                try:
                    await asyncio.wait_for(stopped.wait(), _REFRESH_SECONDS)
                except TimeoutError:
                    passed = relaying.traffic
                    busy = passed.open or not passed.connections or passed.connections > known
                    quiet, known = (0.0 if busy else quiet + _REFRESH_SECONDS), passed.connections
    finally:
        await relaying.close()
    console.print(_counters(relaying))


def _counters(relaying: NetworkProxy) -> str:
    passed = relaying.traffic
    return (
        f"up {bytes_text(passed.up)}  down {bytes_text(passed.down)}  connections {passed.open} of "
        f"{passed.connections}  cuts {passed.cuts}"
    )
