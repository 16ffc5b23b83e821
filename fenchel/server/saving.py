"""Checkpoints of a run, written off the critical path, and at the latest when the run has to wait."""

from __future__ import annotations

import asyncio
import inspect
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from fenchel.common.errors import TooManyFilesError
from fenchel.common.settings.run import RunSettings
from fenchel.common.storage.run_folder import RunFolder
from fenchel.fleet.client_record import ClientRecord
from fenchel.fleet.metering.throttled_log import ThrottledLog
from fenchel.server import checkpoint as checkpoints
from fenchel.server.checkpoint import Checkpoint, RoundSnapshot

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

log = logging.getLogger("fenchel.server")

_SAVING_SHARE = 0.05
_KEEPING_SHARE = 0.01
_TRIES = 120  # times that a file is tried to be opened while too many are open
_PAUSE = 1.0  # seconds between two of them


async def until_written(what: str, write: Callable[[], Awaitable[None] | None], throttled_log: ThrottledLog) -> None:
    """Write something of the run; while too many files are open, wait and try again.

    Connections of strangers end by themselves, and another program may close its files.

    Parameters
    ----------
    what
        What is written, for the log.
    write
        Leaves nothing half done where it fails.
    """
    for _ in range(_TRIES - 1):
        try:
            await _done(write)
        except TooManyFilesError as error:
            throttled_log.add(
                logging.WARNING,
                "",
                f"{what} cannot be written yet, as too many files are open ({error.source}); it is tried again every "
                f"{_PAUSE:g} s, {_TRIES} times in all. Allow more files (ulimit -n), or see who connects here",
            )
            await asyncio.sleep(_PAUSE)
        else:
            return
    await _done(write)


async def _done(write: Callable[[], Awaitable[None] | None]) -> None:
    writing = write()
    if inspect.isawaitable(writing):
        await writing


@dataclass(kw_only=True)
class Saving:
    """Writes checkpoints between two rounds, while the next one goes on.

    A round is passed over when saving would take more than a twentieth of the time: what a crash then loses is
    done again in as little time. What is passed over is kept in memory, as far as that takes no more than a
    hundredth of the time, and written as soon as the run has to wait for replies.

    Attributes
    ----------
    members
        Of the run, by id.
    epoch
        How often the run has been resumed.
    prepare
        Writes whatever a checkpoint must not be ahead of.
    took
        Called with the seconds that each save has taken.
    throttled_log
        Where it says that a save has to wait.
    saved
        The round after which the last checkpoint was written; ``None``: there is none yet.
    covered
        The last round after which the run was saved or kept.
    """

    settings: RunSettings
    folder: RunFolder
    members: Mapping[str, ClientRecord]
    epoch: int
    prepare: Callable[[], None]
    took: Callable[[float], None]
    throttled_log: ThrottledLog = field(default_factory=ThrottledLog)
    saved: int | None = None
    covered: int = -1
    _task: asyncio.Task[None] | None = None
    _bases: dict[str, int] = field(default_factory=dict)  # of each client, in the last checkpoint
    _save_from: float = 0.0  # before this moment another save would take too large a share of the time
    _kept: RoundSnapshot | None = None  # what is written if the run has to wait
    _keep_from: float = 0.0  # as for saving
    _closed: bool = False

    @property
    def may_save(self) -> bool:
        """Whether a save would take no more than its share of the time."""
        return time.perf_counter() >= self._save_from

    async def save(self, done: int, state: DataclassInstance, *, wait: bool, again: bool = False) -> None:
        """Write the tables and a checkpoint after round ``done``.

        Parameters
        ----------
        wait
            Until it is written; else it goes on in the background, unless that would take too much of the time.
        again
            It is the checkpoint that the run was resumed from, with its new epoch.
        """
        if not wait and (not self.may_save or self._is_saving()):
            return
        await self._idle()
        if self._task is not None:
            self._task.result()
        started = time.perf_counter()
        checkpoint = checkpoints.take(self.folder.id, done, self.epoch, state, self.members)
        self._task = asyncio.create_task(self._write(checkpoint, started, again))
        self.covered, self._kept = done, None
        if wait or checkpoint.is_large:
            await asyncio.shield(self._task)  # a thread writes it, and goes on whoever is interrupted

    def keep(self, done: int, state: DataclassInstance) -> None:
        """Hold on to the run as it is after round ``done``, for :meth:`secure`.

        Only where runs wait and the state is not too large to be copied, and for at most a hundredth of the time:
        the rounds that are done meanwhile take no longer than a hundred copies.
        """
        if self.settings.participation.on_shortage == "stop" or time.perf_counter() < self._keep_from:
            return
        began = time.thread_time()  # on a busy machine others take their time meanwhile, which is not its cost
        snapshot = RoundSnapshot.of(done, state, self.members.values(), self._kept)
        self._kept = None if snapshot.is_large else snapshot
        self.covered = self.covered if snapshot.is_large else done
        spent = time.thread_time() - began
        self._keep_from = time.perf_counter() + spent * (1 / _KEEPING_SHARE - 1)

    async def secure(self) -> int | None:
        """Write what was kept, as the run may wait for long now; return the last round that is saved.

        If that fails, the log says so, and the next :meth:`save` raises it.
        """
        await self._idle()
        snapshot, self._kept = self._kept, None
        if snapshot is not None and not self._closed and not self._failure():
            checkpoint = snapshot.checkpoint(self.folder.id, self.epoch)
            self._task = asyncio.create_task(self._write(checkpoint, time.perf_counter(), again=False))
            await self._idle()
        self._log_failure()
        return self.saved

    async def close(self) -> None:
        """Wait for what is being written, and begin nothing more.

        A thread cannot be stopped, and whoever writes next would meet it.
        """
        self._closed = True
        await self._idle()
        self._log_failure()

    async def _idle(self) -> None:
        """Wait until nothing is being written any more: there is one file that is written first."""
        while self._task is not None and not self._task.done():
            await asyncio.wait([self._task])

    def _log_failure(self) -> None:
        if error := self._failure():
            log.error("%s", error)

    def _failure(self) -> BaseException | None:
        """Return why the last save failed; ``None`` if it did not."""
        if self._task is None or not self._task.done() or self._task.cancelled():
            return None
        return self._task.exception()

    def _is_saving(self) -> bool:
        return self._task is not None and not self._task.done()

    async def _write(self, checkpoint: Checkpoint, started: float, again: bool) -> None:
        sync = again or self.settings.checkpoint.sync  # with a lost epoch numbers would be given out twice
        write = partial(checkpoints.renew if again else checkpoints.save, self.folder, checkpoint, sync=sync)
        for step in (self.prepare, lambda: asyncio.to_thread(write)):
            await until_written(f"the checkpoint after round {checkpoint.round}", step, self.throttled_log)
        self.saved = checkpoint.round
        checkpoint.values.clear()  # the thread pool holds on to its last task; its arrays may be large
        # A damaged checkpoint sends the run back to the one before it, so clients must still reach that.
        for name, base in self._bases.items():
            self.members[name].raise_low_water_mark(base)
        self._bases = {name: kept["base"] for name, kept in checkpoint.members.items()}
        now = time.perf_counter()
        self.took(now - started)
        self._save_from = now + (now - started) * (1 / _SAVING_SHARE - 1)
