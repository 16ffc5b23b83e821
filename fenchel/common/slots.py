"""Slots: the right to compute, which a limited number of the tasks of one process have at a time.

A task that comes to the same work as others can join them: it gives its slot to tasks that still compute, and then one
task does the work of all that have come to it. This pays where the work on many items costs little more than on one.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")
R = TypeVar("R")


@dataclass(eq=False)
class _Call:
    """A task's call of joint work.

    Attributes
    ----------
    taken
        True once a task does the work of this call.
    done
        True once the work is done, with results or an error.
    took_ns
        Duration of the work in nanoseconds.
    """

    items: list[Any]
    results: list[Any] | None = None
    error: Exception | None = None
    taken: bool = False
    done: bool = False
    took_ns: int = 0


class _Thread(threading.local):
    """State of the current thread."""

    executor: SlotExecutor | None = None
    waited_ns = 0


_thread = _Thread()


def waited_ns() -> int:
    """Return how long tasks of this thread have waited for others so far, in nanoseconds."""
    return _thread.waited_ns


def working_ns() -> int:
    """Return the time in nanoseconds, on a clock of this thread that stands still while its task waits for others."""
    return time.perf_counter_ns() - _thread.waited_ns


def joint(work: Callable[[list[T]], list[R]], items: Sequence[T]) -> list[R]:
    """Return ``work(items)``. Tasks of a :class:`SlotExecutor` that pass the same function are served together.

    Parameters
    ----------
    work
        Function that returns one result for each item, regardless of the other items.
    items
        Items of this call.
    """
    executor = _thread.executor
    return work(list(items)) if executor is None else executor.join(work, items)


class SlotExecutor(Executor):
    """Executor of tasks in threads, of which a limited number compute at the same time.

    Parameters
    ----------
    slots
        Number of tasks that compute at the same time.
    tasks
        Number of tasks that may wait for each other. More wait for a thread, and no task waits for those.
    """

    def __init__(self, slots: int, tasks: int) -> None:
        self._threads = ThreadPoolExecutor(tasks, thread_name_prefix="compute")
        lock = threading.Lock()
        self._slot = threading.Condition(lock)  # tasks that want a slot, of which each free slot wakes one
        self._idle = threading.Condition(lock)  # tasks with joint work, which wait until no other wants a slot
        self._free = slots
        self._wanted = 0
        self._calls: dict[Callable[[list[Any]], list[Any]], list[_Call]] = {}

    def submit(self, task: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        """Execute a task as soon as it has a slot."""
        return self._threads.submit(self._execute, partial(task, *args, **kwargs))

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Accept no more tasks."""
        self._threads.shutdown(wait, cancel_futures=cancel_futures)

    def join(self, work: Callable[[list[T]], list[R]], items: Sequence[T]) -> list[R]:
        """Return ``work(items)`` for a task of this executor; see :func:`joint`."""
        begun, call = time.perf_counter_ns(), _Call(list(items))
        with self._idle:
            self._calls.setdefault(work, []).append(call)
            self._give_slot()
            self._idle.wait_for(lambda: call.done or self._is_next(work, call))
            if call.done:
                self._take_slot()
                calls = []
            else:
                self._free -= 1
                calls = self._calls.pop(work)
                for each in calls:
                    each.taken = True
                self._wake()
        if calls:
            started = time.perf_counter_ns()
            _serve(work, calls)
            took = time.perf_counter_ns() - started
            with self._idle:
                for each in calls:
                    each.done, each.took_ns = True, took
                self._wanted += len(calls) - 1
                self._idle.notify_all()
        _thread.waited_ns += time.perf_counter_ns() - begun - call.took_ns
        if call.error is not None:
            raise call.error
        assert call.results is not None
        return call.results

    def _is_next(self, work: Callable[[list[Any]], list[Any]], call: _Call) -> bool:
        """Return whether a slot is free that no task wants, and a call's work has waited longest."""
        return self._free > 0 and not self._wanted and not call.taken and next(iter(self._calls)) == work

    def _execute(self, task: Callable[[], R]) -> R:
        _thread.executor = self
        with self._slot:
            self._wanted += 1
            self._take_slot()
        try:
            return task()
        finally:
            with self._slot:
                self._give_slot()

    def _take_slot(self) -> None:
        """Wait for a slot, as one of the tasks that want one."""
        self._slot.wait_for(lambda: self._free)
        self._wanted -= 1
        self._free -= 1
        self._wake()

    def _give_slot(self) -> None:
        self._free += 1
        self._wake()

    def _wake(self) -> None:
        """Wake a task for a free slot: one that wants it, or else one with joint work."""
        if self._free and self._wanted:
            self._slot.notify()
        elif self._free:
            self._idle.notify_all()


def _serve(work: Callable[[list[Any]], list[Any]], calls: Sequence[_Call]) -> None:
    """Compute the results of several calls at once. If that fails, compute those of each call by themselves."""
    try:
        results = iter(work(list(chain.from_iterable(call.items for call in calls))))
    except Exception:
        for call in calls:
            try:
                call.results = work(call.items)
            except Exception as error:
                call.error = error
        return
    for call in calls:
        call.results = list(islice(results, len(call.items)))
