"""What the server holds of replies stays below one limit, and nobody waits for ever."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fenchel.common import memory
from fenchel.common.data.limits import DataLimits
from fenchel.common.errors import PayloadError, SettingsError
from fenchel.common.memory import memory_bytes
from fenchel.common.storage.run_folder import RunFolder
from fenchel.common.wire.schema import ArraySpec
from fenchel.common.wire.values import SparseVector
from fenchel.deploy.launch.in_process import run_in_process
from fenchel.fleet.collectors import GatherCollector, VisitCollector
from fenchel.fleet.memory_budget import MemoryBudget, Reservation, Size
from fenchel.testing import load_model
from tests.conftest import MakeSettings
from tests.messages import raises
from tests.reservations import InRoom
from tests.unit.server.conftest import settled

PATIENCE = 60.0  # seconds; what waits for ever fails, and a busy machine does not
MIB = 1 << 20
CLIENTS = [f"client-{number}" for number in range(6)]


def exactly(size: int, clients: list[str] = CLIENTS) -> dict[str, Size]:
    return dict.fromkeys(clients, Size(size, size))


def test_a_phase_that_needs_more_at_once_than_there_may_be_is_refused_in_words() -> None:
    assert MemoryBudget(6 * MIB).reserve("round 1, phase 'solve'", exactly(MIB)).wanted == 6 * MIB
    with raises(SettingsError):
        MemoryBudget(6 * MIB - 1).reserve("round 1, phase 'solve'", exactly(MIB))
    with raises(SettingsError):
        MemoryBudget(MIB - 1).reserve("round 1, phase 'train'", exactly(MIB), buffer=MIB)


def takes(room: Reservation, client: str, size: int) -> bool:
    """Return whether there will be room for a reply."""
    try:
        room.check(client, size)
    except PayloadError:
        return False
    return True


def test_one_reply_at_a_time_is_enough_for_a_sum() -> None:
    room = MemoryBudget(MIB).reserve("train", exactly(MIB), buffer=256 * MIB)
    assert (room.wanted, room.buffer) == (MIB, 0)
    open_length = MemoryBudget(10 * MIB).reserve("visit", {"a": Size(0, None)}, buffer=256 * MIB)
    assert open_length.buffer == 5 * MIB
    assert takes(open_length, "a", 5 * MIB)
    assert not takes(open_length, "a", 5 * MIB + 1)
    wide = MemoryBudget(600 * MIB).reserve("train", exactly(MIB), buffer=256 * MIB)
    assert (wide.wanted, wide.buffer) == (257 * MIB, 256 * MIB)


def test_what_is_open_is_cut_for_all_alike() -> None:
    sizes = {"a": Size(MIB, MIB), "b": Size(0, None), "c": Size(MIB, None)}
    room = MemoryBudget(12 * MIB, largest_message=100 * MIB).reserve("offer", sizes)
    assert takes(room, "a", MIB)
    refused = [client for client in sizes for size in (5 * MIB, 6 * MIB + MIB) if not takes(room, client, size)]
    assert refused == ["a", "a", "b", "c"]
    with pytest.raises(PayloadError, match=r"above the 5,\d+,\d+ that network.in_flight_bytes \(12,582,912\) leaves"):
        room.check("b", 7 * MIB)
    roomy = MemoryBudget(1000 * MIB, largest_message=100 * MIB).reserve("offer", sizes)
    assert all(takes(roomy, client, 100 * MIB) for client in ("b", "c"))


@given(
    st.dictionaries(
        st.sampled_from(CLIENTS), st.tuples(st.integers(0, 50), st.none() | st.integers(0, 90)), min_size=1
    ),
    st.integers(1, 300),
    st.none() | st.integers(0, 40),
)
def test_all_that_a_room_lets_come_fits_the_limit(
    bounds: Mapping[str, tuple[int, int | None]], limit: int, buffer: int | None
) -> None:
    sizes = {client: Size(least, None if more is None else least + more) for client, (least, more) in bounds.items()}
    try:
        room = MemoryBudget(limit, largest_message=80).reserve("any", sizes, buffer)
    except SettingsError:
        least = [size.least for size in sizes.values()]
        assert (sum(least) if buffer is None else max(least)) > limit
        return
    largest = []
    for client, size in sizes.items():
        most = min(limit, 80 if size.most is None else size.most)
        while not takes(room, client, most):
            most -= 1
        assert most >= size.least
        largest.append(most)
    if buffer is None:
        needed = sum(largest)
    else:
        assert room.buffer is not None
        needed = max(largest) + room.buffer
    assert needed <= room.wanted <= limit


@given(seed=st.integers(0, 10_000), limit=st.integers(20, 60))
def test_phases_beside_each_other_stay_below_the_limit_and_all_end(seed: int, limit: int) -> None:
    chance = random.Random(seed)
    limit *= MIB

    async def phase(shared: MemoryBudget, number: int) -> None:
        sizes = {f"{number}-{each}": chance.randint(2, 9) * MIB for each in range(chance.randint(1, 6))}
        together = chance.random() < 0.5 and sum(sizes.values()) <= limit
        exact = {client: Size(size, size) for client, size in sizes.items()}
        room = shared.reserve(f"phase {number}", exact, None if together else 10 * MIB)
        collector = InRoom(
            GatherCollector() if together else VisitCollector(list(sizes), 10 * MIB, lambda client, values: None), room
        )

        async def arrive(client: str) -> None:
            for _ in range(chance.randint(0, 5)):
                await asyncio.sleep(0)
            if chance.random() < 0.3:  # it says another size, breaks off, and comes back
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(collector.admit(client, chance.randint(1, sizes[client] // MIB) * MIB), 1e-4)
            await collector.admit(client, sizes[client])
            assert shared.held <= limit
            assert shared.held == sum(open_room.held for open_room in shared.reservations)
            await asyncio.sleep(0)
            if chance.random() < 0.2:
                collector.skip(client)
            else:
                collector.add(client, {})

        with room:
            async with asyncio.TaskGroup() as tasks:
                for client in chance.sample(list(sizes), len(sizes)):
                    tasks.create_task(arrive(client))

    async def scenario() -> None:
        shared = MemoryBudget(limit)
        async with asyncio.timeout(PATIENCE), asyncio.TaskGroup() as tasks:
            for number in range(4):
                tasks.create_task(phase(shared, number))
        assert not shared.reservations
        assert shared.held == 0

    asyncio.run(scenario())


async def test_a_younger_phase_waits_for_what_the_older_one_may_still_need() -> None:
    shared = MemoryBudget(10 * MIB)
    older, younger = (
        shared.reserve("older", exactly(MIB, CLIENTS)),
        shared.reserve("younger", exactly(3 * MIB, ["a", "b"])),
    )
    with younger:
        with older:
            pass  # it was not the older one then
        await younger.acquire("a", 3 * MIB)
    with older, younger:
        await younger.acquire("a", 3 * MIB)
        waiting = asyncio.create_task(younger.acquire("b", 3 * MIB))
        await settled()
        assert not waiting.done(), "6 MiB are for the older one, and 3 are taken"
        async with asyncio.timeout(PATIENCE):
            await younger.acquire("a", 3 * MIB)  # it has come back, and keeps what it has
        for client in CLIENTS:
            await older.acquire(client, MIB)
        older.release(CLIENTS[0])
        await settled()
        assert not waiting.done(), "what it gives back it may need again"
        older.__exit__(None, None, None)
        await settled()
        assert waiting.done()
        older.__enter__()


async def test_who_waits_is_let_go_when_the_phase_is_over_and_who_comes_back_has_its_room() -> None:
    shared = MemoryBudget(2 * MIB)
    first = shared.reserve("first", exactly(2 * MIB, ["a"]))
    second = shared.reserve("second", exactly(2 * MIB, ["b"]))
    with first:
        await first.acquire("a", 2 * MIB)
        await first.acquire("a", 2 * MIB)
        assert first.held == 2 * MIB
        with second:
            broken = asyncio.create_task(second.acquire("b", 2 * MIB))
            await settled()
            again = asyncio.create_task(second.acquire("b", 2 * MIB))
            await settled()
            broken.cancel()
            await settled()
            assert not again.done()
        await settled()
        assert again.done()
        assert second.held == 0
        await second.acquire("b", 2 * MIB)
        assert second.held == 0, "its phase is over"


async def test_who_comes_back_with_another_size_gives_up_its_room_and_waits_for_other() -> None:
    shared = MemoryBudget(10 * MIB)
    room = shared.reserve("visit", {"a": Size(0, 8 * MIB), "b": Size(0, 8 * MIB)}, 10 * MIB)
    with room:
        await room.acquire("a", 6 * MIB)
        await room.acquire("b", MIB)
        larger = asyncio.create_task(room.acquire("b", 8 * MIB))
        await settled()
        assert not larger.done()
        assert room.held == 6 * MIB
        room.release("a")
        await larger
        assert room.held == 8 * MIB
        await room.acquire("b", 2 * MIB)
        assert room.held == 2 * MIB


async def test_nobody_passes_the_limit_by_saying_less_first() -> None:
    shared, names = MemoryBudget(200 * MIB), [f"client-{number}" for number in range(10)]
    room = shared.reserve("round 1, phase 'look'", dict.fromkeys(names, Size(1, 100 * MIB)), 20 * MIB)
    collector = InRoom(VisitCollector(names, 20 * MIB, lambda client, values: None), room)
    with room:
        for name in names[1:]:
            await collector.admit(name, MIB + 1)
        returned = {name: asyncio.create_task(collector.admit(name, 100 * MIB)) for name in names[1:]}
        await settled()
        assert not any(task.done() for task in returned.values())
        assert room.held == 0, "what they had is given up"
        await collector.admit(names[0], 100 * MIB)
        for name, following in pairwise(names):
            assert room.held == 100 * MIB
            collector.add(name, {})
            await asyncio.wait_for(returned[following], PATIENCE)


async def test_a_sum_gives_room_back_as_it_goes_and_a_collection_at_its_end() -> None:
    shared = MemoryBudget(100 * MIB)
    order = ["a", "b"]
    rooms = [shared.reserve("phase", exactly(5 * MIB, order), buffer) for buffer in (20 * MIB, None)]
    sums = InRoom(VisitCollector(order, 20 * MIB, lambda client, values: None), rooms[0])
    whole = InRoom(GatherCollector(), rooms[1])
    with rooms[0]:
        for client in reversed(order):
            await sums.admit(client, 5 * MIB)
        assert shared.held == 10 * MIB
        sums.add("b", {})
        assert shared.held == 10 * MIB
        sums.add("a", {})
        assert shared.held == 0
    with rooms[1]:
        for client in order:
            await whole.admit(client, 5 * MIB)
            whole.add(client, {})
        assert shared.held == 10 * MIB
        whole.skip("a")
        assert shared.held == 5 * MIB
    assert shared.held == 0


def test_sizes_are_those_of_what_is_expected() -> None:
    assert Size.of({"model": np.zeros(10), "n": int}) == Size(80, 80)
    assert Size.of({"model": ArraySpec(np.float64, (None,))}) == Size(0, None)
    assert Size.of({"model": ArraySpec(np.float64, (800,), kinds=(SparseVector,), count=4)}) == Size(32, 136)
    assert Size.of({"model": ArraySpec(np.float64, (800,), kinds=(np.ndarray, SparseVector))}) == Size(0, 6504)


def test_a_container_with_less_memory_than_its_machine_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = memory_bytes()
    assert 1 << 29 < whole < 1 << 46
    told = tmp_path / "memory.max"
    monkeypatch.setattr(memory, "_CONTAINER", (tmp_path / "none", told))
    told.write_text("1073741824\n")
    assert memory_bytes() == 2 * MemoryBudget().limit == 4 * DataLimits().bytes == 1 << 30
    told.write_text("max\n")
    assert memory_bytes() >= whole


PER_ALGORITHM = pytest.mark.parametrize(
    ("algorithm", "together"), [("fedavg", 1), ("scaff-pd", 3)], ids=["folded", "held together"]
)


@pytest.fixture
def model_of(make_settings: MakeSettings, tmp_path: Path) -> Callable[..., bytes]:
    """Return a function that does a run with a limit, and returns its model."""

    def model(algorithm: str, limit: int | None, **sections: Any) -> bytes:
        chosen = {"name": algorithm, "local_steps": 1, "batch_size": None, "step_size": 0.5}
        settings = make_settings(algorithm=chosen, network={"in_flight_bytes": limit}, **sections)
        folder = RunFolder.create(tmp_path, "run")
        asyncio.run(run_in_process(settings, folder))
        return load_model(folder).tobytes()

    return model


@PER_ALGORITHM
def test_a_run_with_room_for_what_it_needs_has_the_bits_of_one_without_a_limit_and_with_less_says_so(
    algorithm: str, together: int, model_of: Callable[..., bytes]
) -> None:
    enough = together * 640 * 8
    assert model_of(algorithm, enough) == model_of(algorithm, None)
    with raises(SettingsError):
        model_of(algorithm, enough - 1)


@PER_ALGORITHM
def test_what_a_run_holds_of_large_replies_stays_below_its_limit(
    algorithm: str, together: int, model_of: Callable[..., bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance, features = np.random.default_rng(0), 200_000
    file = tmp_path / "wide.npz"
    np.savez(file, X=chance.standard_normal((12, features)), y=np.arange(12) % 2)
    reply, held = 8 * features, list[int]()
    give = Reservation._give

    def giving(self: Reservation, client: str, size: int) -> None:
        give(self, client, size)
        held.append(self._memory_budget.held)

    monkeypatch.setattr(Reservation, "_give", giving)
    sections = {"data": {"file": str(file)}, "objective": {"kind": "logistic", "l2": 1e-3}}
    free = model_of(algorithm, None, **sections)
    assert max(held) >= reply
    held.clear()
    assert model_of(algorithm, together * reply, **sections) == free
    assert max(held) == together * reply
