"""A client takes up its stream again where it broke, and does not compute what cannot count."""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from fenchel.client.session import Answer, Session
from fenchel.client.worker import Worker
from fenchel.common.slots import SlotExecutor, joint
from fenchel.common.wire.frames import CHUNK_BYTES, Body, frames, parse
from fenchel.common.wire.payload import encode
from fenchel.common.wire.values import Values
from fenchel.deploy.launch.in_process import MemoryStream
from fenchel.proto import fenchel_pb2 as pb
from tests.conftest import MakeSettings
from tests.unit.client.tally import NAME, TallyClient, holding

WELCOME = next(frames(pb.Welcome()))
LARGE: Values = {"amount": np.zeros(CHUNK_BYTES // 4)}


def instruction(
    sequence: int, phase: str, values: Values, *, base: int = 0, tell: bool = False, resume: int = 0
) -> Iterator[bytes]:
    head = pb.Instruction(phase=phase, sequence=sequence, base=base, kind=pb.TELL if tell else pb.ASK)
    return frames(head, Body(encode(values)), resume)


@pytest.fixture
def worker(make_settings: MakeSettings) -> Worker:
    settings = make_settings(algorithm={"name": NAME}, objective={"kind": "logistic"})
    TallyClient.computed.clear()
    return Worker(Session("client-0", settings, holding(), allowed=[NAME]))


async def conversed(worker: Worker, *sent: bytes, answers: int) -> tuple[pb.Hello, list[pb.Reply]]:
    """Send frames, await so many answers, and break the stream; return the hello and the answers."""
    stream = MemoryStream()
    server = stream.other_side()
    working = asyncio.create_task(worker.work(stream))
    replies: list[pb.Reply] = []
    async with asyncio.timeout(20):
        first = await server.read()
        assert first is not None
        hello = parse(first).head
        assert isinstance(hello, pb.Hello)
        for frame in sent:
            await server.write(frame)
        while len(replies) < answers:
            data = await server.read()
            assert data is not None
            head = parse(data).head
            assert isinstance(head, pb.Reply)
            replies.append(head)
        server.outgoing.put_nowait(None)
        assert await working is None
    return hello, replies


async def test_an_instruction_that_broke_off_goes_on_after_those_that_come_again(worker: Worker) -> None:
    beginning = list(instruction(2, "add", LARGE, base=1))[:2]
    hello, replies = await conversed(worker, WELCOME, *instruction(1, "double", {}, tell=True), *beginning, answers=1)
    assert not hello.HasField("partial")
    assert [reply.sequence for reply in replies] == [1]
    again = [*instruction(1, "double", {}, tell=True), *instruction(2, "add", LARGE, base=1, resume=CHUNK_BYTES)]
    hello, replies = await conversed(worker, WELCOME, *again, answers=2)
    assert (hello.partial.sequence, hello.partial.received) == (2, CHUNK_BYTES)
    assert [reply.sequence for reply in replies] == [1, 2]
    assert "is a dense array, expected a float" in replies[1].failure
    assert TallyClient.computed == ["double"]


async def test_the_beginning_of_an_instruction_that_is_given_up_is_not_kept(worker: Worker) -> None:
    beginning = list(instruction(1, "add", LARGE))[:2]
    hello, _ = await conversed(worker, WELCOME, *beginning, answers=0)
    hello, replies = await conversed(worker, WELCOME, *instruction(2, "add", {"amount": 1.0}), answers=1)
    assert (hello.partial.sequence, hello.partial.received) == (1, CHUNK_BYTES)
    assert [reply.sequence for reply in replies] == [2]
    hello, _ = await conversed(worker, WELCOME, answers=0)
    assert not hello.HasField("partial")


async def test_a_beginning_outlives_older_instructions_that_come_again(worker: Worker) -> None:
    older, beginning = [*instruction(1, "double", {}, tell=True)], list(instruction(2, "add", LARGE, base=1))[:2]
    await conversed(worker, WELCOME, *older, *beginning, answers=1)
    await conversed(worker, WELCOME, *older, answers=1)
    hello, _ = await conversed(worker, WELCOME, answers=0)
    assert (hello.partial.sequence, hello.partial.received) == (2, CHUNK_BYTES)


class Slow(ThreadPoolExecutor):
    """Begins what it is given first only when two more instructions wait."""

    def __init__(self, worker: Worker) -> None:
        super().__init__(1)
        self._worker = worker
        self._first = True

    def submit(self, function: Callable[..., Any], /, *given: Any, **named: Any) -> Future[Any]:
        first, self._first = self._first, False

        def begun() -> Any:
            while first and len(self._worker._inbox) < 2:
                time.sleep(0.001)
            return function(*given, **named)

        return super().submit(begun)


async def test_a_question_whose_answer_cannot_count_any_more_is_not_computed(worker: Worker) -> None:
    told = instruction(1, "double", {}, tell=True)
    asked = [instruction(sequence, "add", {"amount": 1.0}, base=1) for sequence in (2, 3)]
    with Slow(worker) as worker.executor:
        _, replies = await conversed(worker, WELCOME, *told, *itertools.chain(*asked), answers=2)
    assert [reply.sequence for reply in replies] == [1, 3]
    assert TallyClient.computed == ["double", "add"]


async def test_a_promise_is_kept_whatever_comes_after_it(worker: Worker) -> None:
    told = [*instruction(1, "double", {}, tell=True), *instruction(2, "double", {}, base=1, tell=True)]
    _, replies = await conversed(worker, WELCOME, *told, *instruction(3, "add", {"amount": 1.0}, base=2), answers=3)
    assert [reply.sequence for reply in replies] == [1, 2, 3]
    assert TallyClient.computed == ["double", "double", "add"]


class Counting(ThreadPoolExecutor):
    """Counts what it is given to do."""

    def __init__(self) -> None:
        super().__init__(1)
        self.count = 0

    def submit(self, function: Callable[..., Any], /, *given: Any, **named: Any) -> Future[Any]:
        self.count += 1
        return super().submit(function, *given, **named)


@pytest.mark.parametrize(("short", "in_another_thread"), [(10**12, 2), (0, 6)])
async def test_phases_that_have_been_short_so_far_need_no_other_thread(
    worker: Worker, monkeypatch: pytest.MonkeyPatch, short: int, in_another_thread: int
) -> None:
    monkeypatch.setattr("fenchel.client.worker._SHORT_NS", short)
    with Counting() as executor:
        worker.executor, worker.short_here = executor, True
        asked = [
            instruction(sequence, phase, values, base=sequence - 1)
            for sequence, (phase, values) in enumerate([("add", {"amount": 1.0}), ("double", {})] * 3, start=1)
        ]
        _, replies = await conversed(worker, WELCOME, *itertools.chain(*asked), answers=6)
    assert [reply.failure for reply in replies] == [""] * 6
    assert TallyClient.computed == ["add", "double"] * 3
    assert executor.count == in_another_thread


@pytest.mark.parametrize(("together", "in_another_thread"), [(True, 3), (False, 1)])
async def test_phases_that_encrypt_together_with_other_clients_stay_tasks(
    worker: Worker, monkeypatch: pytest.MonkeyPatch, together: bool, in_another_thread: int
) -> None:
    handle = worker.session.handle

    def encrypting(*given: Any) -> Answer:
        answer = handle(*given)
        answer.head.timing.encryptions = 1
        return answer

    monkeypatch.setattr(worker.session, "handle", encrypting)
    monkeypatch.setattr("fenchel.client.worker._SHORT_NS", 10**12)
    with Counting() as executor:
        worker.executor, worker.short_here, worker.joint = executor, True, together
        asked = [instruction(sequence, "double", {}, base=sequence - 1) for sequence in (1, 2, 3)]
        await conversed(worker, WELCOME, *itertools.chain(*asked), answers=3)
    assert executor.count == in_another_thread


async def test_waiting_for_tasks_of_other_clients_is_time_in_the_queue(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle = worker.session.handle

    def joining(*given: Any) -> Answer:
        other = executor.submit(time.sleep, 0.3)
        while not other.done():
            joint(list, [])
        return handle(*given)

    monkeypatch.setattr(worker.session, "handle", joining)
    with SlotExecutor(1, 2) as executor:
        worker.executor = executor
        _, (reply,) = await conversed(worker, WELCOME, *instruction(1, "double", {}), answers=1)
    timing = reply.timing
    assert timing.queue_ns >= 0.3e9
    parts = (timing.queue_ns, timing.decode_ns, timing.compute_ns, timing.encode_ns, timing.journal_ns)
    assert sum(parts) + timing.handover_ns <= timing.answer_ns


async def test_who_is_cancelled_while_its_stream_breaks_ends(worker: Worker) -> None:
    class Slow(MemoryStream):
        """Takes a while to let go of whoever reads from it."""

        async def read(self) -> bytes | None:
            try:
                return await super().read()
            except asyncio.CancelledError:
                letting_go.set()
                await asyncio.sleep(0.01)
                raise

    class Broken(Slow):
        async def write(self, frame: bytes) -> None:
            if isinstance(parse(frame).head, pb.Reply):
                raise ConnectionError("it broke")
            await super().write(frame)

    letting_go = asyncio.Event()
    stream = Broken()
    server = stream.other_side()
    working = asyncio.create_task(worker.work(stream))
    for frame in (WELCOME, *instruction(1, "add", {"amount": 1.0})):
        await server.write(frame)
    async with asyncio.timeout(20):
        await letting_go.wait()
        working.cancel()
        with pytest.raises(asyncio.CancelledError):
            await working


async def test_what_is_sent_again_while_it_is_worked_on_has_not_waited_in_a_queue(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its work is accounted for already: the parts of its time would be more than there was."""
    handle = worker.session.handle

    def slow(*given: Any) -> Any:
        begun.set()
        time.sleep(0.3)
        return handle(*given)

    begun = threading.Event()
    monkeypatch.setattr(worker.session, "handle", slow)
    with ThreadPoolExecutor(1) as executor:
        worker.executor = executor
        again = [WELCOME, *instruction(1, "add", {"amount": 1.0})]
        stream = MemoryStream()
        server = stream.other_side()
        working = asyncio.create_task(worker.work(stream))
        for frame in again:
            await server.write(frame)
        await asyncio.to_thread(begun.wait, 20)
        server.outgoing.put_nowait(None)
        await working
        monkeypatch.setattr(worker.session, "handle", handle)
        _, (reply,) = await conversed(worker, *again, answers=1)
    assert TallyClient.computed == ["add"]
    assert reply.timing.answer_ns > 0.1e9, "it came while the work went on"
    assert reply.timing.queue_ns == 0
