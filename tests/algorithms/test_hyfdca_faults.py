"""Whatever breaks while HyFDCA runs: nothing is lost, nothing counts twice, and who was away catches up."""

from __future__ import annotations

import asyncio
import random
import selectors
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar
from unittest.mock import patch

import numpy as np
import pyarrow.parquet as pq
import pytest

from fenchel.common.arrays import Vector
from fenchel.common.settings.run import RunSettings
from fenchel.common.storage import store
from fenchel.common.storage.run_folder import RunFolder
from fenchel.common.wire.frames import parse
from fenchel.deploy.launch.in_process import MemoryStream
from fenchel.keys.shared import Secrets
from fenchel.proto import fenchel_pb2 as pb
from fenchel.server.coordinator import Coordinator
from fenchel.testing import Faults, Federation
from tests.algorithms.hybrid import Run, hybrid_settings, shards_of
from tests.observing import Calling
from tests.slow import rest_slow

T = TypeVar("T")

VICTIM = "client-002"


@dataclass(frozen=True)
class Moment:
    """When a client dies: in the middle of a phase, the first time from a round on."""

    phase: str
    round: int = 2
    answered: bool = False  # whether it had done its work and written it down, but not sent its reply


@dataclass
class Doomed:
    """A client's side of a stream that breaks at a certain moment."""

    inner: MemoryStream
    moment: Moment
    met: list[Moment]
    tick: Callable[[], None]
    broken: bool = False
    _phases: dict[int, bool] = field(default_factory=dict)

    async def read(self) -> bytes | None:
        self.tick()
        frame = None if self.broken else await self.inner.read()
        head = None if frame is None else parse(frame).head
        if isinstance(head, pb.Instruction):
            moment = self.moment
            due = moment not in self.met and head.phase == moment.phase and head.round >= moment.round
            self._phases[head.sequence] = due
            if due and not moment.answered:
                self._break_off()
                return None
        return frame

    async def write(self, frame: bytes) -> None:
        head = parse(frame).head
        if isinstance(head, pb.Reply) and self._phases.get(head.sequence):
            self._break_off()
            self.inner.incoming.put_nowait(None)
        if not self.broken:
            await self.inner.write(frame)

    def _break_off(self) -> None:
        self.broken = True
        self.met.append(self.moment)


class Impatient(selectors.DefaultSelector):
    """Does not wait for timers: notes how long it should have waited."""

    skipped = 0.0

    def select(self, timeout: float | None = None) -> Any:
        if timeout is None or timeout <= 0:
            return super().select(timeout)
        ready = super().select(min(timeout, 0.001))  # a thread may be about to wake us up
        self.skipped += 0 if ready else timeout
        return ready


class TimelessLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock jumps to the next deadline when nothing else is left to do.

    So a client that is away misses any deadline at once, and one that is there never does, however slow the
    machine is.
    """

    def __init__(self) -> None:
        self._impatient = Impatient()
        super().__init__(self._impatient)

    def time(self) -> float:
        return super().time() + self._impatient.skipped


def run_timeless(main: Coroutine[Any, Any, T]) -> T:
    with asyncio.Runner(loop_factory=TimelessLoop) as runner:
        return runner.run(main)


@dataclass
class Deadly(Federation):
    """A federation in which one client dies, and comes back with nothing but its journal."""

    moment: Moment = field(default_factory=lambda: Moment("change_dual"))
    rounds_away: int = 0  # it comes back once so many more rounds are over
    server_dies_owing: bool = False  # whether the server is killed, once its checkpoint says that it owes a step
    met: list[Moment] = field(default_factory=list)
    rounds_done: int = 0

    def __post_init__(self) -> None:
        self.observer = Calling(round_ended=self._count)

    def run(self, *, resume: bool = False) -> Vector:
        with patch.object(asyncio, "run", run_timeless):
            return super().run(resume=resume)

    def _count(self, row: Mapping[str, float]) -> None:
        self.rounds_done = int(row["round"])

    def _tick(self, death: asyncio.Event) -> None:
        if self.server_dies_owing and not self.killed and self.folder.checkpoint.exists():
            kept = store.read(self.folder.checkpoint)
            if any(name.startswith("state/missed/") for name in kept):
                death.set()

    async def _come_and_go(
        self, coordinator: Coordinator, name: str, death: asyncio.Event, unnoticed: list[asyncio.Task[None]]
    ) -> None:
        while True:
            worker = await self._joined(coordinator, name)
            pair = MemoryStream()
            met = self.met if name == VICTIM else [self.moment]
            serving = asyncio.create_task(coordinator.admission.work(name, name.encode(), pair.other_side()))
            farewell = await worker.work(Doomed(pair, self.moment, met, lambda: self._tick(death)))
            if farewell is not None:
                unnoticed.append(serving)
                return
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)
            del self.workers[name]
            died_in = self.rounds_done
            while self.rounds_done < min(died_in + self.rounds_away, self.settings.rounds):
                await asyncio.sleep(5)


ALGORITHMS: dict[str, dict[str, Any]] = {
    "exact": {"preset": "exact", "picks": 8},
    "line search": {"preset": "linesearch"},
    "plaintext exact": {"preset": "exact", "picks": 8, "privacy": "none"},
    "protected line search": {"preset": "linesearch", "protect_primal": True},
    "sparse": {"preset": "exact", "picks": 8, "messages": "sparse"},
    "half of the clients": {"preset": "safe", "participation": {"sampler": {"kind": "fixed", "size": 2}}},
}


def settings_of(name: str, rounds: int = 5, **participation: Any) -> RunSettings:
    algorithm = dict(ALGORITHMS[name])
    participation = {**algorithm.pop("participation", {}), **participation}
    return hybrid_settings(rounds, samples=40, participation=participation, **algorithm)


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory, secrets: Secrets) -> dict[str, Vector]:
    """Final models of undisturbed runs."""
    models = {}
    for name in ALGORITHMS:
        folder = RunFolder.create(tmp_path_factory.mktemp("calm"), "undisturbed")
        models[name] = Federation(settings_of(name), folder, secrets=secrets).run()
        assert np.abs(models[name]).max() > 0.1
    return models


@pytest.mark.parametrize("name", rest_slow(ALGORITHMS, 2))
def test_faults_at_random_moments_do_not_change_a_bit(
    name: str, calm: dict[str, Vector], secrets: Secrets, tmp_path: Path
) -> None:
    # Sums of fixed-point numbers are exact, and fresh randomness in a ciphertext is gone after decryption: so
    # encrypted runs are repeated to the last bit, too.
    faults = Faults(random.Random(name), breaks=3, kills=2, frames=25)
    federation = Federation(settings_of(name), RunFolder.create(tmp_path, "disturbed"), faults, secrets=secrets)
    model = federation.run()
    assert federation.killed == 2
    assert federation.broken >= 3
    assert model.tobytes() == calm[name].tobytes()


PHASES: dict[str, tuple[str, ...]] = {
    "exact": ("introduce", "align", "take_norms", "inner_product", "change_dual", "aggregate", "figures"),
    "line search": ("propose", "step"),
    "protected line search": ("curvature", "advance", "release"),
    "half of the clients": ("resume",),
}


@pytest.mark.parametrize("answered", [False, True], ids=["before its work", "after its work"])
@pytest.mark.parametrize(("name", "phase"), rest_slow([(name, phase) for name in PHASES for phase in PHASES[name]], 4))
def test_a_client_that_dies_in_any_phase_comes_back_and_changes_nothing(
    name: str, phase: str, answered: bool, calm: dict[str, Vector], secrets: Secrets, tmp_path: Path
) -> None:
    setup = phase in ("introduce", "align", "take_norms")
    moment = Moment(phase, 0 if setup else 2, answered)
    folder = RunFolder.create(tmp_path, "deadly")
    federation = Deadly(settings_of(name), folder, secrets=secrets, moment=moment)
    model = federation.run()
    assert federation.met == [moment]
    assert model.tobytes() == calm[name].tobytes()


def agree(run: Run) -> Vector:
    """Return what the model must be by the clients' dual variables, on which holders of a sample agree."""
    shards, duals = shards_of(run.settings), run.duals
    known: dict[int, float] = {}
    model = np.zeros_like(run.model)
    for client, shard in shards.items():
        for sample, alpha in zip(shard.samples_held.tolist(), duals[client].tolist(), strict=True):
            assert abs(known.setdefault(sample, alpha) - alpha) < 1e-12, "two holders differ"
        assert isinstance(shard.features, np.ndarray)
        model[shard.features_held] += shard.features.T @ duals[client]
    scaled: Vector = model / (run.settings.objective.l2 * len(known))
    return scaled


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("name", "phase"),
    rest_slow(
        [
            ("exact", "inner_product"),
            ("exact", "change_dual"),
            ("exact", "aggregate"),
            ("line search", "change_dual"),
            ("line search", "propose"),
            ("protected line search", "curvature"),
            ("protected line search", "advance"),
            ("sparse", "aggregate"),
        ]
    ),
)
def test_a_client_that_misses_rounds_returns_and_the_run_still_converges(
    name: str, phase: str, secrets: Secrets, tmp_path: Path
) -> None:
    settings = settings_of(name, rounds=15)
    folder = RunFolder.create(tmp_path, "away")
    federation = Deadly(settings, folder, secrets=secrets, moment=Moment(phase, 3), rounds_away=2)
    federation.run()
    run = Run(settings, folder)
    calls = pq.read_table(folder.calls).to_pylist()
    missed = {(call["client"], call["round"]) for call in calls if call["outcome"] != "counted"}
    assert (VICTIM, 3) in missed, "so it was away"
    # After the last step everybody is up to date: the server's model is that of the dual variables.
    np.testing.assert_allclose(run.model, agree(run), rtol=0, atol=1e-9)
    if settings.algorithm.messages == "dense":  # type: ignore[attr-defined]
        gaps = [gap for gap in pq.read_table(folder.metrics)["gap"].to_pylist() if gap == gap and gap]
        assert 0 < gaps[-1] < 0.2 * gaps[0]


@pytest.mark.timeout(120)
def test_a_server_that_comes_back_still_owes_the_steps_that_a_client_missed(
    secrets: Secrets, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fenchel.server.checkpointer._SAVING_SHARE", 1.0)  # a checkpoint after each round
    settings = settings_of("line search", rounds=20)
    folder = RunFolder.create(tmp_path, "both")
    moment = Moment("propose", 3)
    federation = Deadly(settings, folder, secrets=secrets, moment=moment, rounds_away=10, server_dies_owing=True)
    federation.run()
    assert federation.killed == 1
    run = Run(settings, folder)
    np.testing.assert_allclose(run.model, agree(run), rtol=0, atol=1e-9)
