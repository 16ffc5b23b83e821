"""The rounds of a run: training, evaluation, records and checkpoints."""

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
from fenchel.common.storage.round_columns import Row
from fenchel.common.storage.run_folder import RunFolder
from fenchel.fleet.calls import Call
from fenchel.fleet.fleet import Fleet
from fenchel.fleet.metering.throttled_log import ThrottledLog
from fenchel.server.checkpointer import Checkpointer, until_written
from fenchel.server.disclosure.record import DisclosureRecord
from fenchel.server.evaluation import Evaluator
from fenchel.server.privacy_budget import PrivacyBudget
from fenchel.server.telemetry.deferred_writer import DeferredWriter
from fenchel.server.telemetry.objective_growth import ObjectiveGrowth
from fenchel.server.telemetry.observer import Observers
from fenchel.server.telemetry.recorder import Ended, Recorder

log = logging.getLogger("fenchel.server")

_ZIP64_BYTES = 1 << 30  # size in bytes above which the archive needs ZIP64, whose encoding depends on Python's version


@dataclass(kw_only=True)
class Rounds:
    """Rounds of a run, with the objects that conduct, evaluate, record and save them.

    Attributes
    ----------
    preparation
        Preparation of samples, saved with the model.
    writer
        Deferred record of the last round, written while clients work on the next.
    done
        Number of the last completed round.
    admission
        Function that adds late joiners to the fleet between two rounds, and returns True if the fleet has grown.
    disclosures
        Disclosure record of the run.
    begins
        Function that is called with the number of each round at its beginning.
    privacy_budget
        Privacy budget under differential privacy, otherwise ``None``.
    epoch
        Epoch of the sequence numbers: 0 for a new run, and higher after each resume.
    ended
        Reason if the run ended as completed before its last round, otherwise empty.
    figures
        Figures of the last evaluation; at the end also the algorithm's own.
    checkpointer
        Writer of checkpoints.
    """

    settings: RunSettings
    folder: RunFolder
    fleet: Fleet
    algorithm: Algorithm
    evaluator: Evaluator
    recorder: Recorder
    preparation: Preparation
    writer: DeferredWriter
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
    checkpointer: Checkpointer = field(init=False)
    _evaluated: int = -1  # number of the last evaluated round

    def __post_init__(self, epoch: int) -> None:
        self.checkpointer = Checkpointer(
            settings=self.settings,
            folder=self.folder,
            members=self.fleet.members,
            epoch=epoch,
            prepare=self._write_tables,
            took=self.recorder.saved,
            throttled_log=self.throttled_log,
        )

    async def go(self, *, fresh: bool) -> None:
        """Conduct the remaining rounds, and save the final model.

        Parameters
        ----------
        fresh
            True for a new run, whose algorithm is started first. False for a resumed one.
        """
        going = asyncio.create_task(self._go(fresh))
        watching = asyncio.create_task(self.fleet.shortfalls.watch(self.observer.waiting, self.checkpointer.flush))
        try:
            # An observer ends the run by an error also while the rounds only wait.
            await asyncio.wait((going, watching), return_when=asyncio.FIRST_COMPLETED)
            (going if going.done() else watching).result()
        finally:
            for task in (going, watching):
                task.cancel()
            await asyncio.gather(going, watching, return_exceptions=True)

    async def _go(self, fresh: bool) -> None:
        if fresh:
            await self.algorithm.start()
        await self._enrol()  # before the checkpoint, which has the noise of uploads
        await self._save(wait=True, again=not fresh)
        for warning in [] if self.privacy_budget is None else self.privacy_budget.warnings():
            log.warning("differential_privacy: %s", warning)
        for t in range(self.done + 1, self.settings.rounds + 1):
            if self.privacy_budget is not None:
                self.ended = self.privacy_budget.exhausted() or self.fleet.exhausted()
            if self.ended or self.observer.stopped:
                level = logging.WARNING if self.ended else logging.INFO  # only an observer's stop is deliberate
                self.ended = self.ended or self.observer.stopped
                log.log(level, "the run ends after round %d: %s", self.done, self.ended)
                break
            await self._round(t)
        if self.checkpointer.saved != self.done:
            await self._save(wait=True)
        await self._finish()  # write no checkpoint after this step, so that a resumed run repeats it
        await self._write_model(self.folder.model, "the final model")

    async def _write_model(self, path: Path, what: str) -> None:
        """Write the current model, with the preparation that new samples need."""
        private = self.settings.algorithm.hides_model
        arrays = {"model": self.algorithm.model, **self.preparation.arrays()}
        await until_written(what, partial(save_model, path, arrays, private=private), self.throttled_log)

    async def _enrol(self) -> None:
        """Add new clients, with their numbers of samples, to the privacy budget."""
        if self.privacy_budget is not None:
            members = self.fleet.members.values()
            samples = {each.name: each.shard.samples for each in members if each.shard is not None}
            await asyncio.to_thread(self.privacy_budget.enrol, samples)  # in a thread: each calibration takes a second

    async def _round(self, t: int) -> None:
        fleet = self.fleet
        if await self.admission(fleet, self.algorithm):
            await self._enrol()
            await self._save(wait=True)  # a resumed server needs the admitted clients in the checkpoint
        elif self.checkpointer.last_saved_or_kept < self.done and fleet.is_short and self.checkpointer.may_save:
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
        self.writer.defer(partial(self._note, t, started, ended, calls, connected, found, each))
        keep = self.settings.keep_models
        if keep is not None and t % keep.every == 0 and self.algorithm.model_is_known:
            self.folder.models.mkdir(exist_ok=True)
            await self._write_model(self.folder.model_of(t), f"the model after round {t}")
        self.done = t
        self.checkpointer.check()
        if t % self.settings.checkpoint.every == 0:
            await self._save(wait=False)
        if self.checkpointer.last_saved_or_kept < t:
            self.checkpointer.snapshot(t, self.algorithm.state)

    async def _train(self, t: int) -> None:
        """Run one round of the algorithm, and log the number of clients that have used up their privacy budgets."""
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
                    f"the run continues with the remaining {left}" if (left := len(fleet.present)) else "it ends",
                )
        fleet.check_lost()

    async def _evaluate(self, t: int) -> dict[str, float]:
        """Evaluate the model after a round, and return its figures; empty if no evaluation is due or possible."""
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
        # the next checkpoint retries the write until a file descriptor is free
        with contextlib.suppress(TooManyFilesError):
            self.disclosures.save_news()
        self.observer.round_ended(row)

    async def _finish(self) -> None:
        """Finish the algorithm, and evaluate the final model unless the last evaluation was of the same model."""
        fleet, algorithm = self.fleet, self.algorithm
        # Compare digests of the models: the server may lack the memory for a second large model.
        known = algorithm.model_is_known and self._evaluated == self.done
        evaluated = await asyncio.to_thread(_digest, algorithm.model) if known else None
        with fleet.in_round(self.settings.rounds + 1, draws_follow=False) as calls:
            await algorithm.finish()
            await fleet.kept_promises(self.settings.participation.deadline)
            model = algorithm.model
            # finish() may reveal the model, change it, or replace it by an array of another shape
            is_model = algorithm.model_is_known and model.shape == (self.evaluator.objective.dimension,)
            if is_model and (evaluated is None or evaluated != await asyncio.to_thread(_digest, model)):
                self.figures = await self.evaluator.evaluate(model)
        self.figures = self.figures | algorithm.metrics()
        self.writer.flush()
        self.recorder.calls(calls)

    async def _save(self, *, wait: bool, again: bool = False) -> None:
        await self.checkpointer.save(self.done, self.algorithm.state, wait=wait, again=again)

    def _write_tables(self) -> None:
        self.writer.flush()
        self.recorder.flush()
        self.disclosures.save()

    async def close(self, *, completed: bool) -> None:
        """Wait for the save in progress, record the last round, and close the tables.

        Parameters
        ----------
        completed
            True to convert the tables to Parquet files, False to leave them for a resumed run.
        """
        await self.checkpointer.close()
        try:
            self.writer.flush()
        except Exception as error:
            log.error("the last round could not be recorded completely: %s", error)
        if completed:
            await until_written("the tables", partial(self.recorder.finish, self.figures), self.throttled_log)
        else:
            self.recorder.close()


def _digest(model: Vector) -> bytes:
    """Return a digest of a model's bytes."""
    return hashlib.blake2b(np.ascontiguousarray(model).data).digest()


def save_model(path: Path, arrays: Mapping[str, NDArray[Any]], *, private: bool) -> None:
    """Write a model as NPZ, atomically. Equal models give equal bytes, as all timestamps in the archive are fixed.

    Parameters
    ----------
    path
        Path of the file.
    arrays
        Model and preparation of samples, by name in the archive.
    private
        True if only the owner may read the file.
    """
    with store.writing(path), store.replacing(path, private=private) as file, zipfile.ZipFile(file, "w") as archive:
        for name, array in arrays.items():
            entry = zipfile.ZipInfo(f"{name}.npy", date_time=(1980, 1, 1, 0, 0, 0))
            with archive.open(entry, "w", force_zip64=array.nbytes > _ZIP64_BYTES) as content:
                np.lib.format.write_array(content, array, allow_pickle=False)
