"""A server that breaks the protocol ends the stream; one that asks nonsense is told so."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import numpy as np
import pytest

from fenchel.client import worker as worker_module
from fenchel.client.session import ClientData, Session
from fenchel.client.worker import Worker
from fenchel.common.data.shard import Shard
from fenchel.common.errors import JoinRefusedError, WireError
from fenchel.common.wire.frames import CHUNK_BYTES, FRAME_BYTES, Body, frames, parse
from fenchel.common.wire.payload import encode
from fenchel.common.wire.reader import SMALLEST_PIECE
from fenchel.common.wire.values import Values
from fenchel.deploy.launch.in_process import MemoryStream
from fenchel.proto import fenchel_pb2 as pb
from tests.conftest import MakeSettings
from tests.messages import raises

LIMIT = 4 << 20
WELCOME = next(frames(pb.Welcome()))
MODEL: Values = {"model": np.zeros(2)}


def instruction(sequence: int, phase: str, values: Values, kind: pb.Kind.ValueType = pb.ASK) -> Iterator[bytes]:
    head = pb.Instruction(phase=phase, sequence=sequence, round=1, kind=kind)
    return frames(head, Body(encode(values)))


def opened(payload: pb.Payload, *chunks: bytes, resume: int = 0) -> list[bytes]:
    """An instruction put together by hand."""
    head = pb.Instruction(phase="train", sequence=1, kind=pb.ASK, payload=payload, resume=resume)
    return [
        pb.Frame(instruction=head).SerializeToString(),
        *(pb.Frame(chunk=chunk).SerializeToString() for chunk in chunks),
    ]


def declaring(*shape: int, size: int) -> pb.Payload:
    dense = pb.Dense(dtype=pb.FLOAT64, shape=shape)
    return pb.Payload(body_bytes=size, arrays=[pb.Array(name="model", dense=dense)])


LARGE = declaring(CHUNK_BYTES // 4, size=CHUNK_BYTES * 2)


@pytest.fixture
def worker(make_settings: MakeSettings) -> Worker:
    settings = make_settings(objective={"kind": "logistic"}, network={"max_message_bytes": LIMIT})
    shard = Shard(np.arange(8.0).reshape(4, 2), np.array([0, 1, 1, 0]), 2, 2, np.arange(4))
    return Worker(Session("client-0", settings, ClientData(shard)))


async def replies(worker: Worker, *sent: bytes, answered: int = 0) -> list[pb.Reply]:
    """Let the server send frames and then say farewell; return what the client answered.

    The last ``answered`` frames are questions: each is sent when the one before it has been answered.
    """
    stream = MemoryStream()
    server = stream.other_side()
    answers: list[pb.Reply] = []

    async def heard() -> None:
        while (data := await server.read()) is not None:
            head = parse(data).head
            if isinstance(head, pb.Reply):
                answers.append(head)
                return

    async def serve() -> None:
        for place, frame in enumerate(sent):
            await server.write(frame)
            if place >= len(sent) - answered:
                await heard()
        await server.write(next(frames(pb.Farewell(completed=True))))

    working = asyncio.create_task(worker.work(stream))
    serving = asyncio.create_task(serve())
    try:
        async with asyncio.timeout(20):
            await working
    finally:
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)
    return answers


BROKEN: dict[str, list[bytes]] = {
    "garbage": [b"\xff" * 100],
    "a frame that is too large": [bytes(FRAME_BYTES + 1)],
    "an empty frame": [b""],
    "a chunk that belongs to nothing": [pb.Frame(chunk=b"x").SerializeToString()],
    "a second welcome": [WELCOME],
    "a hello": list(frames(pb.Hello())),
    "a reply": list(frames(pb.Reply(sequence=1))),
    "a body beyond the limit": opened(declaring(1 << 40, size=8 << 40)),
    "a size that lies": opened(declaring(2, size=8)),
    "an empty array of a size that none can have": opened(declaring(0, 1 << 63, size=0)),
    "a body that is longer than declared": opened(declaring(2, size=16), bytes(8), bytes(16)),
    "a drop in the middle of a body": opened(LARGE, bytes(SMALLEST_PIECE), bytes(SMALLEST_PIECE - 1)),
    "nothing in the middle of a body": opened(LARGE, bytes(SMALLEST_PIECE), b""),
    "an instruction within an instruction": [*opened(LARGE, bytes(SMALLEST_PIECE)), *opened(declaring(0, size=0))],
    "a resumption of nothing": opened(LARGE, resume=CHUNK_BYTES),
}


@pytest.mark.parametrize("name", BROKEN)
async def test_what_is_no_message_ends_the_stream_with_an_error_of_the_wire(worker: Worker, name: str) -> None:
    with raises(WireError):
        await replies(worker, WELCOME, *BROKEN[name])


@pytest.mark.parametrize("first", [b"", b"\xff" * 9, *frames(pb.Hello()), *instruction(1, "train", MODEL)])
async def test_a_server_that_does_not_begin_with_a_welcome_is_left(worker: Worker, first: bytes) -> None:
    with raises(WireError):
        await replies(worker, first)


async def test_a_refusal_is_handed_on_in_the_words_of_the_server(worker: Worker) -> None:
    with raises(JoinRefusedError):
        await replies(worker, next(frames(pb.Farewell(reason="needs the same columns"))))


async def test_a_client_that_comes_back_after_the_end_is_done(worker: Worker) -> None:
    assert await replies(worker, next(frames(pb.Farewell(completed=True)))) == []


@pytest.mark.parametrize(
    ("phase", "values", "told"),
    [
        ("no such phase", MODEL, "has no handler of phase"),
        ("train", {}, "takes the values ['model']"),
        ("train", {"model": 1.0}, "is the float 1.0, expected an array"),
        ("train", {"model": np.array([np.nan, 0.0])}, "not finite"),
        ("train", {"model": np.zeros(3)}, "ValueError"),
        ("train", {**MODEL, "__class__": "x"}, "takes the values ['model']"),
        ("__init__", MODEL, "has no handler of phase"),
    ],
)
async def test_nonsense_is_a_failure_and_the_next_question_is_answered(
    worker: Worker, phase: str, values: Values, told: str
) -> None:
    nonsense, sense = await replies(
        worker, WELCOME, *instruction(1, phase, values), *instruction(2, "train", MODEL), answered=2
    )
    assert told in nonsense.failure
    assert (sense.sequence, sense.failure) == (2, "")


async def test_a_body_that_cannot_be_decoded_is_a_failure(worker: Worker) -> None:
    thin = pb.Sparse(dtype=pb.FLOAT64, size=9, count=2, index_bytes=2, encoding=pb.DELTA_VARINT)
    payload = pb.Payload(body_bytes=24, arrays=[pb.Array(name="model", sparse=thin)])
    (answer,) = await replies(worker, WELCOME, *opened(payload, b"\5\0" + bytes(22)), answered=1)
    assert "do not increase" in answer.failure


@pytest.mark.parametrize("bound", ["messages", "bytes"])
async def test_a_server_that_asks_faster_than_this_client_answers_is_left_waiting(
    bound: str, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_module, "_INBOX_MESSAGES", 20 if bound == "messages" else 1 << 30)
    monkeypatch.setattr(worker_module, "_INBOX_BYTES", 1 << 30 if bound == "messages" else 20 * 16)
    stream = MemoryStream()
    server, written = stream.other_side(), 0

    async def flood() -> None:
        nonlocal written
        await server.write(WELCOME)
        for sequence in range(1, 301):
            asked = pb.Instruction(phase="train", sequence=sequence, base=sequence - 1, kind=pb.ASK)
            for frame in frames(asked, Body(encode(MODEL))):
                await server.write(frame)
            written = sequence

    working, flooding = asyncio.create_task(worker.work(stream)), asyncio.create_task(flood())
    for _ in range(5000):
        await asyncio.sleep(0)
    assert 20 <= len(worker._inbox) <= 21
    assert written < 60, "some were answered before, and a few wait in the queues between the two"
    answers = 0
    async with asyncio.timeout(20):
        while answers < 300:
            data = await server.read()
            assert data is not None
            answers += isinstance(parse(data).head, pb.Reply)
    for task in (working, flooding):
        task.cancel()
    await asyncio.gather(working, flooding, return_exceptions=True)
