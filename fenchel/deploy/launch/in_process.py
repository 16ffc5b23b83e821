"""Federation in one process, without a network, for notebooks and tests of algorithms.

Except for gRPC, the code is the same as between processes: every message is encoded, divided into frames, checked and
decoded.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from fenchel.client.joining import Participant, session_of
from fenchel.client.local_data import DataProvider, LocalData, OwnFile, OwnShard
from fenchel.client.trust_limits import TrustLimits
from fenchel.client.worker import Worker
from fenchel.common.data.shard import Shard
from fenchel.common.environment import one_thread
from fenchel.common.errors import JoinRefusedError, SettingsError
from fenchel.common.settings.run import RunSettings
from fenchel.common.slots import SlotExecutor
from fenchel.common.storage.run_folder import IN_ONE_PROCESS, RunFolder
from fenchel.common.storage.store import write_text
from fenchel.deploy.certificates.keys import CLIENTS, make_keys
from fenchel.deploy.launch.given_data import OwnFiles, check_own
from fenchel.deploy.launch.names import client_names
from fenchel.keys.shared import Secrets
from fenchel.server.checkpoint import Checkpoint
from fenchel.server.coordinator import Coordinator
from fenchel.server.telemetry.observer import Observer
from fenchel.server.telemetry.summary import Summary

_log = logging.getLogger(__name__)
_QUEUE_FRAMES = 4  # capacity of each queue in frames, which provides back-pressure like a flow-control window


@dataclass
class MemoryStream:
    """One end of a pair of connected in-memory streams."""

    incoming: asyncio.Queue[bytes | None] = field(default_factory=lambda: asyncio.Queue(_QUEUE_FRAMES))
    outgoing: asyncio.Queue[bytes | None] = field(default_factory=lambda: asyncio.Queue(_QUEUE_FRAMES))

    def other_side(self) -> MemoryStream:
        """Return the opposite end, which reads the frames written to this end."""
        return MemoryStream(self.outgoing, self.incoming)

    async def read(self) -> bytes | None:
        """Return the next frame, or ``None`` after the peer has closed the stream."""
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
        Run folder.
    clients
        Number of clients if the settings leave the number open.
    own
        Local data of each client for the setting ``data.name: own``.
    secrets
        Secrets that the clients share, if the algorithm needs secrets. By default they are generated, and stored with
        the journals until the run is complete. A resumed run reads them there.

    Raises
    ------
    SettingsError
        If the settings require separate client processes.
    """
    _require_one_process(settings)
    settings = settings.anchored()
    number = settings.clients if isinstance(settings.clients, int) else clients or 1
    write_text(folder.settings, settings.to_yaml(), sync=settings.checkpoint.sync)
    _log.info(IN_ONE_PROCESS)
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
    # Clients encrypt together in an executor. Without encryption, they compute on the event loop in turn.
    encrypting = nullcontext() if settings.algorithm.key_bits is None else SlotExecutor(1, number)
    completed = False
    try:
        with one_thread(), encrypting as executor:
            async with asyncio.TaskGroup() as tasks:
                conducting = tasks.create_task(coordinator.run())
                for participant in participants:
                    tasks.create_task(_client(coordinator, conducting, participant, executor))
            await coordinator.farewells()
        completed = True
        return conducting.result()
    except BaseExceptionGroup as group:
        raise _first(group) from None
    finally:
        if completed or not folder.can_be_resumed:
            shutil.rmtree(keys, ignore_errors=True)  # without a run to resume, the keys are useless


@dataclass
class OneProcess:
    """Federation within this process, with those methods of :class:`~.deployment.Deployment` that commands call.

    Parameters
    ----------
    clients
        Number of clients.
    resume
        Checkpoint from which the run is resumed.
    own
        Data file of each client, if clients bring their own data.
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
        """Raise a SettingsError for settings that one process cannot fulfil."""
        _require_one_process(self.settings)
        check_own(self.own, self.settings, self.clients)

    def plan(self) -> Iterator[str]:
        """Yield a description of what the run would start."""
        yield f"{self.clients} clients in this process"

    async def run(self) -> Summary:
        """Execute the run, and return its summary."""
        return await run_in_process(
            self.settings, self.folder, clients=self.clients, resume=self.resume, observer=self.observer, own=self.own
        )


def _require_one_process(settings: RunSettings) -> None:
    """Raise a SettingsError for settings that require separate client processes."""
    if settings.links is not None:
        raise SettingsError(
            "clients in one process have no network to emulate links on; leave links out, or give the clients "
            "processes of their own",
            key="links",
        )
    if settings.seals_secrets:
        raise SettingsError(
            "sealed needs certificates, which clients in one process do not have; use secrets.source: file, or "
            "give the clients processes of their own",
            key="secrets.source",
        )


def _secrets(settings: RunSettings, keys: Path, *, fresh: bool) -> Secrets | None:
    """Return the clients' shared secrets, new or of the resumed run; ``None`` if the algorithm needs no secrets."""
    bits = settings.algorithm.key_bits
    if bits is None:
        return None
    if fresh:
        make_keys(keys, bits, settings.algorithm.encryption_implementation)
    return Secrets.load(keys / CLIENTS)


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return the first error of a group, which is the error that separate processes would raise."""
    error = group.exceptions[0]
    return _first(error) if isinstance(error, BaseExceptionGroup) else error


def providers(settings: RunSettings, clients: int, own: OwnFiles | Sequence[Shard] | None) -> Sequence[DataProvider]:
    """Return the data provider of each client.

    Parameters
    ----------
    own
        Local data of each client; ``None`` for the data in the settings.
    """
    if own is None:
        return [LocalData()] * clients  # one shared provider, which loads each data set only once
    if isinstance(own, OwnFiles):
        own.require(settings, clients)
        return [OwnFile(path, own.label, own.identifier) for path in own.paths]
    return [OwnShard(shard) for shard in own]


async def _client(
    coordinator: Coordinator, conducting: asyncio.Task[Summary], participant: Participant, executor: SlotExecutor | None
) -> None:
    try:
        await _take_part(coordinator, participant, executor)
    except JoinRefusedError as error:
        if coordinator.admission.is_over:  # the client was refused because the run failed: raise the run's error
            await conducting
        if not coordinator.admission.goes_on_without(participant.name):
            coordinator.stop_because_of(error, [participant.name])
            raise
    except Exception as error:  # the task group now cancels the run
        coordinator.stop_because_of(error, [participant.name])
        raise


async def _take_part(coordinator: Coordinator, participant: Participant, executor: SlotExecutor | None) -> None:
    name = participant.name
    while True:
        reply = await coordinator.admission.join(participant.request(name.encode()))
        if reply.HasField("assignment"):
            break
    stream = MemoryStream()
    serving = asyncio.create_task(_serve(coordinator, name, stream.other_side()))
    try:
        await Worker(session_of(participant, reply), executor).work(stream)
    finally:
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)


async def _serve(coordinator: Coordinator, name: str, stream: MemoryStream) -> None:
    try:
        await coordinator.admission.work(name, name.encode(), stream)
    finally:
        stream.outgoing.put_nowait(None)
