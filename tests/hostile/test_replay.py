"""Frames that were recorded are sent again: none of them counts a second time, and no bit of the model changes.

The network itself repeats and reorders nothing: TCP numbers its bytes, and TLS its records. So whoever sends
a frame again is the client itself, or somebody who has its certificate; and to whoever has not, bytes of a
TLS connection are of no use in another one.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from fenchel.client.client_process import host
from fenchel.client.joining import Participant
from fenchel.client.local_data import LocalData
from fenchel.client.trust_limits import TrustLimits
from fenchel.client.worker import Worker
from fenchel.common.errors import JoinRefusedError, LostStateError
from fenchel.common.settings.run import RunSettings, validate
from fenchel.common.storage.run_folder import RunFolder
from fenchel.common.tls.credentials import Credentials
from fenchel.common.wire.frames import parse
from fenchel.common.wire.stream import Stream
from fenchel.deploy.certificates.making import make_all
from fenchel.deploy.launch.in_process import MemoryStream
from fenchel.deploy.launch.names import client_names
from fenchel.fleet.metering.limits import Limits
from fenchel.proto import fenchel_pb2 as pb
from fenchel.server.coordinator import Coordinator
from fenchel.server.transport.service import serve
from fenchel.testing import Faults, Federation, load_model
from tests.cluster.ledger import Ledger
from tests.hostile.relay import relaying
from tests.messages import raises

PARROT = "client-001"
LEDGER = f"{Ledger.__module__}:{Ledger.__name__}"  # one reply that counts twice, and the model is another one
ROUNDS = 12
PATIENCE = 60.0


@pytest.fixture(scope="module")
def settings() -> RunSettings:
    return validate(
        {
            "name": "replay",
            "seed": 11,
            "rounds": ROUNDS,
            "clients": 3,
            "data": {"name": "digits", "samples": 120},
            "objective": {"kind": "softmax"},
            "algorithm": {"name": LEDGER},
            "evaluation": {"server": False, "clients": False},
        }
    )


@pytest.fixture(scope="module")
def undisturbed(settings: RunSettings, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    folder = RunFolder.create(tmp_path_factory.mktemp("undisturbed"), "undisturbed")
    return Federation(settings, folder).run().tobytes()


@dataclass
class Recording:
    """What one client has sent."""

    stream: list[bytes] = field(default_factory=list)  # all frames of its first stream
    replies: list[bytes] = field(default_factory=list)  # of all streams, of a frame each
    repeated: int = 0  # how many of them were sent again


@dataclass
class Repeating:
    """A client's side of a stream, on which replies are sent again: those of earlier streams, and each new one."""

    inner: Stream
    recording: Recording
    first: bool

    async def read(self) -> bytes | None:
        return await self.inner.read()

    async def write(self, frame: bytes) -> None:
        await self.inner.write(frame)
        if self.first:
            self.recording.stream.append(frame)
        if isinstance(parse(frame).head, pb.Reply):
            self.recording.replies.append(frame)
            again = [frame, *self.recording.replies[-4:]]  # at once, and in another order than the first time
        else:
            again = list(self.recording.replies)  # the hello of another stream
        for each in again:
            await self.inner.write(each)
            self.recording.repeated += 1


@dataclass
class Parrot:
    """A worker that repeats itself."""

    worker: Worker
    recording: Recording
    streams: int = 0

    async def work(self, stream: Stream) -> pb.Farewell | None:
        self.streams += 1
        return await self.worker.work(Repeating(stream, self.recording, self.streams == 1))


@dataclass
class Parroted(Federation):
    """A federation one of whose clients repeats itself."""

    recording: Recording = field(default_factory=Recording)
    parrot: Parrot | None = None

    async def _joined(self, coordinator: Coordinator, name: str) -> Worker:
        worker = await super()._joined(coordinator, name)
        if name != PARROT:
            return worker
        if self.parrot is None or self.parrot.worker is not worker:
            streams = 0 if self.parrot is None else self.parrot.streams
            self.parrot = Parrot(worker, self.recording, streams)
        return self.parrot  # type: ignore[return-value]


def outcomes(folder: RunFolder) -> list[tuple[Any, ...]]:
    """Return what became of every question, which must be there once."""
    calls = pq.read_table(folder.calls)
    asked = [row for row in calls.to_pylist() if row["kind"] == "ask"]
    return [(row["client"], row["round"], row["phase"], row["outcome"]) for row in asked]


def discarded(caplog: pytest.LogCaptureFixture) -> int:
    """Return how many replies the server has discarded, none of which was late."""
    words = f"client {PARROT}: a reply that was refused, or that no open request awaits, is discarded"
    return sum(record.getMessage() == words for record in caplog.records)


@pytest.mark.parametrize("breaks", [0, 3], ids=["on the same stream", "on new streams"])
def test_a_reply_that_counted_is_sent_again_and_counts_once(
    breaks: int, settings: RunSettings, undisturbed: bytes, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    faults = Faults(random.Random(5), breaks=breaks, frames=8)
    federation = Parroted(settings, RunFolder.create(tmp_path, "parroted"), faults)
    with caplog.at_level(logging.INFO, logger="fenchel.server"):
        assert federation.run().tobytes() == undisturbed
    recording = federation.recording
    assert recording.repeated > 2 * ROUNDS
    assert discarded(caplog) > (ROUNDS if breaks else 0.9 * recording.repeated)
    told = outcomes(federation.folder)
    assert len(told) == len(set(told)), "each question has one row"
    assert {outcome for *_, outcome in told} == {"counted"}


@dataclass
class Repeated(Federation):
    """A federation in which a recorded stream of a client is opened once more, by somebody with its certificate."""

    recording: Recording = field(default_factory=Recording)
    instance: bytes = PARROT.encode()
    refused: str = ""

    async def _client(self, coordinator: Coordinator, name: str, death: asyncio.Event) -> None:
        if name != PARROT:
            await super()._client(coordinator, name, death)
            return
        repeating = asyncio.create_task(self._repeat(coordinator))
        await super()._client(coordinator, name, death)
        await repeating

    async def _repeat(self, coordinator: Coordinator) -> None:
        while PARROT not in coordinator.admission.members or not coordinator.admission.members[PARROT].base:
            await asyncio.sleep(0)
        pair = MemoryStream(outgoing=asyncio.Queue())
        for frame in self.recording.stream:
            await pair.write(frame)
        pair.outgoing.put_nowait(None)
        try:
            await coordinator.admission.work(PARROT, self.instance, pair.other_side())
        except JoinRefusedError as error:
            self.refused = str(error)


def recorded(settings: RunSettings, parent: Path) -> Recording:
    federation = Parroted(settings, RunFolder.create(parent, "recorded"))
    federation.run()
    assert isinstance(parse(federation.recording.stream[0]).head, pb.Hello)
    return federation.recording


def test_a_whole_stream_is_sent_again_and_stops_the_run_before_anything_of_it_counts(
    settings: RunSettings, undisturbed: bytes, tmp_path: Path
) -> None:
    """Its hello says that the client knows nothing of this run; only the client itself can say so on purpose."""
    recording = recorded(settings, tmp_path)
    folder = RunFolder.create(tmp_path, "again")
    with raises(LostStateError, client="client-001"):
        Repeated(settings, folder, recording=recording).run()
    assert Federation(settings, folder).run(resume=True).tobytes() == undisturbed


def test_a_stream_of_another_run_is_refused(settings: RunSettings, undisturbed: bytes, tmp_path: Path) -> None:
    recording = recorded(settings, tmp_path)
    federation = Repeated(
        settings, RunFolder.create(tmp_path, "another"), recording=recording, instance=b"of another run"
    )
    assert federation.run().tobytes() == undisturbed
    assert "has not joined this run" in federation.refused


async def sent_again(port: int, data: bytes) -> None:
    """Send bytes on a connection of their own, and wait until the server ends it."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        with contextlib.suppress(ConnectionError):
            writer.write(data)
            while await reader.read(1 << 16):
                pass
    finally:
        writer.transport.abort()


async def over_tls(
    settings: RunSettings, folder: RunFolder, certificates: Path, recorded: bytes = b""
) -> tuple[bytes, int]:
    """Let a run take place in which recorded bytes are sent again, its own if none are given; return what the parrot
    has sent, and how many streams of it the server had."""
    folder.settings.write_text(settings.to_yaml())
    coordinator = Coordinator(settings, folder, limits=Limits(unsolicited_per_second=10_000.0))
    listening: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    own = Credentials.load(certificates / "server")
    serving = asyncio.create_task(serve(coordinator, "127.0.0.1:0", own, listening.set_result))
    async with relaying(await listening) as relay:
        ports = {PARROT: relay.port}
        participants = [
            Participant(
                name=name,
                server=f"localhost:{ports.get(name, relay.server)}",
                credentials=Credentials.load(certificates / name),
                local_data=LocalData(),
                trust_limits=TrustLimits(code=[LEDGER]),
            )
            for name in client_names(3)
        ]
        working = asyncio.create_task(host(participants, on_event=lambda words: None))
        try:
            async with asyncio.timeout(PATIENCE):
                while PARROT not in coordinator.admission.members or coordinator.admission.members[PARROT].base < 4:
                    await asyncio.sleep(0.01)
                await sent_again(relay.server, recorded or bytes(relay.up[0]))
                assert not serving.done(), "the run went on meanwhile"
                assert all(farewell.completed for farewell in await working)
                assert (await serving).completed
        finally:
            for task in (working, serving):
                task.cancel()
            await asyncio.gather(working, serving, return_exceptions=True)
    return bytes(relay.up[0]), coordinator.admission.members[PARROT].streams


@pytest.mark.slow  # make test-all
def test_bytes_of_a_connection_are_of_no_use_in_another_one_nor_in_another_run(
    settings: RunSettings, undisturbed: bytes, tmp_path: Path
) -> None:
    make_all(tmp_path / "certs", ["localhost"], client_names(3))
    slow = settings.model_copy(update={"algorithm": settings.algorithm.model_copy(update={"nap": 0.03})})
    sent = b""
    for name in ("run", "another-run"):
        folder = RunFolder.create(tmp_path, name)
        sent, streams = asyncio.run(over_tls(slow, folder, tmp_path / "certs", sent))
        assert len(sent) > 4 * 640 * 8, "there was something to send again"
        assert streams == 1
        assert load_model(folder).tobytes() == undisturbed
