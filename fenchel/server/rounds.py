"""The rounds of a run, and what is saved after each."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import time
import zipfile
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import InitVar, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fenchel.algorithms.server_half import Algorithm
from fenchel.common.arrays import Vector
from fenchel.common.data.preparation import Preparation
from fenchel.common.errors import TooManyFilesError
from fenchel.common.settings.run import RunSettings
from fenchel.common.storage import store
from fenchel.common.storage.run_folder import RunFolder
from fenchel.fleet.calls import Call
from fenchel.fleet.fleet import Fleet
from fenchel.fleet.metering.throttled_log import ThrottledLog
from fenchel.server.disclosure.record import DisclosureRecord
from fenchel.server.evaluation import Evaluator
from fenchel.server.privacy_budget import PrivacyBudget
from fenchel.server.saving import Saving, until_written
from fenchel.server.telemetry.deferred_note import DeferredNote
from fenchel.server.telemetry.objective_growth import ObjectiveGrowth
from fenchel.server.telemetry.observer import Observers
from fenchel.server.telemetry.recorder import Ended, Recorder, Row

log = logging.getLogger("fenchel.server")

_ZIP64_BYTES = 1 << 30  # above, the archive needs a wider format, whose bytes depend on Python's version


@dataclass(kw_only=True)
class Rounds:
    """Goes through the rounds of a run.

    Attributes
    ----------
    preparation
        Saved with the model.
    note
        What the fleet sees to while clients work.
    done
        The last round that is done.
    admission
        Takes clients that have joined meanwhile into the fleet, between two rounds; returns whether it has grown.
    disclosures
        The account of what crossed, written now and then.
    begins
        Called with the number of each round that begins.
    privacy_budget
        Under differential privacy.
    epoch
        How often the run has been resumed.
    ended
        Why the run was complete before its last round; empty if it was not.
    figures
        The last evaluation; at the end also the algorithm's own figures.
    """

    settings: RunSettings
    folder: RunFolder
    fleet: Fleet
    algorithm: Algorithm
    evaluator: Evaluator
    recorder: Recorder
    preparation: Preparation
    note: DeferredNote
    done: int
    admission: Callable[[Fleet, Algorithm], Awaitable[bool]]
    disclosures: DisclosureRecord
    begins: Callable[[int], None] = lambda t: None
    observer: Observers = field(default_factory=Observers)
    throttled_log: ThrottledLog = field(default_factory=ThrottledLog)
    privacy_budget: PrivacyBudget | None = None
    growth: ObjectiveGrowth = field(default_factory=ObjectiveGrowth)
    epoch: InitVar[int] = 0
    ended: str = ""
    figures: dict[str, float] = field(default_factory=dict)
    saving: Saving = field(init=False)
    _evaluated: int = -1  # the last round after which the model was evaluated

    def __post_init__(self, epoch: int) -> None:
        self.saving = Saving(
            settings=self.settings,
            folder=self.folder,
            members=self.fleet.members,
            epoch=epoch,
            prepare=self._write_tables,
            took=self.recorder.saved,
            throttled_log=self.throttled_log,
        )

    async def go(self, *, fresh: bool) -> None:
        """Do the rounds that are left, and save the final model."""
        watching = asyncio.create_task(self.fleet.shortfalls.watch(self.observer.waiting, self.saving.secure))
        try:
            await self._go(fresh)
        finally:
            watching.cancel()

    async def _go(self, fresh: bool) -> None:
        if fresh:
            await self.algorithm.start()
        await self._save(wait=True, again=not fresh)
        await self._enrol()
        for warning in [] if self.privacy_budget is None else self.privacy_budget.warnings():
            log.warning("differential_privacy: %s", warning)
        for t in range(self.done + 1, self.settings.rounds + 1):
            if self.privacy_budget is not None:
                self.ended = self.privacy_budget.exhausted() or self.fleet.exhausted()
            if self.ended or self.observer.stopped:
                level = logging.WARNING if self.ended else logging.INFO  # an observer meant it
                self.ended = self.ended or self.observer.stopped
                log.log(level, "the run ends after round %d: %s", self.done, self.ended)
                break
            await self._round(t)
        if self.saving.saved != self.done:
            await self._save(wait=True)
        await self._finish()  # not saved: whoever resumes the run now does the end again, from what was before it
        await self._write_model(self.folder.model, "the final model")

    async def _write_model(self, path: Path, what: str) -> None:
        """Write the model as it is now, with what new samples need to be prepared for it."""
        private = self.settings.algorithm.hides_model
        arrays = {"model": self.algorithm.model, **self.preparation.arrays()}
        await until_written(what, partial(save_model, path, arrays, private=private), self.throttled_log)

    async def _enrol(self) -> None:
        """Let the account of privacy know everybody's number of samples."""
        if self.privacy_budget is not None:
            members = self.fleet.members.values()
            samples = {each.name: each.shard.samples for each in members if each.shard is not None}
            await asyncio.to_thread(self.privacy_budget.enrol, samples)  # a calibration takes a second for each size

    async def _round(self, t: int) -> None:
        fleet = self.fleet
        if await self.admission(fleet, self.algorithm):
            await self._enrol()
            await self._save(wait=True)  # a server that is resumed must know its clients
        elif self.saving.covered < self.done and fleet.is_short and self.saving.may_save:
            await self._save(wait=True)
        started = time.perf_counter()
        with fleet.in_round(t) as calls:
            await self._train(t)
            seconds = time.perf_counter() - started
            figures = await self._evaluate(t)
            evaluation_seconds = time.perf_counter() - started - seconds if figures else 0.0
        costs: dict[str, float] = {}
        if self.privacy_budget is not None:
            self.privacy_budget.count(calls)
            costs = await asyncio.to_thread(self.privacy_budget.figures)
        connected = sum(member.connected for member in fleet.members.values())
        found = {"clients": len(fleet.members)} | figures | self.algorithm.metrics() | costs
        each = self.algorithm.client_metrics() if self.recorder.client_figures else {}
        ended = self.recorder.ended(started, seconds, evaluation_seconds)
        self.note.defer(partial(self._note, t, started, ended, calls, connected, found, each))
        keep = self.settings.keep_models
        if keep is not None and t % keep.every == 0 and self.algorithm.model_is_known:
            self.folder.models.mkdir(exist_ok=True)
            await self._write_model(self.folder.model_of(t), f"the model after round {t}")
        self.done = t
        if t % self.settings.checkpoint.every == 0:
            await self._save(wait=False)
        if self.saving.covered < t:
            self.saving.keep(t, self.algorithm.state)

    async def _train(self, t: int) -> None:
        """Have the algorithm do a round."""
        fleet = self.fleet
        self.begins(t)
        self.observer.round_begun(t)
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

    async def _evaluate(self, t: int) -> dict[str, float]:
        """Return the figures of the model after a round; none where it is not due, or hides its model."""
        if not (self.evaluator.is_due(t) and self.algorithm.model_is_known):
            return {}
        self.figures, self._evaluated = await self.evaluator.evaluate(self.algorithm.model), t
        self.growth.evaluated(t, self.figures)
        return self.figures

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
        self.recorder.clients(t, each)
        row = self.recorder.round(t, started, ended, calls, connected, figures)
        with contextlib.suppress(TooManyFilesError):  # it is written with the checkpoint, which waits
            self.disclosures.save_news()
        self.observer.round_ended(row)

    async def _finish(self) -> None:
        """Let the algorithm finish; evaluate the final model, unless it is the one of the last evaluation."""
        fleet, algorithm = self.fleet, self.algorithm
        # A digest and no copy: at the end of a round a large model is what the server has least memory for.
        known = algorithm.model_is_known and self._evaluated == self.done
        evaluated = await asyncio.to_thread(_digest, algorithm.model) if known else None
        with fleet.in_round(self.settings.rounds + 1, draws_follow=False) as calls:
            await algorithm.finish()
            await fleet.kept_promises(self.settings.participation.deadline)
            model = algorithm.model
            # Some algorithms hide their model until they finish, some change it then, even into what is no model.
            is_model = algorithm.model_is_known and model.shape == (self.evaluator.objective.dimension,)
            if is_model and (evaluated is None or evaluated != await asyncio.to_thread(_digest, model)):
                self.figures = await self.evaluator.evaluate(model)
        self.figures = self.figures | algorithm.metrics()
        self.note.settle()
        self.recorder.calls(calls)

    async def _save(self, *, wait: bool, again: bool = False) -> None:
        await self.saving.save(self.done, self.algorithm.state, wait=wait, again=again)

    def _write_tables(self) -> None:
        self.note.settle()
        self.recorder.flush()
        self.disclosures.save()

    async def close(self, *, completed: bool) -> None:
        """Close the tables: for good, or so that a resumed run can go on with them."""
        await self.saving.close()
        try:
            self.note.settle()
        except Exception as error:
            log.error("the last round could not be noted as a whole: %s", error)
        if completed:
            await until_written("the tables", partial(self.recorder.finish, self.figures), self.throttled_log)
        else:
            self.recorder.close()


def _digest(model: Vector) -> bytes:
    """Return a digest of a model's bits."""
    return hashlib.blake2b(np.ascontiguousarray(model).data).digest()


def save_model(path: Path, arrays: Mapping[str, NDArray[Any]], *, private: bool) -> None:
    """Write a model as NPZ, atomically; the same model gives the same bytes (no time of day in the archive).

    Parameters
    ----------
    arrays
        The model, and what new samples need to be prepared for it, by their names in the archive.
    private
        Whether only the owner of the file can read it.
    """
    with store.writing(path), store.replacing(path, private=private) as file, zipfile.ZipFile(file, "w") as archive:
        for name, array in arrays.items():
            entry = zipfile.ZipInfo(f"{name}.npy", date_time=(1980, 1, 1, 0, 0, 0))
            with archive.open(entry, "w", force_zip64=array.nbytes > _ZIP64_BYTES) as content:
                np.lib.format.write_array(content, array, allow_pickle=False)
