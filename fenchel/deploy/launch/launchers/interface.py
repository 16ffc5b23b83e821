"""Interface of the engines that start client processes, while the server runs in the calling process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Protocol

from fenchel.common.settings.section import Section
from fenchel.deploy.launch.bundle import Bundle


@dataclass(frozen=True, kw_only=True)
class Requirements:
    """Requirements of a run on an engine.

    Attributes
    ----------
    run
        Id of the run.
    processes
        Number of concurrent client processes.
    journals
        Absolute path of the folder for the clients' journals on this machine.
    stateless
        Whether clients keep no state, so that each client can be restarted without a journal.
    data
        Folder on this machine with the run's named data set; ``None`` if clients need no such folder.
    files
        Files on this machine that the settings name.
    """

    run: str
    processes: int
    journals: Path
    stateless: bool
    data: Path | None = None
    files: Sequence[Path] = ()


@dataclass(frozen=True, kw_only=True)
class Site:
    """Server address and state folder for the clients of an engine.

    Attributes
    ----------
    listen
        Host on which the server listens.
    port
        Port on which the server listens; 0 selects a free port.
    dial
        Host that clients dial, also named in the server's certificate.
    state
        Folder for the clients' journals, as a path in client processes.
    """

    listen: str
    port: int = 0
    dial: str
    state: str


@dataclass(frozen=True, kw_only=True)
class ClientProcess:
    """Process that hosts one or more clients of a run.

    Attributes
    ----------
    number
        Index of the process, counted from 0, unchanged by restarts.
    words
        Command-line arguments after ``fenchel``. The process reads its bundle from standard input.
    bundle
        Certificates, keys and secrets of the process's clients.
    log
        Log file on the server's machine, to which the output of the process is appended.
    """

    number: int
    words: Sequence[str]
    bundle: Bundle
    log: Path


class Handle(Protocol):
    """Handle of a started client process."""

    async def ended(self) -> int | None:
        """Wait for the process to exit, and return its exit code, or the negated number of the signal that killed it.

        The result is ``None`` if the exit code is unknown, because the process was killed or its machine or connection
        was lost.
        """

    def stop(self, *, now: bool = False) -> None:
        """Request that the process exit, or kill the process if ``now`` is true."""


class Launcher(Protocol):
    """Engine on which client processes are started, and restarted if they were killed.

    Attributes
    ----------
    Settings
        Class of the engine's settings, the argument of the launcher's constructor.
    on_this_machine
        True if client processes run on this machine, so that network emulation proxies can impose links.
    """

    Settings: ClassVar[type[Section]]

    on_this_machine: ClassVar[bool]

    @staticmethod
    def missing() -> list[str]:
        """Return instructions for each missing prerequisite of the engine, empty if the engine can be used."""

    def plan(self, process: ClientProcess) -> str:
        """Return the command or manifest that :meth:`start` would use."""

    async def open(self, required: Requirements) -> Site:
        """Find or create the resources for the processes of a run, or raise a ``FenchelError``; return their site."""

    async def start(self, process: ClientProcess) -> Handle:
        """Start or restart a process."""

    async def close(self, *, remove_journals: bool) -> None:
        """Remove all resources of :meth:`open` and :meth:`start`, and with ``remove_journals`` also the journals."""
