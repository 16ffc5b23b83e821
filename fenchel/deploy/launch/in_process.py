"""A whole federation in one process, without a network.

Everything but gRPC is what runs between processes: every message is encoded, cut into frames, checked and
decoded. Tests of algorithms use it, and notebooks.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from fenchel.client.joining import Participant, session_of
from fenchel.client.local_data import DataProvider, LocalData, OwnFile, OwnShard
from fenchel.client.trust_limits import TrustLimits
from fenchel.client.worker import Worker
from fenchel.common.data.shard import Shard
from fenchel.common.errors import SettingsError
from fenchel.common.settings.run import RunSettings
from fenchel.common.storage.run_folder import RunFolder
from fenchel.common.storage.store import write_text
from fenchel.deploy.certificates.keys import CLIENTS, make_keys
from fenchel.deploy.launch.given_data import OwnFiles
from fenchel.deploy.launch.names import client_names
from fenchel.keys.shared import Secrets
from fenchel.server.checkpoint import Checkpoint
from fenchel.server.coordinator import Coordinator
from fenchel.server.telemetry.observer import Observer
from fenchel.server.telemetry.summary import Summary

_QUEUE_FRAMES = 4  # capacity of each queue in frames, which provides back-pressure like a flow-control window


@dataclass
class MemoryStream:
    """One side of a pair of connected streams."""

    incoming: asyncio.Queue[bytes | None] = field(default_factory=lambda: asyncio.Queue(_QUEUE_FRAMES))
    outgoing: asyncio.Queue[bytes | None] = field(default_factory=lambda: asyncio.Queue(_QUEUE_FRAMES))

    def other_side(self) -> MemoryStream:
        """Return the stream that reads what this one writes."""
        return MemoryStream(self.outgoing, self.incoming)

    async def read(self) -> bytes | None:
        """Return the next frame, or ``None`` when the other side has closed."""
        return await self.incoming.get()

    async def write(self, frame: bytes) -> None:
        """Send one frame."""
        await self.outgoing.put(frame)


async def run_in_process(
    settings: RunSettings,
    folder: RunFolder,
    *,
    clients: int | None = None,
    resume: Checkpoint | None = None,
    observer: Observer | None = None,
    secrets: Secrets | None = None,
    own: OwnFiles | Sequence[Shard] | None = None,
) -> Summary:
    """Run a federation on the event loop of the caller.

    Parameters
    ----------
    folder
        Where the run is kept.
    clients
        Number of clients where the settings leave it open.
    own
        What each client brings, where the settings do not say it (``data.name: own``).
    secrets
        What the clients share, if the algorithm needs it. By default it is made, and kept beside the journals until the
        run is complete.
    """
    _require_one_process(settings)
    # Late import, because importing threadpoolctl changes the environment of the process.
    from threadpoolctl import threadpool_limits

    number = settings.clients if isinstance(settings.clients, int) else clients or 1
    write_text(folder.settings, settings.to_yaml(), sync=settings.checkpoint.sync)
    keys = folder.journals / "keys"
    coordinator = Coordinator(settings, folder, resume=resume, observer=observer)
    if secrets is None:
        secrets = _secrets(settings, keys, fresh=resume is None)
    if secrets is not None and settings.algorithm.key_bits is not None:
        coordinator.require_key(secrets.private_key.public)
    participants = [
        Participant(
            name=name,
            local_data=local_data,
            state_folder=folder.journals,
            trust_limits=TrustLimits.agreeing_to(settings),
            secrets=secrets,
        )
        for name, local_data in zip(client_names(number), providers(settings, number, own), strict=True)
    ]
    try:
        # As in client processes, one thread for linear algebra makes sums independent of the number of cores.
        with threadpool_limits(1):
            async with asyncio.TaskGroup() as tasks:
                for participant in participants:
                    tasks.create_task(_client(coordinator, participant))
                conducting = tasks.create_task(coordinator.conduct())
    except BaseExceptionGroup as group:
        raise _first(group) from None
    shutil.rmtree(keys, ignore_errors=True)  # a complete run needs no keys
    return conducting.result()


@dataclass
class OneProcess:
    """A federation within this process, with what commands use of a :class:`~.deployment.Deployment`.

    Parameters
    ----------
    clients
        Number of clients.
    resume
        Where the run goes on from.
    own
        Data file of each client, where clients bring them.
    """

    settings: RunSettings
    folder: RunFolder
    clients: int
    resume: Checkpoint | None = None
    own: OwnFiles | None = None
    observer: Observer | None = None
    say: Callable[[str], None] = lambda words: None
    launcher: ClassVar[None] = None

    def check(self) -> None:
        """Refuse settings that this process cannot do."""
        _require_one_process(self.settings)
        if self.own is not None:
            self.own.require(self.settings, self.clients)
        elif self.settings.own_data:
            raise SettingsError(
                "own means that clients bring their files; name one for each with --data", key="data.name"
            )

    def plan(self) -> Iterator[str]:
        """Yield what would be started."""
        yield f"{self.clients} clients in this process"

    async def run(self) -> Summary:
        """Do the run."""
        self.check()
        return await run_in_process(
            self.settings, self.folder, clients=self.clients, resume=self.resume, observer=self.observer, own=self.own
        )


def _require_one_process(settings: RunSettings) -> None:
    """Refuse settings that need processes of their own."""
    if settings.links is not None:
        raise SettingsError(
            "in one process there is no network between the clients and the server; leave links out, or let clients "
            "have processes of their own",
            key="links",
        )
    if settings.seals_secrets:
        raise SettingsError(
            "sealed needs certificates, which clients in one process do not have; use "
            "secrets.source: file, or let clients have processes of their own",
            key="secrets.source",
        )


def _secrets(settings: RunSettings, keys: Path, *, fresh: bool) -> Secrets | None:
    """Return what the clients share, if the algorithm needs it: made now, or by the run that is resumed."""
    bits = settings.algorithm.key_bits
    if bits is None:
        return None
    if fresh:
        make_keys(keys, bits, settings.algorithm.encryption_implementation)
    return Secrets.load(keys / CLIENTS)


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return the first error of a group, as separate processes would have shown it."""
    error = group.exceptions[0]
    return _first(error) if isinstance(error, BaseExceptionGroup) else error


def providers(settings: RunSettings, clients: int, own: OwnFiles | Sequence[Shard] | None) -> Sequence[DataProvider]:
    """Return where the data of each client comes from.

    Parameters
    ----------
    own
        What each client brings; ``None``: what the settings say.
    """
    if own is None:
        return [LocalData()] * clients  # one shared provider, which loads each data set only once
    if isinstance(own, OwnFiles):
        own.require(settings, clients)
        return [OwnFile(path, own.label, own.identifier) for path in own.paths]
    return [OwnShard(shard) for shard in own]


async def _client(coordinator: Coordinator, participant: Participant) -> None:
    name = participant.name
    while True:
        reply = await coordinator.admission.join(participant.request(name.encode()))
        if reply.HasField("assignment"):
            break
    stream = MemoryStream()
    serving = asyncio.create_task(_serve(coordinator, name, stream.other_side()))
    try:
        await Worker(session_of(participant, reply)).work(stream)
    finally:
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)


async def _serve(coordinator: Coordinator, name: str, stream: MemoryStream) -> None:
    try:
        await coordinator.admission.work(name, name.encode(), stream)
    finally:
        stream.outgoing.put_nowait(None)
