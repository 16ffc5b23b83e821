"""Process with a network emulation proxy for each client that has an emulated link.

It is a separate process, so that the work of server and clients does not delay traffic.
``python -m fenchel.deploy.netem.proxies`` reads one JSON object from standard input: the server, the host to listen on,
the seed, and each client's link. It prints the ports for the clients. At the end of standard input it prints the
traffic of all links, and exits.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fenchel.common.errors import RunStoppedError
from fenchel.common.settings.link import Link
from fenchel.deploy.address import Address
from fenchel.deploy.netem.proxy import NetworkProxy, event_loop


@dataclass(frozen=True)
class NetworkProxies:
    """Running proxies of a run.

    Attributes
    ----------
    ports
        Ports that clients dial in place of the server's port, by client id.
    process
        Process of the proxies.
    log
        Log file of the process.
    begin
        Size in bytes of the log when the process started.
    """

    ports: Mapping[str, int]
    process: asyncio.subprocess.Process
    log: Path
    begin: int

    async def watch(self) -> None:
        """Wait until the process ends, and raise ``RunStoppedError``, because the process should outlive the run."""
        await self.process.wait()
        raise _ended(self.process, self.log, self.begin)


@asynccontextmanager
async def relaying(
    links: Mapping[str, Link], server: str, *, listen: str, seed: int, log: Path, passed: Path
) -> AsyncIterator[NetworkProxies]:
    """Run proxies between clients and server for the duration of a ``with`` block.

    Parameters
    ----------
    links
        Links by client id.
    server
        Address of the server.
    listen
        Host on this machine on which the proxies listen.
    seed
        Seed of the run.
    log
        Log file of the process.
    passed
        JSON file with each client's link and its traffic, written at the end. What a resumed run wrote there before it
        was interrupted is added.

    Raises
    ------
    RunStoppedError
        If the process ends before the proxies accept connections.
    """
    begin = size_of(log)
    with log.open("ab") as output:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", "fenchel.deploy.netem.proxies"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=output,
            env=os.environ | {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"},
            limit=1 << 24,
        )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        order = {
            "server": server,
            "listen": listen,
            "seed": seed,
            "links": {name: link.model_dump() for name, link in links.items()},
        }
        process.stdin.write(json.dumps(order).encode() + b"\n")
        line = await process.stdout.readline()
        if not line:
            await process.wait()
            raise _ended(process, log, begin)
        yield NetworkProxies(json.loads(line), process, log, begin)
    finally:
        process.stdin.close()  # the proxy process exits when its standard input closes
        traffic = await process.stdout.read()
        await process.wait()
        if traffic:
            _write(passed, traffic)


def _write(file: Path, traffic: bytes) -> None:
    found = json.loads(traffic)
    with suppress(FileNotFoundError):
        earlier = json.loads(file.read_text())
        for name, each in found.items():
            before = earlier.get(name, {"passed": {}})["passed"]
            each["passed"] = {key: value + before.get(key, 0) for key, value in each["passed"].items()}
    file.write_text(json.dumps(found, indent=2) + "\n")


def _ended(process: asyncio.subprocess.Process, log: Path, begin: int) -> RunStoppedError:
    assert process.returncode is not None
    return RunStoppedError(f"the process of the emulated links {how_it_ended(process.returncode, log, begin)}")


def size_of(log: Path) -> int:
    """Return the size of a log in bytes, 0 if there is none."""
    return log.stat().st_size if log.exists() else 0


def how_it_ended(code: int | None, log: Path, begin: int = 0) -> str:
    """Describe the end of a process, with the last lines of its log.

    Parameters
    ----------
    code
        Exit code, or the negative number of the signal that killed the process; ``None`` if unknown.
    log
        Log file of the process.
    begin
        Size of the log in bytes when the process started. What earlier processes wrote is left out.
    """
    words = last_words(log, begin)
    if code is None:
        return f"was killed, or its machine or the connection to it was lost: {words or 'no output in its log'}"
    if code >= 0:
        return f"ended with code {code}: {words or 'no output in its log, perhaps because the disk is full'}"
    cause = ", perhaps because memory ran out" if -code == signal.SIGKILL else ""
    return f"was killed by signal {-code} ({signal.strsignal(-code)}){cause}: {words or 'no output in its log'}"


def last_words(log: Path, begin: int = 0) -> str:
    """Return the last eight lines that a process has written to its log since it had ``begin`` bytes."""
    return "\n".join(log.read_bytes()[begin:].decode(errors="replace").strip().splitlines()[-8:])


async def _serve(order: Mapping[str, Any]) -> None:
    """Run the proxies until standard input ends, and print their ports at the start and their traffic at the end."""
    server, seed = Address.parse(order["server"], "server"), int(order["seed"])
    relays = {
        name: NetworkProxy((server.host, server.port), Link.model_validate(link), seed, name, say=_say)
        for name, link in order["links"].items()
    }
    _print({name: await relay.listen(order["listen"], 0) for name, relay in relays.items()})
    await asyncio.to_thread(sys.stdin.read)
    for relay in relays.values():
        await relay.close()
    _print(
        {
            name: {"link": relay.link.model_dump(mode="json"), "passed": asdict(relay.traffic)}
            for name, relay in relays.items()
        }
    )


def _print(message: Mapping[str, Any]) -> None:
    print(json.dumps(message), flush=True)  # noqa: T201


def _say(words: str) -> None:
    print(words, file=sys.stderr, flush=True)  # noqa: T201


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # ignore Ctrl-C in the terminal: the parent ends this process
    with asyncio.Runner(loop_factory=event_loop) as runner:
        runner.run(_serve(json.loads(sys.stdin.readline())))
