"""A client that breaks the protocol is the only one who suffers, and the log says what it did."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

import numpy as np
import pyarrow.parquet as pq
import pytest

from fenchel.common.errors import FenchelError, JoinRefusedError, WireError
from fenchel.common.settings.run import RunSettings
from fenchel.common.storage.run_folder import RunFolder
from fenchel.common.version import PROTOCOL
from fenchel.common.wire.frames import CHUNK_BYTES, FRAME_BYTES, Body, frames, parse
from fenchel.common.wire.payload import encode
from fenchel.common.wire.values import SparseVector, Values
from fenchel.deploy.launch.in_process import MemoryStream
from fenchel.proto import fenchel_pb2 as pb
from fenchel.server.coordinator import Coordinator
from fenchel.testing import Federation, load_model
from tests.conftest import MakeSettings
from tests.messages import raises

OFFENDER = "client-002"
LIMIT = 4 << 20
MODEL = np.zeros(640)
GOOD: Values = {"model": MODEL, "samples": 40}

Attack: TypeAlias = Callable[[pb.Instruction], Iterator[bytes]]


def reply(sequence: int, values: Values = GOOD) -> Iterator[bytes]:
    return frames(pb.Reply(sequence=sequence), Body(encode(values)))


def saying(values: Values) -> Attack:
    return lambda asked: reply(asked.sequence, values)


def sending(*chunks: bytes) -> Attack:
    return lambda asked: iter(chunks)


def head_and(payload: pb.Payload, *chunks: bytes) -> Attack:
    """A reply whose descriptor and whose body are put together by hand."""

    def attack(asked: pb.Instruction) -> Iterator[bytes]:
        yield pb.Frame(reply=pb.Reply(sequence=asked.sequence, payload=payload)).SerializeToString()
        for chunk in chunks:
            yield pb.Frame(chunk=chunk).SerializeToString()

    return attack


def resuming(asked: pb.Instruction) -> Iterator[bytes]:
    large = encode({"model": np.zeros(CHUNK_BYTES // 4), "samples": 40})
    return frames(pb.Reply(sequence=asked.sequence), Body(large), CHUNK_BYTES)


def two_heads(asked: pb.Instruction) -> Iterator[bytes]:
    begun = pb.Reply(sequence=asked.sequence, payload=encode(GOOD).descriptor)
    yield pb.Frame(reply=begun).SerializeToString()
    yield from reply(asked.sequence)


BOOLEANS = pb.Payload(body_bytes=8, arrays=[pb.Array(name="model", dense=pb.Dense(dtype=pb.BOOL, shape=[8]))])
THIN = pb.Payload(
    body_bytes=24,
    arrays=[
        pb.Array(
            name="model", sparse=pb.Sparse(dtype=pb.FLOAT64, size=9, count=2, index_bytes=2, encoding=pb.DELTA_VARINT)
        )
    ],
)
EMPTY_GIANT = pb.Payload(arrays=[pb.Array(name="model", dense=pb.Dense(dtype=pb.FLOAT64, shape=[0, 2**63]))])


def declaring(entries: int) -> pb.Payload:
    return pb.Payload(
        body_bytes=8 * entries, arrays=[pb.Array(name="model", dense=pb.Dense(dtype=pb.FLOAT64, shape=[entries]))]
    )


REFUSED: dict[str, tuple[Attack, str]] = {
    "no values": (saying({}), "got values named"),
    "a value too few": (saying({"model": MODEL}), "got values named"),
    "a value too many": (saying({**GOOD, "more": 1}), "3 values, and 2 were asked for"),
    "another name": (saying({"w": MODEL, "samples": 40}), "got values named"),
    "another dtype": (saying({**GOOD, "model": MODEL.astype(np.float32)}), "has dtype float32"),
    "another shape": (saying({**GOOD, "model": np.zeros(641)}), "has shape"),
    "a matrix": (saying({**GOOD, "model": MODEL.reshape(10, 64)}), "has shape"),
    "a sparse vector": (saying({**GOOD, "model": SparseVector(np.arange(3), np.ones(3), 640)}), "is sparse"),
    "nan": (saying({**GOOD, "model": np.full(640, np.nan)}), "not finite"),
    "infinity": (saying({**GOOD, "model": np.where(np.arange(640) == 9, np.inf, 0.0)}), "position 9"),
    "a truth for a number": (saying({**GOOD, "samples": True}), "is the bool True"),
    "a fraction for a count": (saying({**GOOD, "samples": 0.5}), "is the float 0.5"),
    "an array for a number": (saying({**GOOD, "samples": MODEL}), "is an array"),
    "booleans that are none": (head_and(BOOLEANS, b"\7" * 8), "other than 0 and 1"),
    "indices that do not increase": (head_and(THIN, b"\5\0" + bytes(22)), "do not increase"),
    "a failure of its own": (lambda asked: frames(pb.Reply(sequence=asked.sequence, failure="no idea")), "no idea"),
}
"""Replies that are read and refused: the offender fails, and its stream stays."""

BROKEN: dict[str, Attack] = {
    "garbage": sending(b"\xff" * 100),
    "text": sending(b"GET / HTTP/1.1\r\n\r\n"),
    "a frame that is too large": sending(bytes(FRAME_BYTES + 1)),
    "a chunk that belongs to nothing": sending(pb.Frame(chunk=b"x").SerializeToString()),
    "an empty frame": sending(b""),
    "a second hello": sending(*frames(pb.Hello())),
    "an instruction": sending(*frames(pb.Instruction(phase="train", sequence=9))),
    "a welcome": sending(*frames(pb.Welcome())),
    "a farewell": sending(*frames(pb.Farewell())),
    "a reply beyond the limit": head_and(declaring(LIMIT)),
    "a reply of 2 to the power of 67 bytes": head_and(declaring(2**60)),
    "a body that is longer than declared": head_and(declaring(2), bytes(8), bytes(16)),
    "a body that nobody waits for and that is longer than declared": lambda asked: head_and(
        declaring(2), bytes(1 << 16)
    )(pb.Instruction(sequence=10**6)),
    "a size that lies": head_and(pb.Payload(body_bytes=8, arrays=declaring(2).arrays)),
    "an empty array of a size that none can have": head_and(EMPTY_GIANT),
    "a resumption of nothing": resuming,
    "a reply within a reply": two_heads,
}
"""What is no message of the protocol: the offender's stream ends."""

HARMLESS: dict[str, Attack] = {
    "a reply to an instruction that was never given": lambda asked: reply(10**6),
    "a reply to an instruction that is long past": lambda asked: reply(0),
    "a failure of an instruction that was never given": lambda asked: frames(
        pb.Reply(sequence=10**6, failure="no idea")
    ),
    "a resumed reply to nothing": lambda asked: resuming(pb.Instruction(sequence=10**6)),
    "a large reply to nothing": lambda asked: reply(10**6, {"model": np.zeros(CHUNK_BYTES // 4)}),
}
"""What nobody asked for: it is dropped, and the offender may still answer."""


@dataclass
class Siege(Federation):
    """A federation one of whose clients attacks when it is asked for the first time."""

    attack: Attack = field(default=lambda asked: iter(()))
    then_answer: bool = False
    attacked: int = 0
    end: BaseException | None = None

    async def _client(self, coordinator: Coordinator, name: str, death: asyncio.Event) -> None:
        if name != OFFENDER:
            await super()._client(coordinator, name, death)
            return
        joining = pb.JoinRequest(protocol=PROTOCOL, client=name, instance=b"offender")
        await coordinator.admission.join(joining)
        pair = MemoryStream()
        serving = asyncio.create_task(coordinator.admission.work(name, b"offender", pair.other_side()))
        besieging = asyncio.create_task(self._besiege(pair))
        await asyncio.wait({serving, besieging}, return_when=asyncio.FIRST_COMPLETED)
        for task in (serving, besieging):
            task.cancel()
        self.end, broken = await asyncio.gather(serving, besieging, return_exceptions=True)
        if isinstance(broken, Exception):
            raise broken

    async def _besiege(self, stream: MemoryStream) -> None:
        shard = pb.ShardDescription(samples=40, features=64, classes=10, features_held=64)
        for frame in frames(pb.Hello(shard=shard, stateless=True)):
            await stream.write(frame)
        while (data := await stream.read()) is not None:
            head = parse(data).head
            if isinstance(head, pb.Farewell):
                return
            if isinstance(head, pb.Instruction):
                self.attacked += 1
                for frame in self.attack(head):
                    await stream.write(frame)
                if self.then_answer:
                    for frame in reply(head.sequence):
                        await stream.write(frame)


@pytest.fixture
def settings(make_settings: MakeSettings) -> RunSettings:
    return make_settings(
        rounds=2,
        network={"max_message_bytes": LIMIT},
        participation={"deadline": 0.5},
        evaluation={"server": False, "clients": False},
    )


def besieged(settings: RunSettings, parent: Path, attack: Attack, *, then_answer: bool = False) -> Siege:
    siege = Siege(settings, RunFolder.create(parent, "siege"), attack=attack, then_answer=then_answer)
    siege.run()
    assert siege.attacked
    return siege


def outcomes(siege: Siege) -> set[tuple[str, str]]:
    calls = pq.read_table(siege.folder.calls)
    return set(zip(calls["client"].to_pylist(), calls["outcome"].to_pylist(), strict=True))


HONEST = {("client-000", "counted"), ("client-001", "counted")}


@pytest.fixture(scope="module")
def without_offender(make_settings: MakeSettings, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The model of the others: each holds its third of the data, and the third one fails."""
    attack = REFUSED["a failure of its own"][0]
    siege = besieged(make_settings(rounds=2), tmp_path_factory.mktemp("reference"), attack)
    return load_model(siege.folder).tobytes()


@pytest.mark.parametrize("name", REFUSED)
def test_a_reply_that_was_not_asked_for_so_fails_its_client_alone(
    name: str, settings: RunSettings, without_offender: bytes, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    attack, told = REFUSED[name]
    with caplog.at_level(logging.WARNING, logger="fenchel.server"):
        siege = besieged(settings, tmp_path, attack)
    assert siege.attacked == 2
    assert not isinstance(siege.end, Exception)
    assert outcomes(siege) == HONEST | {(OFFENDER, "failed")}
    assert load_model(siege.folder).tobytes() == without_offender
    named = [record.message for record in caplog.records if f"client {OFFENDER} failed" in record.message]
    assert len(named) == 2
    assert all(told in message for message in named)


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_no_message_ends_the_stream_of_its_client_alone(
    name: str, settings: RunSettings, without_offender: bytes, tmp_path: Path
) -> None:
    siege = besieged(settings, tmp_path, BROKEN[name])
    assert siege.attacked == 1
    assert isinstance(siege.end, WireError), siege.end
    assert not outcomes(siege) & {(OFFENDER, "counted")}
    assert outcomes(siege) >= HONEST
    assert load_model(siege.folder).tobytes() == without_offender


@pytest.mark.parametrize("name", HARMLESS)
def test_what_nobody_asked_for_is_dropped(name: str, settings: RunSettings, tmp_path: Path) -> None:
    siege = besieged(settings, tmp_path, HARMLESS[name], then_answer=True)
    assert siege.attacked == 2
    assert not isinstance(siege.end, Exception)
    assert outcomes(siege) == HONEST | {(OFFENDER, "counted")}
    quiet = besieged(settings, tmp_path, lambda asked: iter(()), then_answer=True)
    assert load_model(siege.folder).tobytes() == load_model(quiet.folder).tobytes()


@pytest.mark.parametrize(
    "first",
    [b"", b"\xff" * 9, *frames(pb.Reply(sequence=1)), *frames(pb.Farewell()), pb.Frame(chunk=b"x").SerializeToString()],
    ids=["nothing", "garbage", "a reply", "a farewell", "a chunk"],
)
async def test_a_stream_that_does_not_begin_with_a_hello_is_ended(
    first: bytes, settings: RunSettings, tmp_path: Path
) -> None:
    coordinator = Coordinator(settings, RunFolder.create(tmp_path, "hello"))
    conducting = asyncio.create_task(coordinator.conduct())
    joins = [pb.JoinRequest(protocol=PROTOCOL, client=f"client-{i}", instance=b"i") for i in range(3)]
    await asyncio.gather(*(coordinator.admission.join(request) for request in joins))
    while not coordinator.admission.members:
        await asyncio.sleep(0)
    stream = MemoryStream()
    await stream.write(first)
    with raises(WireError):
        await coordinator.admission.work("client-0", b"i", stream.other_side())
    conducting.cancel()
    await asyncio.gather(conducting, return_exceptions=True)


@pytest.mark.parametrize(("client", "instance"), [("client-9", b"i"), ("client-0", b"other")])
async def test_a_stream_belongs_to_who_joined(
    client: str, instance: bytes, settings: RunSettings, tmp_path: Path
) -> None:
    coordinator = Coordinator(settings, RunFolder.create(tmp_path, "stranger"))
    conducting = asyncio.create_task(coordinator.conduct())
    joins = [pb.JoinRequest(protocol=PROTOCOL, client=f"client-{i}", instance=b"i") for i in range(3)]
    await asyncio.gather(*(coordinator.admission.join(request) for request in joins))
    while not coordinator.admission.members:
        await asyncio.sleep(0)
    with raises(JoinRefusedError):
        await coordinator.admission.work(client, instance, MemoryStream().other_side())
    conducting.cancel()
    end = (await asyncio.gather(conducting, return_exceptions=True))[0]
    assert isinstance(end, asyncio.CancelledError | FenchelError)
