"""Client processes elsewhere, each behind a command of this machine, such as ``ssh``."""

from __future__ import annotations

import asyncio
import os
import re
import signal
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from fenchel.deploy.launch.launchers.interface import ClientProcess

REMOTE = "fenchel.deploy.cli.remote"
"""Module that runs a client process elsewhere and reports its exit code."""

# A login shell may print lines of its own before.
_REPORT = re.compile(rb"(?:.*\n)?(\d{1,3})\n", re.DOTALL)


@dataclass
class PipedProcess:
    """A command of this machine whose standard input and output are those of a client process elsewhere."""

    command: asyncio.subprocess.Process
    lifeline: int | None  # descriptor without which the client process ends

    async def ended(self) -> int:
        """Wait for the process to end; return the exit code that it reported.

        Without a report it was killed, or its machine or the way there was lost, whatever the command says.
        """
        assert self.command.stdout is not None
        report = await self.command.stdout.read()
        await self.command.wait()
        self._let_go()
        told = _REPORT.fullmatch(report)
        return int(told[1]) if told else -signal.SIGKILL

    def stop(self, *, now: bool = False) -> None:
        """End the client process through its standard input, or kill the command ``now``."""
        self._let_go()
        if now:
            with suppress(ProcessLookupError):
                self.command.kill()

    def _let_go(self) -> None:
        if self.lifeline is not None:
            os.close(self.lifeline)
            self.lifeline = None


async def start(command: Sequence[str], process: ClientProcess) -> PipedProcess:
    """Start a command, and send the bundle through it."""
    reading, writing = os.pipe()
    try:
        with process.log.open("ab") as log:
            started = await asyncio.create_subprocess_exec(
                *command, stdin=reading, stdout=asyncio.subprocess.PIPE, stderr=log
            )
    except BaseException:
        os.close(writing)
        raise
    finally:
        os.close(reading)
    await process.bundle.send(writing)
    return PipedProcess(started, writing)
