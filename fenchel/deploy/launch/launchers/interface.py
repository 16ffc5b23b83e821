"""Interface of the engines that start client processes; the server always runs in the process that calls them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from fenchel.deploy.launch.bundle import Bundle


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
        Folder for the clients' journals, as client processes see it; ``None``: in the run folder.
    """

    listen: str
    port: int = 0
    dial: str
    state: str | None = None


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

    async def ended(self) -> int:
        """Wait for the process to end; return its exit code, below 0 where it was killed or its machine was lost."""

    def stop(self, *, now: bool = False) -> None:
        """Ask the process to end, or end it ``now``."""


class Launcher(Protocol):
    """An engine that starts client processes, and starts one again that was killed."""

    async def open(self, run: str) -> Site:
        """Find or make what processes of a run need, by its id; raise ``FenchelError`` where that cannot be had."""

    async def start(self, process: ClientProcess) -> Handle:
        """Start a process, or one that was killed again."""

    async def close(self, *, completed: bool) -> None:
        """Remove all that :meth:`open` and :meth:`start` have left; journals only where the run is completed."""
