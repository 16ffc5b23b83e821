"""Tasks of one process compute a few at a time, and do together what is cheaper together."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from itertools import chain
from typing import TypeVar

import pytest

from fenchel.common.slots import SlotExecutor, joint, waited_ns, working_ns

T = TypeVar("T")

TASKS = 4
PATIENCE = 60.0


def results_of(futures: Sequence[Future[T]]) -> list[T]:
    done, _ = wait(futures, PATIENCE)
    assert len(done) == len(futures), "tasks wait for each other without end"
    return [future.result() for future in futures]


class Squares:
    """Work that records which items it was given at once, and fails for negative ones."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []

    def __call__(self, items: list[int]) -> list[int]:
        self.batches.append(items)
        if min(items) < 0:
            raise ValueError(f"negative among {len(items)}")
        return [item * item for item in items]


def together(executor: SlotExecutor, task: Callable[[int], T]) -> list[T]:
    """Return the results of tasks, of which none goes on before all have begun."""
    begun: set[int] = set()

    def begin(number: int) -> T:
        begun.add(number)
        while len(begun) < TASKS:
            joint(list, [])  # gives the slot to others
        return task(number)

    return results_of([executor.submit(begin, number) for number in range(TASKS)])


def test_work_outside_of_tasks_is_done_at_once() -> None:
    work = Squares()
    assert joint(work, (1, 2)) == [1, 4]
    assert work.batches == [[1, 2]]
    assert waited_ns() == 0


@pytest.mark.parametrize("slots", [1, 2, TASKS])
def test_each_task_gets_the_results_of_its_items(slots: int) -> None:
    work = Squares()

    def task(number: int) -> list[list[int]]:
        return [joint(work, range(number, number + count)) for count in range(1, 40)]

    with SlotExecutor(slots, TASKS) as executor:
        found = together(executor, task)
    for number, lists in enumerate(found):
        assert lists == [[item * item for item in range(number, number + count)] for count in range(1, 40)]
    items = sorted(chain.from_iterable(work.batches))
    assert items == sorted(item for n in range(TASKS) for count in range(1, 40) for item in range(n, n + count))


def test_tasks_of_one_slot_do_their_work_together() -> None:
    work = Squares()

    def task(number: int) -> list[int]:
        return [joint(work, [number + step])[0] for step in range(200)]

    with SlotExecutor(1, TASKS) as executor:
        found = together(executor, task)
    assert found == [[(number + step) ** 2 for step in range(200)] for number in range(TASKS)]
    assert len(work.batches) < TASKS * 200 / 2
    assert max(map(len, work.batches)) == TASKS


def test_different_work_is_not_mixed() -> None:
    works = [Squares(), Squares()]

    def task(number: int) -> None:
        for _ in range(100):
            assert joint(works[number % 2], [number]) == [number * number]

    with SlotExecutor(1, TASKS) as executor:
        together(executor, task)
    for parity, work in enumerate(works):
        assert {item % 2 for batch in work.batches for item in batch} == {parity}


def test_an_error_reaches_the_task_whose_items_caused_it_and_no_other() -> None:
    work = Squares()

    def task(number: int) -> int:
        failures = 0
        for step in range(100):
            wrong = number == 0 and step % 3 == 0
            try:
                assert joint(work, [-1 if wrong else number]) == [number * number]
            except ValueError as error:
                assert wrong
                assert str(error) == "negative among 1"
                failures += 1
        return failures

    with SlotExecutor(1, TASKS) as executor:
        assert together(executor, task) == [34, 0, 0, 0]
    assert any(min(batch) < 0 and len(batch) > 1 for batch in work.batches), "no failure was among other items"


@pytest.mark.parametrize("slots", [1, 2])
def test_no_more_tasks_compute_than_there_are_slots(slots: int) -> None:
    lock, computing, most = threading.Lock(), 0, 0

    def compute(items: list[int]) -> list[int]:
        nonlocal computing, most
        with lock:
            computing += 1
            most = max(most, computing)
        threading.Event().wait(0.001)  # others begin now, if they may
        with lock:
            computing -= 1
        return items

    def task(number: int) -> None:
        for _ in range(20):
            compute([number])
            joint(compute, [number])

    with SlotExecutor(slots, TASKS) as executor:
        together(executor, task)
    assert most == slots


def test_a_slot_is_free_again_after_an_error() -> None:
    def fail() -> None:
        raise ValueError("no")

    with SlotExecutor(1, 1) as executor:
        for _ in range(3):
            with pytest.raises(ValueError, match="no"):
                executor.submit(fail).result(PATIENCE)
        assert executor.submit(joint, Squares(), [3]).result(PATIENCE) == [9]


def test_the_working_clock_stands_still_while_a_task_waits() -> None:
    second_is_over = threading.Event()

    def first() -> tuple[int, int]:
        waited, began = waited_ns(), working_ns()
        executor.submit(second)
        while not second_is_over.is_set():
            joint(list, [])
        return waited_ns() - waited, working_ns() - began

    def second() -> None:
        threading.Event().wait(0.2)
        second_is_over.set()

    with SlotExecutor(1, 2) as executor:
        waited, worked = executor.submit(first).result(PATIENCE)
    assert waited >= 0.2e9
    assert worked < 0.2e9
