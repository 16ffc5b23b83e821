"""A federation in one process whose clients bring their own data, and some of whom come late."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from threadpoolctl import threadpool_limits

from fenchel.algorithms.registry import client_half, server_half
from fenchel.client.joining import Participant, session_of
from fenchel.client.local_data import OwnShard
from fenchel.client.trust_limits import TrustLimits
from fenchel.client.worker import Worker
from fenchel.common.arrays import Dense, Vector
from fenchel.common.data.shard import Shard
from fenchel.common.errors import JoinRefusedError
from fenchel.common.settings.run import RunSettings, validate
from fenchel.common.storage import store
from fenchel.common.storage.run_folder import RunFolder
from fenchel.common.storage.state import thaw
from fenchel.deploy.launch.in_process import MemoryStream
from fenchel.proto import fenchel_pb2 as pb
from fenchel.server import checkpoint as checkpoints
from fenchel.server.checkpoint import Checkpoint
from fenchel.server.coordinator import Coordinator, open_resumed
from fenchel.testing import load_model


@dataclass
class Federation:
    """Runs a federation to its end."""

    settings: RunSettings
    folder: RunFolder
    shards: Mapping[str, Shard]  # of the clients, by id
    late: Mapping[str, int] = field(default_factory=dict)
    """After which round a client comes; 0: after the algorithm's start. The next round waits until the client
    does, too; so it is in the fleet from there on, unless it is refused."""
    killed_in: set[int] = field(default_factory=set)
    """Rounds in which the server is killed; it is started again from its checkpoint, and the clients come back."""
    states: dict[int, Any] = field(default_factory=dict)
    refusals: dict[str, str] = field(default_factory=dict)
    farewells: dict[str, pb.Farewell] = field(default_factory=dict)
    _workers: dict[str, Worker] = field(default_factory=dict)
    _here: set[str] = field(default_factory=set)

    def run(self) -> Vector:
        """Return the final model."""
        self._here = set(self.shards) - set(self.late)
        resume: Checkpoint | None = None
        while not asyncio.run(self._life(resume)):
            resume = open_resumed(self.folder)
        return load_model(self.folder)

    async def _life(self, resume: Checkpoint | None) -> bool:
        """Let a server live until the run is over or it is killed; return whether it is over."""
        federation, death = self, asyncio.Event()
        clients: list[asyncio.Task[None]] = []
        half: Any = server_half(self.settings.algorithm.name)

        class Watched(half):  # type: ignore[misc]
            """The algorithm's own server half, with an eye on its state."""

            async def round(self, t: int) -> None:
                if t in federation.killed_in:
                    federation.killed_in.remove(t)
                    death.set()
                    await asyncio.Event().wait()
                await super().round(t)
                federation.states[t] = self.state
                await self._arrivals(t)

            async def _arrivals(self, t: int) -> None:
                for name, moment in federation.late.items():
                    if moment == t and name not in federation._here:
                        federation._here.add(name)
                        clients.append(asyncio.create_task(federation._client(coordinator, name)))
                        await federation._waits(coordinator, name)

        class Awaited(Watched):
            """For those who come right after the start: a half with a start of its own must have an admit."""

            async def start(self) -> None:
                await super().start()
                await self._arrivals(0)

        watched = Awaited if 0 in self.late.values() else Watched
        with pytest.MonkeyPatch.context() as patch, threadpool_limits(1):
            patch.setattr("fenchel.server.coordinator.server_half", lambda name: watched)
            coordinator = Coordinator(self.settings, self.folder, resume=resume)
            conducting = asyncio.create_task(coordinator.run())
            clients += [asyncio.create_task(self._client(coordinator, name)) for name in sorted(self._here)]
            dying = asyncio.create_task(death.wait())
            await asyncio.wait([conducting, dying], return_when=asyncio.FIRST_COMPLETED)
            if conducting.done():
                await asyncio.gather(*clients)
            for task in (dying, conducting, *clients):
                task.cancel()
            await asyncio.gather(dying, *clients, return_exceptions=True)
            with contextlib.suppress(asyncio.CancelledError):
                await conducting
        return not conducting.cancelled()

    async def _waits(self, coordinator: Coordinator, name: str) -> None:
        while name not in self.refusals and not any(
            each == name and late_joiner.streams
            for each, late_joiner in coordinator.admission._late_joiners._waiting.items()
        ):
            await asyncio.sleep(0)

    async def _client(self, coordinator: Coordinator, name: str) -> None:
        participant = Participant(
            name=name,
            local_data=OwnShard(self.shards[name]),
            state_folder=self.folder.journals,
            trust_limits=TrustLimits.agreeing_to(self.settings),
        )
        try:
            while name not in self.farewells:
                reply = await coordinator.admission.join(participant.request(name.encode()))
                stream = MemoryStream()
                serving = asyncio.create_task(_serve(coordinator, name, stream.other_side()))
                try:
                    if name not in self._workers:
                        self._workers[name] = Worker(session_of(participant, reply))
                    farewell = await self._workers[name].work(stream)
                finally:
                    serving.cancel()
                    await asyncio.gather(serving, return_exceptions=True)
                if farewell is not None:
                    self.farewells[name] = farewell
        except JoinRefusedError as error:
            self.refusals[name] = str(error)

    # What is left of it

    def client_states(self, name: str) -> Dense:
        """A part of every client's state, as it counts; shape (clients, ...)."""
        states, kind = [], client_half(self.settings.algorithm.name).State
        for client, member in checkpoints.load(self.folder.checkpoint).members.items():
            file = self.folder.journals / self.folder.id / client / f"{member['base']:020d}.state"
            written = {key: value for key, value in store.read(file).items() if not key.startswith("reply/")}
            states.append(getattr(thaw(kind, written), name))
        return np.array(states)

    @property
    def fleet_sizes(self) -> list[int]:
        """How many clients there were in each round."""
        return [int(size) for size in pq.read_table(self.folder.metrics)["clients"].to_pylist()]

    @property
    def calls(self) -> list[dict[str, Any]]:
        """A row an instruction."""
        rows: list[dict[str, Any]] = pq.read_table(self.folder.calls).to_pylist()
        return rows


async def _serve(coordinator: Coordinator, name: str, stream: MemoryStream) -> None:
    try:
        await coordinator.admission.work(name, name.encode(), stream)
    finally:
        stream.outgoing.put_nowait(None)


def federation(
    parent: Path, shards: Mapping[str, Shard], late: Mapping[str, int], algorithm: Mapping[str, Any], **sections: Any
) -> Federation:
    """Make a federation whose run admits those who come late."""
    basis: dict[str, Any] = {
        "name": "late",
        "seed": 3,
        "rounds": 8,
        "clients": len(shards) - len(late),
        "data": {"name": "own", "classes": [0, 1, 2]},
        "objective": {"kind": "softmax", "l2": 0.1},
        "algorithm": dict(algorithm),
        "evaluation": {"server": False, "clients": False},
        "participation": {},
    }
    values = basis | sections
    values["participation"] = {"late_joiners": "admit", **values["participation"]}
    return Federation(validate(values), RunFolder.create(parent, "run"), shards, late)
