"""The writer of a run's checkpoints, which works in the background."""

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
_TRIES = 120  # number of attempts to open a file while too many files are open
_PAUSE = 1.0  # delay between two attempts in seconds


async def until_written(what: str, write: Callable[[], Awaitable[None] | None], throttled_log: ThrottledLog) -> None:
    """Write a file of the run, and retry while too many files are open.

    The cause can pass: idle connections are closed after a while, and another program may close its files.

    Parameters
    ----------
    what
        Name of the file, for the log.
    write
        Function that writes the file, and leaves no partial file if it fails.
    throttled_log
        Log for the warnings.

    Raises
    ------
    TooManyFilesError
        If too many files are still open at the last attempt, after two minutes.
    """
    for _ in range(_TRIES - 1):
        try:
            await _done(write)
        except TooManyFilesError as error:
            throttled_log.add(
                logging.WARNING,
                "",
                f"{what} cannot be written yet, because too many files are open ({error.source}). The server "
                f"retries every {_PAUSE:g} s, {_TRIES} times in all. Raise the limit (ulimit -n), or check who "
                "connects to this server",
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
class Checkpointer:
    """Writer of checkpoints, each taken between two rounds and written during the next one.

    Saves take at most about a twentieth of the run time, so the checkpoints of some short rounds are skipped. A crash
    then loses little, because the rounds to be repeated are short. A skipped round is kept as a snapshot in memory, if
    snapshots take at most a hundredth of the time. The snapshot is written as soon as the run has to wait for replies.

    Attributes
    ----------
    members
        Client records of the run, by id.
    epoch
        Epoch of the sequence numbers: 0 for a new run, and higher after each resume.
    prepare
        Function that writes the tables before each checkpoint, so that they never lag behind it.
    took
        Function that is called with the duration of each save in seconds.
    throttled_log
        Log for saves that have to wait.
    saved
        Number of the round of the last checkpoint; ``None``: there is none yet.
    last_saved_or_kept
        Number of the last round that was saved or kept in memory.
    """

    settings: RunSettings
    folder: RunFolder
    members: Mapping[str, ClientRecord]
    epoch: int
    prepare: Callable[[], None]
    took: Callable[[float], None]
    throttled_log: ThrottledLog = field(default_factory=ThrottledLog)
    saved: int | None = None
    last_saved_or_kept: int = -1
    _task: asyncio.Task[None] | None = None
    _bases: dict[str, int] = field(default_factory=dict)  # base of each client in the last checkpoint
    _save_from: float = 0.0  # earliest time of the next save that keeps saves within their share of the run time
    _kept: RoundSnapshot | None = None  # snapshot that is written if the run has to wait
    # earliest time of the next snapshot that keeps snapshots within their share of the run time
    _keep_from: float = 0.0
    _closed: bool = False

    @property
    def may_save(self) -> bool:
        """True if a save now keeps saves within their share of the run time."""
        return time.perf_counter() >= self._save_from

    async def save(self, done: int, state: DataclassInstance, *, wait: bool, again: bool = False) -> None:
        """Write the tables and a checkpoint after round ``done``.

        Parameters
        ----------
        done
            Number of the last completed round.
        state
            State of the algorithm.
        wait
            True to wait until the checkpoint is written. Otherwise it is skipped if the last save is still running or
            saves would exceed their share of the run time, and written in the background unless it is large.
        again
            True to write the checkpoint that the run was resumed from once more, with its new epoch.

        Raises
        ------
        FenchelError
            If this save or an earlier one has failed.
        """
        if not wait and (not self.may_save or self._is_saving()):
            return
        await self._idle()
        self.check()
        started = time.perf_counter()
        checkpoint = checkpoints.take(self.folder.id, done, self.epoch, state, self.members)
        self._task = asyncio.create_task(self._write(checkpoint, started, again))
        self.last_saved_or_kept, self._kept = done, None
        if wait or checkpoint.is_large:
            await asyncio.shield(self._task)  # cancelling this task would not stop the writing thread

    def check(self) -> None:
        """Raise the error of the last save, if it has failed.

        Every round checks it, because the next save may be due only after many rounds, which would all be lost.
        """
        if error := self._failure():
            raise error

    def snapshot(self, done: int, state: DataclassInstance) -> None:
        """Keep a snapshot of the run after round ``done`` in memory, for :meth:`flush`.

        A snapshot is kept only if the settings make the run wait when clients are missing, the state is small enough to
        be copied, and snapshots take at most a hundredth of the time.
        """
        if self.settings.participation.on_shortage == "stop" or time.perf_counter() < self._keep_from:
            return
        began = time.thread_time()  # thread time excludes the load by other processes of a busy machine
        snapshot = RoundSnapshot.of(done, state, self.members.values(), self._kept)
        self._kept = None if snapshot.is_large else snapshot
        self.last_saved_or_kept = self.last_saved_or_kept if snapshot.is_large else done
        spent = time.thread_time() - began
        self._keep_from = time.perf_counter() + spent * (1 / _KEEPING_SHARE - 1)

    async def flush(self) -> int | None:
        """Write the snapshot that is kept in memory, if any, and return the number of the last round saved.

        The caller expects a long wait for clients. An error is logged here, and raised by the next :meth:`check`.
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
        """Wait for the save in progress, and prevent further ones.

        A thread cannot be stopped, and a later writer of the same file would collide with it.
        """
        self._closed = True
        await self._idle()
        self._log_failure()

    async def _idle(self) -> None:
        """Wait until no save is in progress, because all saves use the same temporary file."""
        while self._task is not None and not self._task.done():
            await asyncio.wait([self._task])

    def _log_failure(self) -> None:
        if error := self._failure():
            log.error("%s", error)

    def _failure(self) -> BaseException | None:
        """Return the error of the last save; ``None`` if it did not fail."""
        if self._task is None or not self._task.done() or self._task.cancelled():
            return None
        return self._task.exception()

    def _is_saving(self) -> bool:
        return self._task is not None and not self._task.done()

    async def _write(self, checkpoint: Checkpoint, started: float, again: bool) -> None:
        sync = again or self.settings.checkpoint.sync  # losing a new epoch would let sequence numbers be used twice
        write = partial(checkpoints.renew if again else checkpoints.save, self.folder, checkpoint, sync=sync)
        for step in (self.prepare, lambda: asyncio.to_thread(write)):
            await until_written(f"the checkpoint after round {checkpoint.round}", step, self.throttled_log)
        self.saved = checkpoint.round
        checkpoint.values.clear()  # free large arrays: the thread pool keeps a reference to its last task
        # Clients keep snapshots for the previous checkpoint, from which the run resumes if this checkpoint is damaged.
        for name, base in self._bases.items():
            self.members[name].raise_low_water_mark(base)
        self._bases = {name: kept["base"] for name, kept in checkpoint.members.items()}
        now = time.perf_counter()
        self.took(now - started)
        self._save_from = now + (now - started) * (1 / _SAVING_SHARE - 1)
