"""The rounds of a run, and what is saved after each."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
import zipfile
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeAlias

import numpy as np

from fenchel.algorithms.server_half import Algorithm
from fenchel.common.arrays import Vector
from fenchel.common.settings.run import RunSettings
from fenchel.common.storage.run_folder import RunFolder
from fenchel.common.storage.store import writing
from fenchel.server import checkpoint as checkpoints
from fenchel.server.checkpoint import Checkpoint, RoundSnapshot
from fenchel.server.disclosure.record import DisclosureRecord
from fenchel.server.evaluation import Evaluator
from fenchel.server.fleet.calls import Call
from fenchel.server.fleet.fleet import Fleet
from fenchel.server.privacy_budget import PrivacyBudget
from fenchel.server.telemetry.recorder import Ended, Recorder

log = logging.getLogger("fenchel.server")

_SAVING_SHARE = 0.05
_KEEPING_SHARE = 0.01
_NOTED_AFTER = 0.02  # seconds, at most, that people wait for the row of a round
_ZIP64_BYTES = 1 << 30  # above, the archive needs a wider format, whose bytes depend on Python's version

Row: TypeAlias = Mapping[str, float]
"""The figures of one round: a row of ``metrics.parquet``."""


@dataclass
class Rounds:
    """Goes through the rounds; saves off the critical path, while the next one goes on.

    spending: what the rounds cost the clients of their privacy, under differential privacy.
    """

    settings: RunSettings
    folder: RunFolder
    fleet: Fleet
    algorithm: Algorithm
    evaluator: Evaluator
    recorder: Recorder
    epoch: int  # how often the run has been resumed
    on_row: Callable[[Row], None]  # told the figures of each round
    done: int  # the last round that is done
    admission: Callable[[Fleet, Algorithm], Awaitable[bool]]
    """Takes clients that have joined meanwhile into the fleet, between two rounds; returns whether it has grown."""
    on_begin: Callable[[int], None] = lambda t: None  # told of each round that begins
    privacy_budget: PrivacyBudget | None = None
    disclosures: DisclosureRecord | None = None  # the account of what crossed, written now and then
    ended: str = ""  # why the run was complete before its last round; empty if it was not
    figures: dict[str, float] = field(default_factory=dict)
    """The last evaluation; at the end also the algorithm's own figures."""
    _saving: asyncio.Task[None] | None = None
    _bases: dict[str, int] = field(default_factory=dict)  # of each client, in the last checkpoint
    _save_from: float = 0.0  # before this moment another save would take too large a share of the time
    _kept: RoundSnapshot | None = None  # what is written if the run has to wait
    _keep_from: float = 0.0  # as for saving
    _evaluated: int = -1  # the last round after which the model was evaluated
    _covered: int = -1  # the last round after which the run was saved or kept
    _closed: bool = False
    _to_note: Callable[[], None] | None = None  # puts the last round into the tables
    _not_noted: BaseException | None = None

    async def go(self, *, fresh: bool) -> None:
        """Do the rounds that are left, and save the final model."""
        self.fleet.secure, self.fleet.meanwhile = self._secure, self._note_meanwhile
        if fresh:
            await self.algorithm.start()
        await self._save(wait=True, again=not fresh)
        await self._enrol()
        for warning in [] if self.privacy_budget is None else self.privacy_budget.warnings():
            log.warning("differential_privacy: %s", warning)
        for t in range(self.done + 1, self.settings.rounds + 1):
            self.ended = (
                "" if self.privacy_budget is None else self.privacy_budget.exhausted() or self.fleet.exhausted()
            )
            if self.ended:
                log.warning("the run ends after round %d: %s", self.done, self.ended)
                break
            await self._round(t)
        await self._finish()
        await self._save(wait=True)
        save_model(self.folder.model, self.algorithm.model)

    async def _enrol(self) -> None:
        """Let the account of privacy know everybody's number of samples."""
        if self.privacy_budget is not None:
            members = self.fleet.members.values()
            samples = {each.name: each.shard.samples for each in members if each.shard is not None}
            await asyncio.to_thread(self.privacy_budget.enrol, samples)  # a calibration takes a second for each size

    async def _round(self, t: int) -> None:
        fleet = self.fleet
        fleet.round = t - 1
        if await self.admission(fleet, self.algorithm):
            await self._enrol()
            await self._save(wait=True)  # a server that is resumed must know its clients
        elif self._covered < self.done and fleet.is_short and time.perf_counter() >= self._save_from:
            await self._save(wait=True)
        started = time.perf_counter()
        fleet.round = t
        self.on_begin(t)
        spent = len(fleet.spent)
        try:
            await self.algorithm.round(t)
        finally:
            if len(fleet.spent) > spent:
                log.warning(
                    "round %d: %d of %d clients have spent their privacy budgets; %s",
                    t,
                    len(fleet.spent),
                    len(fleet.members),
                    f"the run goes on with the {left} that are left" if (left := len(fleet.present)) else "it ends",
                )
        fleet.check_lost()
        seconds = time.perf_counter() - started
        evaluation_seconds = 0.0
        figures: dict[str, float] = {}
        if self.evaluator.is_due(t) and self.algorithm.model_is_known:
            figures = await self.evaluator.evaluate(self.algorithm.model)
            self.figures, self._evaluated = figures, t
            evaluation_seconds = time.perf_counter() - started - seconds
        calls, fleet.calls = fleet.calls, []
        fleet.note_attendance(calls)
        costs: dict[str, float] = {}
        if self.privacy_budget is not None:
            self.privacy_budget.count(calls)
            costs = await asyncio.to_thread(self.privacy_budget.figures)
        connected = sum(member.connected for member in fleet.members.values())
        found = {"clients": len(fleet.members)} | figures | self.algorithm.metrics() | costs
        each = self.algorithm.client_metrics() if self.recorder.client_figures else {}
        ended = self.recorder.ended(started, seconds, evaluation_seconds)
        try:
            self._noted()
        finally:
            self._to_note = partial(self._note, t, started, ended, calls, connected, found, each)
        asyncio.get_running_loop().call_later(_NOTED_AFTER, self._note_now)  # if the next round asks nobody so soon
        self.done = t
        if t % self.settings.checkpoint.every == 0:
            await self._save(wait=False)
        if self._covered < t:
            self._keep()

    def _note(
        self,
        t: int,
        started: float,
        ended: Ended,
        calls: Sequence[Call],
        connected: int,
        figures: Row,
        each: Mapping[str, Row],
    ) -> None:
        self._to_note = None
        self.recorder.clients(t, each)
        row = self.recorder.round(t, started, ended, calls, connected, figures)
        if self.disclosures is not None:
            self.disclosures.save_news()
        self.on_row(row)

    def _note_meanwhile(self) -> None:
        """Note the last round as soon as the instructions of this one are on their way, while the clients work."""
        if self._to_note is not None:
            asyncio.get_running_loop().call_soon(self._note_now)

    def _note_now(self) -> None:
        try:
            if self._to_note is not None:
                self._to_note()
        except (KeyboardInterrupt, SystemExit):
            raise  # all others the event loop would only write down
        except BaseException as error:
            # The round that goes on may wait for long before this can end the run.
            log.error("a round could not be noted, and the run ends after the next: %s", error)
            self._not_noted = error

    def _noted(self) -> None:
        """Have the last round in the tables; raises what noting it has raised."""
        if self._to_note is not None:
            self._to_note()
        error, self._not_noted = self._not_noted, None
        if error is not None:
            raise error

    async def _finish(self) -> None:
        """Let the algorithm finish; evaluate the final model, unless it is the one of the last evaluation."""
        fleet, algorithm = self.fleet, self.algorithm
        # A digest and no copy: at the end of a round a large model is what the server has least memory for.
        known = algorithm.model_is_known and self._evaluated == self.done
        evaluated = await asyncio.to_thread(_digest, algorithm.model) if known else None
        fleet.round = self.settings.rounds + 1
        await algorithm.finish()
        await fleet.kept_promises(self.settings.participation.deadline)
        model = algorithm.model
        # Some algorithms hide their model until they finish, some change it then, even into what is no model.
        is_model = algorithm.model_is_known and model.shape == (self.evaluator.objective.dimension,)
        if is_model and (evaluated is None or evaluated != await asyncio.to_thread(_digest, model)):
            self.figures = await self.evaluator.evaluate(model)
        self.figures = self.figures | algorithm.metrics()
        calls, fleet.calls = fleet.calls, []
        self._noted()
        self.recorder.calls(calls)

    async def _save(self, *, wait: bool, again: bool = False) -> None:
        """Write tables and checkpoint; ``again``: the one that the run was resumed from, with its new epoch.

        Unless ``wait``, this goes on in the background, and a round is passed over when saving would take
        more than a twentieth of the time: what a crash then loses is done again in as little time.
        """
        if not wait and (time.perf_counter() < self._save_from or self._is_saving()):
            return
        await self._saved()
        if self._saving is not None:
            self._saving.result()
        started = time.perf_counter()
        checkpoint = checkpoints.take(self.folder.id, self.done, self.epoch, self.algorithm.state, self.fleet.members)
        self._saving = asyncio.create_task(self._write(checkpoint, started, again))
        self._covered, self._kept = self.done, None
        if wait or checkpoint.is_large:
            await asyncio.shield(self._saving)  # a thread writes it, and goes on whoever is interrupted

    def _keep(self) -> None:
        """Hold on to the run as it is now, between two rounds, for :meth:`_secure`.

        Only where runs wait and the state is not too large to be copied, and for at most a hundredth of the time:
        the rounds that are done meanwhile take no longer than a hundred copies.
        """
        if self.settings.participation.on_shortage == "stop" or time.perf_counter() < self._keep_from:
            return
        began = time.thread_time()  # on a busy machine others take their time meanwhile, which is not its cost
        snapshot = RoundSnapshot.of(self.done, self.algorithm.state, self.fleet.members.values(), self._kept)
        self._kept = None if snapshot.is_large else snapshot
        self._covered = self._covered if snapshot.is_large else self.done
        spent = time.thread_time() - began
        self._keep_from = time.perf_counter() + spent * (1 / _KEEPING_SHARE - 1)

    async def _secure(self) -> None:
        """Write what was kept between two rounds, as the run may wait for long now; the log says if that fails."""
        await self._saved()
        snapshot, self._kept = self._kept, None
        if snapshot is not None and not self._closed and not self._saving_failed():
            checkpoint = snapshot.checkpoint(self.folder.id, self.epoch)
            self._saving = asyncio.create_task(self._write(checkpoint, time.perf_counter(), again=False))
            await self._saved()
        if error := self._saving_failed():
            log.error("%s", error)  # and the next save ends the run

    async def _saved(self) -> None:
        """Wait until nothing is being written any more: there is one file that is written first."""
        while self._saving is not None and not self._saving.done():
            await asyncio.wait([self._saving])

    def _saving_failed(self) -> BaseException | None:
        """Return why the last save failed; ``None`` if it did not."""
        if self._saving is None or not self._saving.done() or self._saving.cancelled():
            return None
        return self._saving.exception()

    def _is_saving(self) -> bool:
        return self._saving is not None and not self._saving.done()

    async def _write(self, checkpoint: Checkpoint, started: float, again: bool) -> None:
        self._noted()
        self.recorder.flush()
        if self.disclosures is not None:
            self.disclosures.save()
        sync = again or self.settings.checkpoint.sync  # with a lost epoch numbers would be given out twice
        write = checkpoints.renew if again else checkpoints.save
        await asyncio.to_thread(write, self.folder, checkpoint, sync=sync)
        self.fleet.saved = checkpoint.round
        checkpoint.values.clear()  # the thread pool holds on to its last task; its arrays may be large
        # A damaged checkpoint sends the run back to the one before it, so clients must still reach that.
        for name, base in self._bases.items():
            self.fleet.members[name].reach = base
        self._bases = {name: kept["base"] for name, kept in checkpoint.members.items()}
        now = time.perf_counter()
        self.recorder.saved(now - started)
        self._save_from = now + (now - started) * (1 / _SAVING_SHARE - 1)

    async def close(self, *, completed: bool) -> None:
        """Close the tables: for good, or so that a resumed run can go on with them.

        Waits for what is being written: a thread cannot be stopped, and whoever writes next would meet it.
        """
        self._closed = True
        await self._saved()
        if error := self._saving_failed():
            log.error("%s", error)
        try:
            self._noted()
        except Exception as error:
            log.error("the last round could not be noted as a whole: %s", error)
        if completed:
            self.recorder.finish(self.figures)
        else:
            self.recorder.close()


def _digest(model: Vector) -> bytes:
    """Return a digest of a model's bits."""
    return hashlib.blake2b(np.ascontiguousarray(model).data).digest()


def save_model(path: Path, model: Vector) -> None:
    """Write a model as NPZ, atomically; the same model gives the same bytes (no time of day in the archive)."""
    temporary = path.with_suffix(".new")
    with writing(path), zipfile.ZipFile(temporary, "w") as archive:
        entry = zipfile.ZipInfo("model.npy", date_time=(1980, 1, 1, 0, 0, 0))
        with archive.open(entry, "w", force_zip64=model.nbytes > _ZIP64_BYTES) as file:
            np.lib.format.write_array(file, model, allow_pickle=False)
    with writing(path):
        temporary.replace(path)
