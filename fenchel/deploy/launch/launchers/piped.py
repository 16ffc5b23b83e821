"""Remote client processes, each controlled by a local command such as ``ssh``."""

from __future__ import annotations

import asyncio
import errno
import os
import re
import shlex
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from pydantic import Field

from fenchel.common.errors import UnreachableError
from fenchel.common.settings.section import Section
from fenchel.common.untrusted_text import sanitize
from fenchel.deploy.launch.launchers.interface import ClientProcess

REMOTE = "fenchel.deploy.cli.remote"
"""Module that runs a remote client process and reports its exit code."""

_GRACE = 10.0  # grace period for a command whose start is cancelled, in seconds
_PATIENCE = 30.0  # default timeout for commands other than client processes, in seconds

# Skip lines that a login shell prints before the exit code.
_REPORT = re.compile(rb"(?:.*\n)?(\d{1,3})\n", re.DOTALL)


class AddressSettings(Section):
    """Settings of all engines whose clients run on other machines."""

    dial: str = Field(
        "", description="address at which the other machines reach this one; default: found automatically"
    )
    port: int = Field(0, ge=0, le=65535, description="port on which the server listens; 0: a free one")


class PipedSettings(AddressSettings):
    """Settings of all engines whose clients are commands on other machines."""

    python: str = Field(sys.executable, description="Python on the other machines that has Fenchel")


@dataclass
class PipedProcess:
    """Local command that forwards the standard input and output of a remote client process.

    Attributes
    ----------
    lifeline
        File descriptor whose closure ends the client process.
    """

    command: asyncio.subprocess.Process
    lifeline: int | None

    async def ended(self) -> int | None:
        """Wait for the command to exit, and return the exit code that the client process reported, if any."""
        assert self.command.stdout is not None
        report = await self.command.stdout.read()
        await self.command.wait()
        self._let_go()
        matched = _REPORT.fullmatch(report)
        return int(matched[1]) if matched else None

    def stop(self, *, now: bool = False) -> None:
        """Close the standard input of the client process, or kill the command if ``now`` is true."""
        self._let_go()
        if now:
            with suppress(ProcessLookupError):
                self.command.kill()

    def _let_go(self) -> None:
        if self.lifeline is not None:
            os.close(self.lifeline)
            self.lifeline = None


async def start(
    command: Sequence[str], process: ClientProcess, environment: Mapping[str, str] | None = None
) -> PipedProcess:
    """Start a command, and send the bundle to its standard input.

    If this function is cancelled, or the bundle cannot be read, the command gets the end of its standard input, and is
    killed if it does not exit soon, such as one that waits for resources and reads nothing.

    Parameters
    ----------
    environment
        Environment variables of the command; by default those of this process.
    """
    reading, writing = os.pipe()
    try:
        with process.log.open("ab") as log:
            started = await asyncio.create_subprocess_exec(
                *command, stdin=reading, stdout=asyncio.subprocess.PIPE, stderr=log, env=environment
            )
    except BaseException:
        os.close(writing)
        raise
    finally:
        os.close(reading)
    try:
        await process.bundle.send(writing)
    except BaseException:
        left = PipedProcess(started, None)
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(_GRACE):
                    await left.ended()
        finally:
            left.stop(now=True)
            await started.wait()
        raise
    return PipedProcess(started, writing)


def plan(command: Sequence[str]) -> str:
    """Return a command in shell syntax for display; ``BUNDLE`` stands for the file on its standard input."""
    return f"{shlex.join(command)} < BUNDLE"


async def said(
    command: Sequence[str], environment: Mapping[str, str] | None = None, patience: float = _PATIENCE
) -> tuple[int | None, str, str]:
    """Run a command without input, and return its outcome.

    Parameters
    ----------
    patience
        Time in seconds after which the command is killed.

    Returns
    -------
    tuple[int | None, str, str]
        Exit code (``None`` after a timeout), standard output, and the last 500 characters of standard error.
    """
    running = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=environment,
    )
    try:
        async with asyncio.timeout(patience):
            output, errors = await running.communicate()
    except TimeoutError:
        return None, "", f"no answer in {patience:g} s"
    finally:
        if running.returncode is None:
            running.kill()
            await running.wait()
    return running.returncode, output.decode(errors="replace"), sanitize(errors.decode(errors="replace").strip()[-500:])


@contextmanager
def listening(host: str, port: int) -> Iterator[int]:
    """Listen on the server's future address, so that other machines can test the connection, and yield the port.

    Raises
    ------
    UnreachableError
        If this machine cannot listen on the address.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family, backlog=1024)
    except OSError as error:
        if error.errno == errno.EADDRNOTAVAIL:
            raise UnreachableError(
                f"{host} is not an address of this machine; name one that clients can reach", key="dial"
            ) from None
        raise UnreachableError(
            f"cannot listen on port {port} ({error.strerror}); choose another port", key="port"
        ) from None
    with listener:
        yield listener.getsockname()[1]
