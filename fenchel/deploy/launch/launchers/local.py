"""Client processes on this machine."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from fenchel.common.settings.section import Section
from fenchel.deploy.launch.fork_server import Forked, ForkServer
from fenchel.deploy.launch.launchers.interface import ClientProcess, Requirements, Site


@dataclass
class LocalProcess:
    """Client process on this machine.

    Attributes
    ----------
    lifeline
        File descriptor whose closure ends the process.
    """

    forked: Forked
    lifeline: int | None

    async def ended(self) -> int:
        """Wait for the process to exit, and return its exit code, or the negated number of a fatal signal."""
        code = await self.forked.ended()
        if self.lifeline is not None:  # closing the lifeline also ends a process whose fork server has exited
            os.close(self.lifeline)
            self.lifeline = None
        return code

    def stop(self, *, now: bool = False) -> None:
        """Request that the process exit, or kill the process if ``now`` is true."""
        if now:
            self.forked.kill()
        else:
            self.forked.terminate()


@dataclass
class LocalLauncher:
    """Launcher that forks client processes from a fork server.

    Parameters
    ----------
    modules
        Modules that the fork server imports in addition to those of ``fenchel client``.
    """

    Settings: ClassVar[type[Section]] = Section
    on_this_machine: ClassVar[bool] = True

    modules: Sequence[str] = ()
    _fork_server: ForkServer = field(init=False)

    @staticmethod
    def missing() -> list[str]:
        """Return no instructions, because this engine has no prerequisites."""
        return []

    def plan(self, process: ClientProcess) -> str:
        """Return the command that the forked process executes."""
        return shlex.join(["fenchel", *process.words])

    async def open(self, required: Requirements) -> Site:
        """Start the fork server, which imports modules while the server starts."""
        self._fork_server = ForkServer(self.modules).__enter__()
        return Site(listen="127.0.0.1", dial="localhost", state=str(required.journals))

    async def start(self, process: ClientProcess) -> LocalProcess:
        """Fork a process, or raise a :class:`RunStoppedError` if the fork server has exited."""
        reading, writing = os.pipe()
        try:
            with process.log.open("ab") as output:
                forked = self._fork_server.start(process.words, output, given=reading)
        except BaseException:
            os.close(writing)
            raise
        finally:
            os.close(reading)
        await process.bundle.send(writing)
        return LocalProcess(forked, writing)

    async def close(self, *, remove_journals: bool) -> None:
        """End the fork server."""
        self._fork_server.__exit__()
