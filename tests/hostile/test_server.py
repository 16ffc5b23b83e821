"""A client that breaks the protocol is the only one who suffers, and the log says what it did."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

import numpy as np
import pyarrow.parquet as pq
import pytest

from fenchel.common.errors import FenchelError, JoinRefusedError, WireError
from fenchel.common.storage.run_folder import RunFolder
from fenchel.common.version import PROTOCOL
from fenchel.common.wire.frames import CHUNK_BYTES, FRAME_BYTES, Body, frames, parse
from fenchel.common.wire.payload import encode
from fenchel.common.wire.values import SparseVector, Values
from fenchel.deploy.launch.in_process import MemoryStream
from fenchel.deploy.launch.names import client_names
from fenchel.proto import fenchel_pb2 as pb
from fenchel.server.coordinator import Coordinator
from fenchel.testing import Federation, load_model
from tests.conftest import MakeSettings
from tests.messages import raises

HONEST = ("client-000", "client-001")
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
    "a value too many": (saying({**GOOD, "more": 1}), "3 values; expected at most 2"),
    "another name": (saying({"w": MODEL, "samples": 40}), "got values named"),
    "another dtype": (saying({**GOOD, "model": MODEL.astype(np.float32)}), "has dtype float32"),
    "another shape": (saying({**GOOD, "model": np.zeros(641)}), "has shape"),
    "a matrix": (saying({**GOOD, "model": MODEL.reshape(10, 64)}), "has shape"),
    "a sparse vector": (saying({**GOOD, "model": SparseVector(np.arange(3), np.ones(3), 640)}), "is a sparse vector"),
    "nan": (saying({**GOOD, "model": np.full(640, np.nan)}), "not finite"),
    "infinity": (saying({**GOOD, "model": np.where(np.arange(640) == 9, np.inf, 0.0)}), "position 9"),
    "a truth for a number": (saying({**GOOD, "samples": True}), "is the bool True"),
    "a fraction for a count": (saying({**GOOD, "samples": 0.5}), "is the float 0.5"),
    "an array for a number": (saying({**GOOD, "samples": MODEL}), "is a dense array"),
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
    """A federation whose last clients attack when they are asked for the first time, each in a way of its own."""

    attacks: Mapping[str, Attack] = field(default_factory=dict)  # by what they are called
    then_answer: bool = False
    attacked: Counter[str] = field(default_factory=Counter)
    ends: dict[str, BaseException | None] = field(default_factory=dict)

    @property
    def offenders(self) -> dict[str, str]:
        """What each of the last clients does, by its name."""
        return dict(zip(client_names(len(HONEST) + len(self.attacks))[len(HONEST) :], self.attacks, strict=True))

    async def _client(self, coordinator: Coordinator, name: str, death: asyncio.Event) -> None:
        if name in HONEST:
            await super()._client(coordinator, name, death)
            return
        what = self.offenders[name]
        joining = pb.JoinRequest(protocol=PROTOCOL, client=name, instance=b"offender")
        await coordinator.admission.join(joining)
        pair = MemoryStream()
        serving = asyncio.create_task(coordinator.admission.work(name, b"offender", pair.other_side()))
        besieging = asyncio.create_task(self._besiege(pair, what))
        await asyncio.wait({serving, besieging}, return_when=asyncio.FIRST_COMPLETED)
        for task in (serving, besieging):
            task.cancel()
        self.ends[what], broken = await asyncio.gather(serving, besieging, return_exceptions=True)
        if isinstance(broken, Exception):
            raise broken

    async def _besiege(self, stream: MemoryStream, what: str) -> None:
        shard = pb.ShardDescription(samples=40, features=64, classes=10, features_held=64)
        for frame in frames(pb.Hello(shard=shard, stateless=True)):
            await stream.write(frame)
        while (data := await stream.read()) is not None:
            head = parse(data).head
            if isinstance(head, pb.Farewell):
                return
            if isinstance(head, pb.Instruction):
                self.attacked[what] += 1
                for frame in self.attacks[what](head):
                    await stream.write(frame)
                if self.then_answer:
                    for frame in reply(head.sequence):
                        await stream.write(frame)

    def outcomes(self) -> dict[str, set[str]]:
        """What became of the questions to each client: by its name, or by what it does."""
        found: dict[str, set[str]] = {}
        for row in pq.read_table(self.folder.calls).to_pylist():
            found.setdefault(self.offenders.get(row["client"], row["client"]), set()).add(row["outcome"])
        return found


@pytest.fixture
def besieged(make_settings: MakeSettings, tmp_path: Path) -> Callable[..., Siege]:
    """Return a function that has a run attacked in many ways at once, and returns it with its model."""

    def run(attacks: Mapping[str, Attack], *, then_answer: bool = False) -> Siege:
        settings = make_settings(
            clients=len(HONEST) + len(attacks),
            network={"max_message_bytes": LIMIT},
            participation={"deadline": 1.0},
            evaluation={"server": False, "clients": False},
        )
        siege = Siege(settings, RunFolder.create(tmp_path, "siege"), attacks=attacks, then_answer=then_answer)
        siege.run()
        return siege

    return run


def model_of(siege: Siege) -> bytes:
    return load_model(siege.folder).tobytes()


COUNTED = {client: {"counted"} for client in HONEST}


def failing(attacks: Mapping[str, object]) -> dict[str, Attack]:
    """As many clients that fail honestly: their model is the one of the others."""
    return dict.fromkeys(attacks, REFUSED["a failure of its own"][0])


def test_replies_that_were_not_asked_for_so_fail_their_clients_alone(
    besieged: Callable[..., Siege], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, logger="fenchel.server"):
        siege = besieged({what: attack for what, (attack, _) in REFUSED.items()})
    assert siege.attacked == Counter(dict.fromkeys(REFUSED, 2)), "their streams stay"
    assert not [end for end in siege.ends.values() if isinstance(end, Exception)]
    assert siege.outcomes() == COUNTED | {what: {"failed"} for what in REFUSED}
    for client, what in siege.offenders.items():
        said = [record.message for record in caplog.records if f"client {client} failed" in record.message]
        assert len(said) == 2
        assert all(REFUSED[what][1] in message for message in said), what
    assert model_of(siege) == model_of(besieged(failing(REFUSED)))


def test_what_is_no_message_ends_the_stream_of_its_client_alone(besieged: Callable[..., Siege]) -> None:
    siege = besieged(BROKEN)
    assert siege.attacked == Counter(dict.fromkeys(BROKEN, 1))
    assert {what for what, end in siege.ends.items() if isinstance(end, WireError)} == set(BROKEN), siege.ends
    found = siege.outcomes()
    assert not [what for what in BROKEN if "counted" in found[what]]
    assert {client: found[client] for client in HONEST} == COUNTED
    assert model_of(siege) == model_of(besieged(failing(BROKEN)))


def test_what_nobody_asked_for_is_dropped(besieged: Callable[..., Siege]) -> None:
    siege = besieged(HARMLESS, then_answer=True)
    assert siege.attacked == Counter(dict.fromkeys(HARMLESS, 2))
    assert not [end for end in siege.ends.values() if isinstance(end, Exception)]
    assert siege.outcomes() == COUNTED | {what: {"counted"} for what in HARMLESS}
    quiet = besieged(dict.fromkeys(HARMLESS, lambda asked: iter(())), then_answer=True)
    assert model_of(siege) == model_of(quiet)


@contextlib.asynccontextmanager
async def gathered(make_settings: MakeSettings, tmp_path: Path) -> AsyncIterator[Coordinator]:
    """A run whose clients have joined."""
    coordinator = Coordinator(make_settings(), RunFolder.create(tmp_path, "gathered"))
    conducting = asyncio.create_task(coordinator.run())
    joins = [pb.JoinRequest(protocol=PROTOCOL, client=f"client-{i}", instance=b"i") for i in range(3)]
    await asyncio.gather(*(coordinator.admission.join(request) for request in joins))
    while not coordinator.admission.members:
        await asyncio.sleep(0)
    yield coordinator
    conducting.cancel()
    (end,) = await asyncio.gather(conducting, return_exceptions=True)
    assert isinstance(end, asyncio.CancelledError | FenchelError)


@pytest.mark.parametrize(
    "first",
    [b"", b"\xff" * 9, *frames(pb.Reply(sequence=1)), *frames(pb.Farewell()), pb.Frame(chunk=b"x").SerializeToString()],
    ids=["nothing", "garbage", "a reply", "a farewell", "a chunk"],
)
async def test_a_stream_that_does_not_begin_with_a_hello_is_ended(
    first: bytes, make_settings: MakeSettings, tmp_path: Path
) -> None:
    async with gathered(make_settings, tmp_path) as coordinator:
        stream = MemoryStream()
        await stream.write(first)
        with raises(WireError):
            await coordinator.admission.work("client-0", b"i", stream.other_side())


@pytest.mark.parametrize(("client", "instance"), [("client-9", b"i"), ("client-0", b"other")])
async def test_a_stream_belongs_to_who_joined(
    client: str, instance: bytes, make_settings: MakeSettings, tmp_path: Path
) -> None:
    async with gathered(make_settings, tmp_path) as coordinator:
        with raises(JoinRefusedError):
            await coordinator.admission.work(client, instance, MemoryStream().other_side())
