"""Interface of the engines that start client processes; the server always runs in the process that calls them."""

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
        Number of client processes at the same time.
    journals
        Folder of this machine for the journals of clients, absolute.
    stateless
        Whether clients keep no journals, so that each can be started again without one.
    data
        Folder of this machine for named data sets that has the run's; ``None`` where clients need none.
    files
        Files of this machine that the settings name.
    """

    run: str
    processes: int
    journals: Path
    stateless: bool
    data: Path | None = None
    files: Sequence[Path] = ()


@dataclass(frozen=True, kw_only=True)
class Site:
    """Address of a server as its clients see it.

    Attributes
    ----------
    listen
        Host on which the server listens.
    port
        Port on which it listens; 0: a free one.
    dial
        Host that clients dial, which the server's certificate names.
    state
        Folder for the clients' journals, as client processes see it.
    """

    listen: str
    port: int = 0
    dial: str
    state: str


@dataclass(frozen=True, kw_only=True)
class ClientProcess:
    """A process that hosts some of a run's clients.

    Attributes
    ----------
    number
        Counted from 0; the same when it is started again.
    words
        Command line after ``fenchel``; it reads its bundle from standard input.
    bundle
        Certificates, keys and secrets of its clients.
    log
        File to which its output is appended, on the server's machine.
    """

    number: int
    words: Sequence[str]
    bundle: Bundle
    log: Path


class Handle(Protocol):
    """A client process that was started."""

    async def ended(self) -> int | None:
        """Wait for the process to end; return its exit code, below 0: the signal that killed it.

        It is ``None`` where only the engine could say how it ended: it was killed, or its machine or the way there was
        lost.
        """

    def stop(self, *, now: bool = False) -> None:
        """Ask the process to end, or end it ``now``."""


class Launcher(Protocol):
    """An engine that starts client processes, and starts one again that was killed.

    Attributes
    ----------
    Settings
        Settings of the engine, which its constructor takes.
    on_this_machine
        True if client processes are on this machine, which can then emulate their links.
    """

    Settings: ClassVar[type[Section]]

    on_this_machine: ClassVar[bool]

    @staticmethod
    def missing() -> list[str]:
        """Return what this machine lacks for the engine, each with what to do; empty where it can be used."""

    def plan(self, process: ClientProcess) -> str:
        """Return what :meth:`start` would do, in the engine's own language."""

    async def open(self, required: Requirements) -> Site:
        """Find or make what the processes of a run need; raise ``FenchelError`` where that cannot be had."""

    async def start(self, process: ClientProcess) -> Handle:
        """Start a process, or one that was killed again."""

    async def close(self, *, remove_journals: bool) -> None:
        """Remove all that :meth:`open` and :meth:`start` have left; journals only if no run needs them."""
