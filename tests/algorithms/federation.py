"""A federation in one process whose connections break, whose clients restart and whose server is killed."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fenchel.client.local_data import LocalData
from fenchel.client.session import ClientData, Session
from fenchel.client.worker import Worker
from fenchel.common.arrays import Vector
from fenchel.common.errors import JoinRefusedError
from fenchel.common.settings.run import RunSettings, from_json
from fenchel.common.storage.run_folder import RunFolder
from fenchel.common.version import PROTOCOL
from fenchel.deploy.launch.in_process import MemoryStream
from fenchel.deploy.launch.names import client_names
from fenchel.proto import fenchel_pb2 as pb
from fenchel.server.checkpoint import Checkpoint
from fenchel.server.coordinator import Coordinator, open_resumed
from fenchel.server.telemetry.observer import RunObserver


@dataclass
class Faults:
    """What goes wrong, drawn from a seed.

    Attributes
    ----------
    chance
        Source of all draws.
    breaks
        How often each client's stream breaks.
    kills
        How often the server is killed.
    frames
        A stream breaks, and the server dies, at most so many frames after it began.
    lag
        A frame waits for at most so many turns of the event loop: replies arrive in another order.
    """

    chance: random.Random
    breaks: int = 0
    kills: int = 0
    frames: int = 20
    lag: int = 0

    def moment(self) -> int:
        return self.chance.randint(1, self.frames)

    async def pause(self) -> None:
        for _ in range(self.chance.randint(0, self.lag)):
            await asyncio.sleep(0)


@dataclass
class Line:
    """The client's side of a stream that breaks after some frames, in either direction."""

    inner: MemoryStream
    faults: Faults
    tick: Callable[[], None] = lambda: None
    left: int | None = None
    broken: bool = False

    async def read(self) -> bytes | None:
        if self.broken:
            return None
        frame = await self.inner.read()
        await self.faults.pause()
        self._pass()
        return None if self.broken else frame

    async def write(self, frame: bytes) -> None:
        self._pass()
        if not self.broken:
            await self.inner.write(frame)

    def _pass(self) -> None:
        self.tick()
        if self.left is not None:
            self.left -= 1
            if self.left <= 0:
                self.break_off()

    def break_off(self) -> None:
        """Let nothing pass any more, and wake up who waits."""
        self.broken = True
        with contextlib.suppress(asyncio.QueueFull):
            self.inner.incoming.put_nowait(None)


class Killed(Exception):
    """The server was killed."""


@dataclass
class Federation:
    """Runs a federation to its end, through all faults.

    Attributes
    ----------
    on_row
        Told the figures of each round.
    executor
        Where clients compute; ``None``: on the event loop.
    """

    settings: RunSettings
    folder: RunFolder
    faults: Faults = field(default_factory=lambda: Faults(random.Random(0)))
    observer: RunObserver = field(default_factory=RunObserver)
    executor: Executor | None = None
    workers: dict[str, Worker] = field(default_factory=dict)
    broken: int = 0
    rebuilt: int = 0
    killed: int = 0
    _breaks_left: dict[str, int] = field(default_factory=dict)
    _holdings: LocalData = field(default_factory=LocalData)
    _lines: dict[str, Line] = field(default_factory=dict)
    _ticks_to_death: int | None = None

    def run(self, *, resume: bool = False) -> Vector:
        """Return the final model of a new run, or of one that goes on from the checkpoint in its folder."""
        assert isinstance(self.settings.clients, int)
        names = client_names(self.settings.clients)
        self._breaks_left = dict.fromkeys(names, self.faults.breaks)
        checkpoint = open_resumed(self.folder) if resume else None
        while True:
            try:
                asyncio.run(self._life(names, checkpoint))
            except Killed:
                self.killed += 1
                checkpoint = open_resumed(self.folder)
                continue
            return load_model(self.folder)

    async def _life(self, names: list[str], resume: Checkpoint | None) -> None:
        """Let a server process live until the run is over or it is killed."""
        coordinator = Coordinator(self.settings, self.folder, resume=resume, observer=self.observer)
        self._ticks_to_death = self.faults.moment() if self.killed < self.faults.kills else None
        death = asyncio.Event()
        conducting = asyncio.create_task(coordinator.conduct())
        clients = [asyncio.create_task(self._client(coordinator, name, death)) for name in names]
        dying = asyncio.create_task(death.wait())
        everybody = asyncio.gather(conducting, *clients)
        ends: tuple[asyncio.Future[Any], ...] = everybody, dying
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            if death.is_set() and not everybody.done():
                for line in self._lines.values():
                    line.break_off()
                raise Killed
            everybody.result()
        finally:
            for task in (dying, conducting, *clients):
                task.cancel()
            await asyncio.gather(dying, conducting, *clients, return_exceptions=True)
            with contextlib.suppress(BaseException):
                everybody.exception()

    def _tick(self, death: asyncio.Event) -> None:
        if self._ticks_to_death is not None and self.folder.checkpoint.exists():
            self._ticks_to_death -= 1
            if self._ticks_to_death <= 0:
                death.set()

    async def _client(self, coordinator: Coordinator, name: str, death: asyncio.Event) -> None:
        unnoticed: list[asyncio.Task[None]] = []  # streams that the server still believes in
        try:
            await self._come_and_go(coordinator, name, death, unnoticed)
        finally:
            for serving in unnoticed:
                serving.cancel()
            await asyncio.gather(*unnoticed, return_exceptions=True)

    async def _come_and_go(
        self, coordinator: Coordinator, name: str, death: asyncio.Event, unnoticed: list[asyncio.Task[None]]
    ) -> None:
        chance = self.faults.chance
        while True:
            try:
                worker = await self._joined(coordinator, name)
            except JoinRefusedError as refusal:
                if "all rounds are done" not in str(refusal):
                    raise
                return
            pair = MemoryStream()
            line = self._lines[name] = Line(pair, self.faults, lambda: self._tick(death))
            if self._breaks_left[name]:
                self._breaks_left[name] -= 1
                line.left = self.faults.moment()
            serving = asyncio.create_task(coordinator.admission.work(name, name.encode(), pair.other_side()))
            try:
                farewell = await worker.work(line)
                if farewell is not None:
                    return
                self.broken += 1
                if chance.random() < 0.5:
                    self.workers.pop(name, None)  # the process died
                    self.rebuilt += 1
                for _ in range(chance.choice([0, 3, 30, 300])):
                    await asyncio.sleep(0)  # it stays away for a while
            finally:
                unnoticed.append(serving)
                if chance.random() < 0.5:
                    noticed = unnoticed.pop(0)
                    noticed.cancel()
                    await asyncio.gather(noticed, return_exceptions=True)

    async def _joined(self, coordinator: Coordinator, name: str) -> Worker:
        request = pb.JoinRequest(protocol=PROTOCOL, client=name, instance=name.encode())
        reply = await coordinator.admission.join(request)
        assert reply.HasField("assignment")
        if name not in self.workers:
            settings = from_json(reply.settings)
            holding = self._holdings.of(settings, reply.assignment.index, reply.assignment.clients)
            folder = self.folder.journals / reply.run / name
            self.workers[name] = Worker(self._session(name, settings, holding, folder), self.executor)
        return self.workers[name]

    def _session(self, name: str, settings: RunSettings, holding: ClientData, journal: Path) -> Session:
        return Session(name, settings, holding, journal, [settings.algorithm.name])


def load_model(folder: RunFolder) -> Vector:
    with np.load(folder.model) as archive:
        model: Vector = archive["model"]
    return model


def undisturbed(settings: RunSettings, parent: Path) -> Vector:
    """Return the final model of a run in which nothing goes wrong."""
    return Federation(settings, RunFolder.create(parent, "undisturbed")).run()
