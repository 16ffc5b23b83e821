"""What crosses a run's streams, inside TLS, read by protobuf's own parser and counted without Fenchel's code."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pytest

from fenchel.common.wire.stream import Stream
from fenchel.proto import fenchel_pb2 as pb
from fenchel.server.membership.admission import Admission

DTYPES = {1: "float64", 2: "float32", 3: "float16", 4: "int64", 5: "uint8", 6: "bool"}
Place: TypeAlias = tuple[str, str, str, str, str]
"""Phase, direction, name, content, dtype."""


@dataclass(frozen=True)
class Frame:
    """One frame as it crossed: whose stream, which way, its bytes."""

    client: str
    direction: str
    data: bytes


@dataclass
class Heard:
    """A stream of the server, recorded."""

    inner: Stream
    client: str
    frames: list[Frame]

    async def read(self) -> bytes | None:
        data = await self.inner.read()
        if data is not None:
            self.frames.append(Frame(self.client, "up", data))
        return data

    async def write(self, data: bytes) -> None:
        self.frames.append(Frame(self.client, "down", data))
        await self.inner.write(data)


def record(monkeypatch: pytest.MonkeyPatch) -> list[Frame]:
    """Have every stream of every run recorded; return where the frames go."""
    frames: list[Frame] = []
    work = Admission.work

    async def recorded(self: Admission, client: str, instance: bytes, stream: Stream, traceparent: str = "") -> None:
        await work(self, client, instance, Heard(stream, client, frames), traceparent)

    monkeypatch.setattr(Admission, "work", recorded)
    return frames


@dataclass(frozen=True)
class Message:
    """An instruction or a reply: what it was for, its descriptor, its body."""

    client: str
    direction: str
    phase: str
    round: int
    payload: pb.Payload
    body: bytes

    def array(self, name: str) -> Any:
        """Return a dense array, by numpy alone."""
        offset = 0
        for item in self.payload.arrays:
            size = size_of(item)
            if item.name == name:
                flat = np.frombuffer(self.body[offset : offset + size], DTYPES[item.dense.dtype])
                return flat.reshape(tuple(item.dense.shape))
            offset += size + -size % 8
        raise KeyError(name)


def messages(frames: Iterable[Frame]) -> Iterator[Message]:
    """Yield every message that crossed whole or in part; one that was resumed counts as the one that it goes on."""
    asked: dict[tuple[str, int], tuple[str, int]] = {}
    begun: dict[tuple[str, str], tuple[Any, bytearray]] = {}
    for frame in frames:
        parsed = pb.Frame.FromString(frame.data)
        stream = frame.client, frame.direction
        kind = parsed.WhichOneof("head")
        if kind in ("instruction", "reply"):
            if stream in begun:
                yield _whole(stream, *begun.pop(stream), asked)
            head = getattr(parsed, kind)
            if kind == "instruction":
                asked[frame.client, head.sequence] = head.phase, head.round
            if not head.resume:
                begun[stream] = head, bytearray(parsed.chunk)
        elif kind is None and stream in begun:
            begun[stream][1].extend(parsed.chunk)
    for stream, (head, body) in begun.items():
        yield _whole(stream, head, body, asked)


def _whole(
    stream: tuple[str, str], head: Any, body: bytearray, asked: dict[tuple[str, int], tuple[str, int]]
) -> Message:
    return Message(*stream, *asked[stream[0], head.sequence], head.payload, bytes(body))


def size_of(item: pb.Array) -> int:
    """Return the bytes of an array in the body, without the padding at its end."""
    content = item.WhichOneof("content")
    if content == "dense":
        return int(np.prod(list(item.dense.shape), dtype=np.int64)) * np.dtype(DTYPES[item.dense.dtype]).itemsize
    if content == "ciphertexts":
        return int(np.ceil(item.ciphertexts.count / item.ciphertexts.slots)) * item.ciphertexts.ciphertext_bytes
    if content == "sparse":
        values = item.sparse.count * np.dtype(DTYPES[item.sparse.dtype]).itemsize
        return int(item.sparse.index_bytes + values)
    return 0


@dataclass
class SocketBytes:
    """All that crossed of one kind."""

    times: int = 0
    rounds: set[int] = field(default_factory=set)
    clients: set[str] = field(default_factory=set)
    shapes: set[tuple[int, ...]] = field(default_factory=set)
    sizes: set[int] = field(default_factory=set)
    keys: set[str] = field(default_factory=set)

    def listed(self, everybody: set[str]) -> dict[str, Any]:
        """Return what the account should say of it."""
        return {
            "times": self.times,
            "first_round": min(self.rounds),
            "last_round": max(self.rounds),
            "clients": "all" if self.clients == everybody else sorted(self.clients),
            "shape": [[min(sides), max(sides)] for sides in zip(*self.shapes, strict=True)],
            "bytes": [min(self.sizes), max(self.sizes)],
            "key": "".join(self.keys),
        }


def crossed(heard: Iterable[Message]) -> dict[Place, SocketBytes]:
    """Sort what crossed by its kind."""
    found: dict[Place, SocketBytes] = {}
    for message in heard:
        for item in message.payload.arrays:
            content = item.WhichOneof("content") or ""
            part = getattr(item, content)
            dtype = DTYPES[part.dtype] if content in ("dense", "sparse") else ""
            if content == "scalar":
                dtype = part.WhichOneof("value")
            name = item.name
            if message.phase.startswith("fenchel.secrets.") and "/" in name:
                name = "*/" + name.split("/", 1)[1]
            kind = found.setdefault((message.phase, message.direction, name, content, dtype), SocketBytes())
            kind.times += 1
            kind.rounds.add(message.round)
            kind.clients.add(message.client)
            shapes = {"dense": "shape", "sparse": "size", "ciphertexts": "count"}
            shape = getattr(part, shapes[content]) if content in shapes else ()
            kind.shapes.add((shape,) if isinstance(shape, int) else tuple(shape))
            kind.sizes.add(size_of(item))
            if content == "ciphertexts":
                kind.keys.add(part.key_id.hex())
    return found


def account_of(run: Path) -> dict[str, Any]:
    """Return a run's ``disclosures.json``."""
    account: dict[str, Any] = json.loads((run / "disclosures.json").read_text())
    return account


def entries(account: dict[str, Any]) -> dict[Place, dict[str, Any]]:
    """Return the entries of an account by their kind, of which there must be one each."""
    places = [
        (each["phase"], each["direction"], each["name"], each["content"], each["dtype"]) for each in account["messages"]
    ]
    assert len(set(places)) == len(places)
    return dict(zip(places, account["messages"], strict=True))


def check_account(account: dict[str, Any], heard: Iterable[Message]) -> None:
    """Hold the account against the wire: the same kinds, as often, of the same sizes, from and to the same clients."""
    wire, listed = crossed(heard), entries(account)
    assert listed.keys() == wire.keys()
    for place, kind in wire.items():
        wanted = kind.listed(set(account["clients"]))
        assert {name: listed[place][name] for name in wanted} == wanted, place
