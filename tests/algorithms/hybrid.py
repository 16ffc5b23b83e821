"""HyFDCA in one process, with an ear on every stream: what travels can be looked at, and changed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias
from unittest.mock import patch

import numpy as np

from fenchel.client.local_data import LocalData
from fenchel.client.worker import Worker
from fenchel.common.arrays import Vector
from fenchel.common.crypto.ciphertexts import Ciphertexts
from fenchel.common.data.shard import Shard
from fenchel.common.settings.run import RunSettings, validate
from fenchel.common.storage import store
from fenchel.common.storage.run_folder import RunFolder
from fenchel.common.wire.frames import Body, frames, parse
from fenchel.common.wire.outline import outline
from fenchel.common.wire.payload import encode
from fenchel.common.wire.stream import Stream
from fenchel.common.wire.values import Value, Values
from fenchel.deploy.launch.in_process import run_in_process
from fenchel.deploy.launch.names import client_names
from fenchel.keys.shared import Secrets
from fenchel.proto import fenchel_pb2 as pb
from fenchel.testing import load_model

KEY_BITS = 512
"""Breakable, and fast."""

CIPHERTEXT_BYTES = 2 * KEY_BITS // 8

GRID = (2, 2)
"""Two sample groups, two feature groups: clients 0 and 2 hold the same samples, and so do 1 and 3."""

Tamper: TypeAlias = Callable[[str, dict[str, Value]], Values]
"""From the phase and what a client wanted to reply to what it replies."""


def hybrid_settings(
    rounds: int = 5,
    *,
    samples: int | None = 60,
    grid: tuple[int, int] = GRID,
    loss: str = "hinge",
    l2: float = 0.01,
    scale: Sequence[str] = ("standard", "unit-rows"),
    participation: Mapping[str, Any] | None = None,
    **algorithm: Any,
) -> RunSettings:
    """Return the settings of a run on part of the breast cancer data; its keywords are the algorithm's settings."""
    encryption = {"key_bits": KEY_BITS, **algorithm.pop("encryption", {})}
    return validate(
        {
            "name": "hybrid",
            "seed": 5,
            "rounds": rounds,
            "clients": grid[0] * grid[1],
            "data": {
                "name": "breast_cancer",
                "classes": ["malignant", "benign"],
                "scale": list(scale),
                "samples": samples,
                "partition": {"kind": "grid", "sample_groups": grid[0], "feature_groups": grid[1]},
            },
            "objective": {"kind": loss, "l2": l2},
            "algorithm": {"name": "hyfdca", "encryption": encryption, **algorithm},
            "participation": dict(participation or {}),
            "evaluation": {"server": False, "clients": False, "training": False},
        }
    )


def shards_of(settings: RunSettings) -> dict[str, Shard]:
    """Return what each client holds."""
    assert isinstance(settings.clients, int)
    local_data = LocalData()
    names = client_names(settings.clients)
    return {name: local_data.of(settings, place, len(names)).shard for place, name in enumerate(names)}


@dataclass(frozen=True)
class Message:
    """What one message held."""

    client: str
    upward: bool
    phase: str
    round: int
    values: Mapping[str, Value]


def split(vector: Ciphertexts) -> list[bytes]:
    """Return each ciphertext of a vector."""
    data, width = bytes(vector.data), vector.ciphertext_bytes
    return [data[start : start + width] for start in range(0, len(data), width)]


@dataclass
class Tap:
    """A client's stream, with an ear on it. A message fits one frame here."""

    inner: Stream
    client: str
    heard: list[Message]
    tamper: Tamper | None = None
    _phases: dict[int, tuple[str, int]] = field(default_factory=dict)

    async def read(self) -> bytes | None:
        frame = await self.inner.read()
        if frame is None:
            return None
        parsed = parse(frame)
        assert parsed.head is not None, "a message of several frames"
        if isinstance(parsed.head, pb.Instruction):
            head = parsed.head
            self._phases[head.sequence] = head.phase, head.round
            self._note(upward=False, sequence=head.sequence, payload=head.payload, chunk=parsed.chunk)
        return frame

    async def write(self, frame: bytes) -> None:
        parsed = parse(frame)
        assert parsed.head is not None, "a message of several frames"
        if not isinstance(parsed.head, pb.Reply):
            await self.inner.write(frame)
            return
        head = parsed.head
        if self.tamper is not None and not head.failure:
            values = self.tamper(self._phases[head.sequence][0], outline(head.payload, 1 << 40).decode(parsed.chunk))
            (frame,) = frames(pb.Reply(sequence=head.sequence), Body(encode(values)))
            parsed = parse(frame)
            assert isinstance(parsed.head, pb.Reply)
            head = parsed.head
        self._note(upward=True, sequence=head.sequence, payload=head.payload, chunk=parsed.chunk)
        await self.inner.write(frame)

    def _note(self, *, upward: bool, sequence: int, payload: pb.Payload, chunk: memoryview) -> None:
        phase, t = self._phases[sequence]
        self.heard.append(Message(self.client, upward, phase, t, outline(payload, 1 << 40).decode(bytes(chunk))))


@dataclass
class Run:
    """A run that is over, or was refused."""

    settings: RunSettings
    folder: RunFolder
    heard: list[Message] = field(default_factory=list)

    @property
    def model(self) -> Vector:
        return load_model(self.folder)

    def state(self, client: str) -> dict[str, Any]:
        """Return the last state that a client wrote into its journal."""
        entries = sorted((self.folder.journals / self.folder.id / client).glob("*.state"))
        values = store.read(entries[-1])
        return {name.removeprefix("state/"): value for name, value in values.items() if name.startswith("state/")}

    @property
    def clients(self) -> list[str]:
        assert isinstance(self.settings.clients, int)
        return client_names(self.settings.clients)

    @property
    def duals(self) -> dict[str, Vector]:
        """alpha_k of each client, in the order of its rows."""
        found: dict[str, Vector] = {}
        for client in self.clients:
            state = self.state(client)
            found[client] = np.empty(len(state["dual"]))
            found[client][state["order"]] = state["dual"]
        return found

    def up(self, phase: str | None = None) -> Iterator[Message]:
        """What clients sent."""
        return (each for each in self.heard if each.upward and phase in (None, each.phase))

    def down(self, phase: str | None = None) -> Iterator[Message]:
        """What the server sent."""
        return (each for each in self.heard if not each.upward and phase in (None, each.phase))


def distance(one: Mapping[str, Vector], other: Mapping[str, Vector]) -> float:
    """Return max |d alpha| over all clients and samples."""
    return max(float(np.abs(one[client] - other[client]).max()) for client in one)


@dataclass
class Laboratory:
    """Runs HyFDCA with the same secrets each time."""

    parent: Path
    secrets: Secrets

    def run(
        self, settings: RunSettings, *, tampers: Mapping[str, Tamper] | None = None, secrets: Secrets | None = None
    ) -> Run:
        """Do a run; a client may tamper with its replies."""
        run = Run(settings, RunFolder.create(self.parent, "run"))

        class Tapped(Worker):
            async def work(self, stream: Stream) -> pb.Farewell | None:
                name = self.session.client
                tap = Tap(stream, name, run.heard, (tampers or {}).get(name))
                return await super().work(tap)

        with patch("fenchel.deploy.launch.in_process.Worker", Tapped):
            asyncio.run(run_in_process(settings, run.folder, secrets=secrets or self.secrets))
        return run
