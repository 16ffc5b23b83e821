"""Conformance checks for algorithms, and an in-process federation with injected faults.

Test with :func:`fenchel.testing.check_algorithm` that an algorithm of your own keeps the guarantees of Fenchel.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import random
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias, cast

import numpy as np

from fenchel.algorithms.client_half import ClientAlgorithm
from fenchel.algorithms.registry import server_half
from fenchel.client.joining import Participant, session_of
from fenchel.client.journal import Journal
from fenchel.client.local_data import DataProvider
from fenchel.client.session import Answer, Session
from fenchel.client.trust_limits import TrustLimits
from fenchel.client.worker import Worker
from fenchel.common.arrays import Vector
from fenchel.common.data.shard import Shard
from fenchel.common.errors import FenchelError
from fenchel.common.settings.run import RunSettings, load, validate
from fenchel.common.storage.run_folder import RunFolder
from fenchel.common.storage.state import freeze, thaw
from fenchel.common.storage.tables import read
from fenchel.common.wire.values import Values
from fenchel.deploy.certificates.keys import CLIENTS, make_keys
from fenchel.deploy.launch.in_process import MemoryStream, providers
from fenchel.deploy.launch.names import client_names
from fenchel.keys.shared import Secrets
from fenchel.server.checkpoint import Checkpoint
from fenchel.server.coordinator import Coordinator, open_resumed
from fenchel.server.telemetry.observer import Observer

_Tamper: TypeAlias = Callable[[str, int, Values], Values]
"""Function of a phase, a round and a client's reply that returns the reply to send instead."""

__all__ = ["Faults", "Federation", "check_algorithm", "load_model", "undisturbed"]


@dataclass
class Faults:
    """Faults to inject into an in-process federation, drawn from a random generator.

    Parameters
    ----------
    chance : random.Random
        Source of all draws. Equal seeds give equal draws.
    breaks : int, default 0
        Number of times that the stream of each client breaks. After a break, the client process restarts with
        probability 1/2.
    kills : int, default 0
        Number of times that the server is killed and resumed. Kills occur only after the first checkpoint.
    frames : int, default 20
        Largest number of frames from the start of a stream to its break, or from a start of the server (or the first
        checkpoint, if later) to a kill.
    lag : int, default 0
        Largest delay of a frame, in turns of the event loop. It changes the order of replies.
    """

    chance: random.Random
    breaks: int = 0
    kills: int = 0
    frames: int = 20
    lag: int = 0

    def moment(self) -> int:
        """Draw the number of frames until the next fault.

        Returns
        -------
        int
            Uniform number from 1 to ``frames``.
        """
        return self.chance.randint(1, self.frames)

    async def pause(self) -> None:
        """Delay a frame by up to ``lag`` turns of the event loop."""
        for _ in range(self.chance.randint(0, self.lag)):
            await asyncio.sleep(0)


@dataclass
class _Line:
    """Client's side of a stream, which breaks after ``left`` frames of both directions together."""

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
        """Stop all further frames, and wake up a waiting reader."""
        self.broken = True
        with contextlib.suppress(asyncio.QueueFull):
            self.inner.incoming.put_nowait(None)


class _Killed(Exception):
    """Exception for an injected kill of the server."""


@dataclass
class Federation:
    """In-process federation with injected faults: broken streams, client restarts and server kills.

    It runs the server and clients of Fenchel without a network, to test that no fault changes the model.

    Parameters
    ----------
    settings : RunSettings
        Settings of the run, with a number of clients.
    folder : RunFolder
        Run folder, which also holds the clients' journals.
    faults : Faults, optional
        Faults to inject. Default: none.
    observer : Observer, optional
        Observer of the run.
    executor : Executor, optional
        Executor of the clients' computations. Default: the event loop's thread.
    session : callable, default Session
        Class or function that creates the session of a client. A test can replace it to change replies.
    secrets : Secrets, optional
        Keys that the clients share. By default they are created if the algorithm encrypts.
    shards : Sequence[Shard], optional
        Shard of each client, for settings with ``data.name: own``.
    journals : bool, default True
        Whether clients keep their journals in files rather than in memory.

    Attributes
    ----------
    workers : dict[str, Worker]
        Running clients by id.
    broken : int
        Number of streams that have broken.
    rebuilt : int
        Number of client restarts.
    killed : int
        Number of times that the server was killed.
    passed : int
        Number of frames since the first checkpoint.
    """

    settings: RunSettings
    folder: RunFolder
    faults: Faults = field(default_factory=lambda: Faults(random.Random(0)))
    observer: Observer | None = None
    executor: Executor | None = None
    session: Callable[..., Session] = Session
    secrets: Secrets | None = None
    shards: Sequence[Shard] | None = None
    journals: bool = True
    workers: dict[str, Worker] = field(default_factory=dict)
    broken: int = 0
    rebuilt: int = 0
    killed: int = 0
    passed: int = 0
    _breaks_left: dict[str, int] = field(default_factory=dict)
    _participants: dict[str, Participant] = field(default_factory=dict)
    _lines: dict[str, _Line] = field(default_factory=dict)
    _ticks_to_death: int | None = None

    def run(self, *, resume: bool = False) -> Vector:
        """Run the federation to its end, with its faults.

        Parameters
        ----------
        resume : bool, default False
            Whether to continue from the checkpoint in ``folder`` instead of starting a new run.

        Returns
        -------
        Vector, shape (d,)
            Final model.

        Raises
        ------
        AssertionError
            If the number of clients is not fixed in the settings.
        FenchelError
            If the run stopped.
        """
        assert isinstance(self.settings.clients, int)
        names = client_names(self.settings.clients)
        bits = self.settings.algorithm.key_bits
        if self.secrets is None and bits is not None:
            make_keys(self.folder.journals / "keys", bits, self.settings.algorithm.encryption_implementation)
            self.secrets = Secrets.load(self.folder.journals / "keys" / CLIENTS)
        self._breaks_left = dict.fromkeys(names, self.faults.breaks)
        data = providers(self.settings, len(names), self.shards)
        self._participants = {name: self.participant(name, local) for name, local in zip(names, data, strict=True)}
        checkpoint = open_resumed(self.folder) if resume else None
        while True:
            try:
                asyncio.run(self._life(names, checkpoint))
            except _Killed:
                self.killed += 1
                checkpoint = open_resumed(self.folder)
                continue
            return load_model(self.folder)

    def participant(self, name: str, local_data: DataProvider) -> Participant:
        """Return the configuration of one client. A subclass can override it to change a client.

        Parameters
        ----------
        name : str
            Id of the client.
        local_data : DataProvider
            Source of the client's shard.

        Returns
        -------
        Participant
            Configuration: id, data, journal folder, trust limits that accept the settings, and secrets.
        """
        return Participant(
            name=name,
            local_data=local_data,
            state_folder=self.folder.journals if self.journals else None,
            trust_limits=TrustLimits.agreeing_to(self.settings),
            secrets=self.secrets,
        )

    async def _life(self, names: list[str], resume: Checkpoint | None) -> None:
        """Run one simulated server process until the run is over. Raise ``_Killed`` if the server is killed before."""
        coordinator = Coordinator(self.settings, self.folder, resume=resume, observer=self.observer)
        self._ticks_to_death = self.faults.moment() if self.killed < self.faults.kills else None
        death = asyncio.Event()
        conducting = asyncio.create_task(coordinator.run())
        clients = [asyncio.create_task(self._client(coordinator, name, death)) for name in names]
        dying = asyncio.create_task(death.wait())
        everybody = asyncio.gather(conducting, *clients)
        ends: tuple[asyncio.Future[Any], ...] = everybody, dying
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            if death.is_set() and not everybody.done():
                for line in self._lines.values():
                    line.break_off()
                raise _Killed
            everybody.result()
            await coordinator.farewells()
        finally:
            for task in (dying, conducting, *clients):
                task.cancel()
            await asyncio.gather(dying, conducting, *clients, return_exceptions=True)
            with contextlib.suppress(BaseException):
                everybody.exception()

    def _tick(self, death: asyncio.Event) -> None:
        if not self.folder.checkpoint.exists():
            return
        self.passed += 1
        if self._ticks_to_death is not None:
            self._ticks_to_death -= 1
            if self._ticks_to_death <= 0:
                death.set()

    async def _client(self, coordinator: Coordinator, name: str, death: asyncio.Event) -> None:
        unnoticed: list[asyncio.Task[None]] = []  # streams whose end the server has not noticed
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
            worker = await self._joined(coordinator, name)
            pair = MemoryStream()
            line = self._lines[name] = _Line(pair, self.faults, lambda: self._tick(death))
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
                    self.workers.pop(name, None)  # simulate the death of the client process
                    self.rebuilt += 1
                for _ in range(chance.choice([0, 3, 30, 300])):
                    await asyncio.sleep(0)  # keep the client disconnected for some iterations of the event loop
            finally:
                unnoticed.append(serving)
                if chance.random() < 0.5:
                    noticed = unnoticed.pop(0)
                    noticed.cancel()
                    await asyncio.gather(noticed, return_exceptions=True)

    async def _joined(self, coordinator: Coordinator, name: str) -> Worker:
        participant = self._participants[name]
        reply = await coordinator.admission.join(participant.request(name.encode()))
        assert reply.HasField("assignment")
        if name not in self.workers:
            self.workers[name] = Worker(session_of(participant, reply, make=self.session), self.executor)
        return self.workers[name]


def load_model(folder: RunFolder) -> Vector:
    """Load the final model of a completed run.

    Parameters
    ----------
    folder : RunFolder
        Folder of the run.

    Returns
    -------
    Vector, shape (d,)
        Final model.

    Raises
    ------
    FileNotFoundError
        If the folder has no final model.
    """
    with np.load(folder.model) as archive:
        model: Vector = archive["model"]
    return model


def undisturbed(settings: RunSettings, parent: Path) -> Vector:
    """Run a federation without faults, for comparison with disturbed runs.

    Parameters
    ----------
    settings : RunSettings
        Settings of the run, with a number of clients.
    parent : Path
        Folder in which the run folder is created.

    Returns
    -------
    Vector, shape (d,)
        Final model.

    Raises
    ------
    AssertionError
        If the number of clients is not fixed in the settings.
    FenchelError
        If the run stopped.
    """
    return Federation(settings, RunFolder.create(parent, "undisturbed")).run()


def check_algorithm(settings: RunSettings | Mapping[str, Any] | Path | str, folder: Path, *, seeds: int = 2) -> None:
    """Check that an algorithm keeps the guarantees of Fenchel, by in-process runs with injected faults.

    * Runs of the same settings give the same model, bit for bit.
    * Broken streams, client restarts, server kills and repeated instructions do not change a bit of the model.
    * A run that stopped because all clients failed can be resumed, and ends with the same model.
    * A reply of another shape than requested, or with values that are not finite, is not counted.
    * The state of each half can be written and read back.

    Parameters
    ----------
    settings : RunSettings, Mapping, Path or str
        Settings of a small run with a fixed number of clients: validated, as a mapping, or the path of a file.
        Their evaluation and deadlines are replaced: no evaluation, and deadlines that no fault exceeds.
    folder : Path
        Folder in which run folders are created.
    seeds : int, default 2
        Number of series of faults to try. Each takes three runs.

    Raises
    ------
    AssertionError
        If a guarantee is not kept, which the message names. Also if the run is too short for the faults, or its model
        is not finite.
    SettingsError
        If the settings are not valid.
    FenchelError
        If a run stopped that should have completed.

    Examples
    --------
    In a test for pytest::

        from fenchel.testing import check_algorithm

        def test_feddual(tmp_path):
            check_algorithm("feddual.yaml", tmp_path)
    """
    case = _Case(_quiet(settings), folder)
    case.check_determinism()
    case.check_states()
    case.check_repetition()
    for seed in range(seeds):
        case.check_faults(seed)
    case.check_resumption()
    case.check_damage(_longer, "a reply with an array of another shape")
    case.check_damage(_not_finite, "a reply that is not finite")


def _quiet(settings: RunSettings | Mapping[str, Any] | Path | str) -> RunSettings:
    """Return validated settings without evaluation, and with deadlines that no fault exceeds."""
    if isinstance(settings, str | Path):
        settings = load(Path(settings))
    values = settings.model_dump(mode="json") if isinstance(settings, RunSettings) else dict(settings)
    given = values.get("participation") or {}
    values["participation"] = {**given, "deadline": 600.0, "on_shortage": "stop", "phases": {}}
    values["evaluation"] = {"server": False, "clients": False}
    return validate(values, "check_algorithm")


@dataclass
class _Case:
    """Checks of one algorithm against an undisturbed run.

    Attributes
    ----------
    model
        Final model of the undisturbed run, shape (d,).
    frames
        Number of frames of the undisturbed run since its first checkpoint.
    folder
        Folder of the undisturbed run.
    """

    settings: RunSettings
    parent: Path
    model: Vector = field(init=False)
    frames: int = field(init=False)
    folder: RunFolder = field(init=False)

    def __post_init__(self) -> None:
        undisturbed = self.federation("undisturbed")
        self.model, self.frames, self.folder = undisturbed.run(), undisturbed.passed, undisturbed.folder
        assert np.isfinite(self.model).all(), (
            "the model of a run without faults is not finite; reduce the step size in the settings"
        )

    def federation(self, name: str, **more: Any) -> Federation:
        return Federation(self.settings, RunFolder.create(self.parent, name), **more)

    def same(self, model: Vector, what: str) -> None:
        assert model.tobytes() == self.model.tobytes(), f"{what} changed the final model"

    def check_determinism(self) -> None:
        self.same(self.federation("again").run(), "a second run of the same settings")

    def check_faults(self, seed: int) -> None:
        for breaks, kills in ((3, 0), (0, 2), (3, 2)):
            # Each kill must interrupt an active run, so a short run divides its frames among the kills.
            frames = min(20, self.frames // (2 * (kills + 1)))
            assert frames, "the run is too short to inject faults; give it more rounds"
            faults = Faults(random.Random(f"{seed} {breaks} {kills}"), breaks, kills, frames=frames, lag=2)
            federation = self.federation("faults", faults=faults)
            self.same(federation.run(), f"{breaks} broken streams a client and {kills} kills of the server")
            assert federation.killed == kills, (
                f"the run ended after {federation.killed} of {kills} kills of its server; give it more rounds"
            )

    def check_repetition(self) -> None:
        """Check that clients repeat the stored reply to an instruction that they handle twice."""
        self.same(self.federation("repeated", session=_Repeating).run(), "an instruction that was handled twice")

    def check_resumption(self) -> None:
        """Check that a run in which all clients fail from its middle on stops, and can be resumed without the fault."""
        failing = True
        middle = max(self.settings.rounds // 2, 1)

        def fail(phase: str, t: int, values: Values) -> Values:
            if failing and t >= middle:
                raise OSError("this disk is full, for a test")
            return values

        federation = self.federation("stopped", session=partial(_Tampering, tamper=fail))
        try:
            federation.run()
        except FenchelError:
            failing = False
            federation.workers.clear()
            self.same(federation.run(resume=True), "a run that stopped and was resumed")
        else:
            raise AssertionError(f"the run completed, although all clients failed from round {middle} on")

    def check_damage(self, damage: Callable[[Values], Values], what: str) -> None:
        """Check that no damaged reply is counted. One client damages all its replies from round 1 on."""
        damaged: set[tuple[int, str]] = set()  # damaged rounds, each with the phase
        victim = client_names(cast(int, self.settings.clients))[0]

        def tamper(phase: str, t: int, values: Values) -> Values:
            changed = values if t < 1 else damage(values)
            if changed is not values:
                damaged.add((t, phase))
            return changed

        def session(name: str, *given: Any, **more: Any) -> Session:
            return _Tampering(name, *given, tamper=tamper, **more) if name == victim else Session(name, *given, **more)

        federation = self.federation("damaged", session=session)
        with contextlib.suppress(FenchelError):  # the run may fail with too few intact replies, or with the client lost
            model = federation.run()
            assert np.isfinite(model).all(), f"{what} was used: the final model is not finite"
        rows = read(federation.folder.calls).to_pylist() if damaged else []
        bad = [row for row in rows if row["client"] == victim and (row["round"], row["phase"]) in damaged]
        assert not any(row["outcome"] == "counted" for row in bad), (
            f"{what} was counted in a round; expected it to be rejected"
        )

    def check_states(self) -> None:
        """Check that writing and reading do not change the final state of the server half.

        The states of client halves are checked by client restarts.
        """
        checkpoint = open_resumed(self.folder)
        kind = server_half(self.settings.algorithm.name).State
        state = checkpoint.state(kind)
        again = freeze(thaw(kind, freeze(state)))
        for name, value in freeze(state).items():
            found = again[name]
            if isinstance(value, np.ndarray):
                same = isinstance(found, np.ndarray) and np.array_equal(value, found)
            else:
                same = value == found
            assert same, f"State.{name} of the server half changes when it is written and read"


class _Repeating(Session):
    """Session that handles every instruction twice, and sends the second reply."""

    def handle(self, *instruction: Any, **more: Any) -> Answer:
        super().handle(*instruction, **more)
        return super().handle(*instruction, **more)


class _Tampering(Session):
    """Session that changes the replies of its algorithm before they are sent."""

    def __init__(self, *given: Any, tamper: _Tamper, **more: Any) -> None:
        super().__init__(*given, **more)
        self._tamper = tamper

    def _ready(self) -> tuple[ClientAlgorithm, Journal]:
        algorithm, journal = super()._ready()
        if "answer" not in vars(algorithm):
            honest = algorithm.answer

            def answer(phase: str, t: int, values: Values, *, finite: bool = False) -> Values:
                return self._tamper(phase, t, honest(phase, t, values, finite=finite))

            vars(algorithm)["answer"] = answer
        return algorithm, journal


def _longer(values: Values) -> Values:
    """Return a reply whose first array has one more row, or the same object without an array."""
    for name, value in values.items():
        if isinstance(value, np.ndarray) and value.ndim:
            return {**values, name: np.concatenate([value, value[:1]])}
    return values


def _not_finite(values: Values) -> Values:
    """Return a reply whose first real number or array is all NaN, or the same object without one."""
    for name, value in values.items():
        if isinstance(value, float):
            return {**values, name: math.nan}
        if isinstance(value, np.ndarray) and value.size and np.issubdtype(value.dtype, np.floating):
            return {**values, name: np.full_like(value, np.nan)}
    return values
