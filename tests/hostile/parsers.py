"""Everything that parses bytes, as targets for fuzzing: good inputs, and what may come of bad ones."""

from __future__ import annotations

import asyncio
import atexit
import base64
import bz2
import contextlib
import gzip
import io
import json
import logging
import lzma
import random
import socket
import struct
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet as pq
import yaml
from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from google.protobuf.json_format import MessageToDict, ParseDict
from google.protobuf.message import DecodeError, Message

from fenchel.algorithms.registry import require_allowed
from fenchel.client.journal import Journal
from fenchel.client.privacy.ledger import Ledger
from fenchel.client.privacy.ledger_file import _chained, _line
from fenchel.client.privacy.policy import load_policy
from fenchel.client.privacy.randomness import SECRET, SECRET_BYTES, PrivateRandomness
from fenchel.client.session import ClientData, Session
from fenchel.client.worker import Worker
from fenchel.common.accounting.accountant import Release
from fenchel.common.crypto.ciphertexts import Ciphertexts
from fenchel.common.crypto.packing import Layout
from fenchel.common.crypto.public_key import PublicKey
from fenchel.common.crypto.residues.gmp import GmpResidues
from fenchel.common.crypto.vector import CipherVector
from fenchel.common.data.files import read_file, read_files
from fenchel.common.data.identifiers import of_lines
from fenchel.common.data.readers import read_cifar_differences, read_mammography
from fenchel.common.data.shard import Shard
from fenchel.common.errors import (
    CheckpointError,
    CredentialError,
    DataError,
    EncryptionError,
    FenchelError,
    JoinRefusedError,
    LostStateError,
    PayloadError,
    RevokedError,
    SettingsError,
    WireError,
)
from fenchel.common.objectives.factory import initial_model
from fenchel.common.settings.link import parse_link
from fenchel.common.settings.run import from_json, load, outside_code, raw, validate
from fenchel.common.settings.solver import parse_solver
from fenchel.common.settings.tuning import load_tuning
from fenchel.common.storage import store, tables
from fenchel.common.storage.run_folder import RunFolder
from fenchel.common.storage.state import freeze
from fenchel.common.tls.credentials import AUTHORITY, CERTIFICATE, KEY, Credentials
from fenchel.common.tls.revocation import REVOKED, Revocations, read_revoked
from fenchel.common.version import PROTOCOL
from fenchel.common.wire import index_sets
from fenchel.common.wire.frames import Body, frames, parse
from fenchel.common.wire.index_sets import seeded_support
from fenchel.common.wire.outline import outline
from fenchel.common.wire.payload import encode
from fenchel.common.wire.phases import OFFER
from fenchel.common.wire.reader import SMALLEST_PIECE, Assembly, HeadT, IncomingMessage, MessageReader
from fenchel.common.wire.schema import ArraySpec, CipherSpec, Expectation, NumberSpec, check
from fenchel.common.wire.values import SparseVector, Values
from fenchel.deploy.address import Address
from fenchel.deploy.certificates.authority import AUTHORITY_KEY, subject
from fenchel.deploy.certificates.description import common_name, describe
from fenchel.deploy.certificates.issued import ISSUED, issued
from fenchel.deploy.certificates.making import make_all
from fenchel.deploy.certificates.pairs import check_pair
from fenchel.deploy.certificates.revocation import revoke
from fenchel.deploy.cli.energy import _devices as read_devices
from fenchel.deploy.invitations.invitation import Invitation
from fenchel.deploy.invitations.signing import requested_key
from fenchel.deploy.launch.bundle import ReceivedBundle
from fenchel.deploy.monitoring.exporters import MonitoringOptions, watching
from fenchel.fleet.client_record import ClientRecord
from fenchel.fleet.collectors import GatherCollector
from fenchel.fleet.metering.limits import Limits
from fenchel.fleet.request import Request
from fenchel.keys.identity import Identity
from fenchel.keys.sealing import seal, unseal
from fenchel.keys.secret_exchange import SecretExchange
from fenchel.keys.shared import Secrets
from fenchel.proto import fenchel_pb2 as pb
from fenchel.report.disclosures import disclosure_rows, exporter_rows, head_rows, load_disclosures, noise_rows
from fenchel.report.run import Run
from fenchel.server import checkpoint
from fenchel.server.coordinator import Coordinator
from fenchel.server.disclosure.exporters import ExporterEntry
from fenchel.server.disclosure.record import DisclosureRecord
from fenchel.server.membership.registration import Registration
from fenchel.server.stream.client_stream import ClientStream
from fenchel.server.transport.interceptor import RefusedError
from fenchel.server.transport.service import Service
from tests.hostile.mutation import BOMB, damaged, disturbed, rearranged
from tests.hostile.named_sets import named_sets, several
from tests.hostile.parser import Parser, void
from tests.reservations import roomy

LIMIT = 1 << 16
"""The largest message that the targets accept."""


def parsers(folder: Path, loop: asyncio.AbstractEventLoop) -> list[Parser]:
    """Return all targets; files are made in a folder of which nothing else is in need, and calls run on a loop."""
    logging.getLogger("fenchel").addHandler(logging.NullHandler())
    logging.getLogger("fenchel").propagate = False
    return [*_wire(folder, loop), *_settings(folder), *_data(folder), *_credentials(folder), *_state(folder)]


def reading(path: Path, read: Callable[[Path], object]) -> Callable[[bytes], None]:
    """Return what reads bytes from a file."""

    def parse(data: bytes) -> None:
        path.write_bytes(data)
        void(read(path))

    return parse


# What comes over the network

KEY_PAIR = PublicKey((2**89 - 1) * (2**107 - 1))
LAYOUT = Layout(slot_bits=40, fraction_bits=20, slots=4, value_bits=30)
ENCRYPTED = CipherVector(
    KEY_PAIR, LAYOUT, 6, 2, GmpResidues.of(KEY_PAIR, [KEY_PAIR.n_squared - 1, KEY_PAIR.n_squared // 3])
)
PAYLOAD: Values = {
    "model": np.arange(4.0),
    "flags": np.array([True, False]),
    "counts": np.arange(3),
    "thin": SparseVector(np.array([1, 300]), np.ones(2), 1000),
    "list": SparseVector(np.array([1, 40_000]), np.ones(2), 50_000),
    "bitmap": SparseVector(np.arange(0, 60, 2), np.ones(30, np.float16), 61),
    "seeded": SparseVector(seeded_support(9, 2000, 40), np.ones(40, np.uint8), 2000, 9),
    "every": SparseVector(np.arange(7), np.zeros(7, np.float32), 7),
    "samples": 3,
    "loss": 0.25,
    "done": True,
    "word": "é",
    "dual": ENCRYPTED.to_wire(),
}
KINDS = (np.ndarray, SparseVector)
ASKED: Expectation = {"model": ArraySpec(np.float64, (4,), KINDS), "samples": NumberSpec(int, 1), "loss": float}


def _message(head: pb.Reply | pb.Instruction, values: Values) -> bytes:
    return b"".join(frames(head, Body(encode(values))))


def _wire(folder: Path, loop: asyncio.AbstractEventLoop) -> Iterator[Parser]:
    each = tuple(_message(pb.Reply(sequence=1), {name: value}) for name, value in PAYLOAD.items())
    whole = _message(pb.Reply(sequence=3, timing=pb.Timing(compute_ns=5)), PAYLOAD)
    asked = _message(pb.Instruction(phase="train", round=2, sequence=4, base=3, kind=pb.ASK), PAYLOAD)
    heads = (
        pb.Hello(shard=pb.ShardDescription(samples=3, features=2, classes=2), snapshots=[1, 2]),
        pb.Welcome(partial=pb.Partial(sequence=1, received=9)),
        pb.Farewell(completed=True, reason="done"),
    )
    opening = tuple(next(frames(head)) for head in heads)
    yield Parser("frames", (whole, asked, *opening), _read_frame, (WireError,), 220)
    yield Parser("messages", (whole, asked, *each), _read_message, (WireError, EncryptionError), 200)
    yield Parser("descriptors", (whole, asked, *each), _read_message, (WireError,), 180, change=_changed_descriptor)
    yield Parser("broken streams", tuple(_broken()), lambda data: loop.run_until_complete(_read_on(data)),
                 (WireError,), 60)  # fmt: skip
    yield Parser("supports", tuple(_supports()), _read_support, (PayloadError,), 120)
    wire = bytes(ENCRYPTED.to_wire().data)
    yield Parser("ciphertexts", (struct.pack("<BB", 6, 2) + wire,), _read_ciphertexts, (PayloadError,), 80)
    rate_limiter = _Gate(folder, loop)
    requests = (
        b"J" + pb.JoinRequest(protocol=PROTOCOL, client="a", instance=b"i" * 16, own_data=True).SerializeToString(),
        b"P" + pb.ProbeRequest(payload=b"echo", reply_bytes=9).SerializeToString(),
        b"H" + heads[0].SerializeToString(),
    )
    yield Parser("requests", requests, rate_limiter.read, (JoinRefusedError, WireError), 40, change=_changed_request)
    told = _streamed(*opening[:1], _message(pb.Reply(sequence=1), {"model": np.ones(4), "samples": 1, "loss": 0.0}))
    long = frames(pb.Reply(sequence=1), Body(encode({"model": np.ones(9), "loss": 0.0})), 0)
    yield Parser("server streams", (told, _streamed(opening[0], *long), _streamed(opening[0], whole)),
                 rate_limiter.converse, (WireError,), 40)  # fmt: skip
    work = _Work(loop)
    train = pb.Instruction(phase="train", round=1, sequence=1, kind=pb.ASK)
    evaluate = pb.Instruction(phase="evaluate", round=1, sequence=2, kind=pb.INSPECT)
    model = {"model": np.zeros(2)}
    session = _streamed(opening[1], _message(train, model), _message(evaluate, model), opening[2])
    yield Parser("client streams", (session,), work.read, (WireError, JoinRefusedError), 30)
    page = _Page(folder / "watched")
    yield Parser("web requests", page.requests, page.read, (_TurnedAwayError,), 10)


def _read_frame(data: bytes) -> None:
    frame = parse(data)
    if isinstance(frame.head, pb.Reply | pb.Instruction):
        outline(frame.head.payload, LIMIT).float_spans()


def _read_message(data: bytes) -> None:
    """Do with a message what either side does with it."""
    frame = parse(data)
    if not isinstance(frame.head, pb.Reply | pb.Instruction):
        return
    told = outline(frame.head.payload, LIMIT, longest=LIMIT)
    assembly = Assembly(told.size, spans=told.float_spans())
    assembly.add(frame.chunk)
    if not assembly.complete:
        return
    values = told.decode(assembly.body())
    for name, value in values.items():
        if isinstance(value, SparseVector):
            assert (np.diff(value.indices) > 0).all()
            assert not len(value.indices) or 0 <= value.indices[0] <= value.indices[-1] < value.size
        if isinstance(value, Ciphertexts):
            with contextlib.suppress(PayloadError):
                CipherVector.from_wire(value, KEY_PAIR)
            with contextlib.suppress(PayloadError):
                check({name: value}, {name: CipherSpec(KEY_PAIR, LAYOUT, 6, 2)}, client="x")
    with contextlib.suppress(PayloadError):
        check(values, dict.fromkeys(values, ArraySpec(np.float64, (None,), KINDS)), client="x", finite=assembly.finite)
    with contextlib.suppress(PayloadError):
        check(values, ASKED, client="x")


def _broken() -> Iterator[bytes]:
    """Yield messages whose stream breaks after their first piece, and what the next stream brings."""
    encoded = encode({"x": np.ones(SMALLEST_PIECE // 8), "y": np.ones(3)})
    body = Body(encoded).content()
    for name, head in (("reply", pb.Reply()), ("instruction", pb.Instruction())):
        parts = []
        for start, stop in ((0, SMALLEST_PIECE), (SMALLEST_PIECE, len(body)), (0, SMALLEST_PIECE)):
            head.sequence, head.resume = 1, start
            head.payload.CopyFrom(encoded.descriptor)
            frame = pb.Frame(chunk=body[start:stop])
            getattr(frame, name).CopyFrom(head)
            parts.append(frame.SerializeToString())
        yield _streamed(*parts)


async def _read_on(data: bytes) -> None:
    """Read from two streams what they bring to either side; the first ends after a frame."""
    first, *rest = _Line.of(data).left or [b""]
    if isinstance(parse(first).head, pb.Instruction):
        await _read_both([first], rest, pb.Instruction)
    else:
        await _read_both([first], rest, pb.Reply)


async def _read_both(first: list[bytes], second: list[bytes], kind: type[HeadT]) -> None:
    begun: IncomingMessage[HeadT] | None = None
    for left in (first, second):
        reader = MessageReader(_Line(left), kind, "the other side", 2 * LIMIT, begun=begun)
        begun = None
        while (message := await reader.begin()) is not None:
            reader.check(message)
            reader.accept(message)
            reader.take(message)
            while not message.is_complete and await reader.more(message):
                pass
            assert message.assembly.received <= message.outline.size <= 2 * LIMIT
            if message.is_complete:
                message.received().values()
            else:
                begun = message


def _changed_descriptor(chance: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    """Disturb what a message says of its arrays; often its body has the size, then, that they need."""
    try:
        frame = pb.Frame.FromString(data)
    except DecodeError:
        return damaged(chance, data, others)
    which = frame.WhichOneof("head")
    if which not in ("reply", "instruction"):
        return damaged(chance, data, others)
    payload: pb.Payload = getattr(frame, which).payload
    for _ in range(chance.choice((1, 1, 2, 4))):
        disturbed(chance, payload)
    if chance.random() < 0.8:
        _fit(frame, payload, chance)
    return frame.SerializeToString()


def _fit(frame: pb.Frame, payload: pb.Payload, chance: random.Random) -> None:
    from fenchel.common.wire.codecs import part_of

    with contextlib.suppress(PayloadError):
        size = sum(length + -length % 8 for item in payload.arrays for length in part_of(item).lengths)
        payload.body_bytes = min(size, 2**64 - 1)
        if size <= LIMIT:
            frame.chunk = (frame.chunk + chance.randbytes(max(size - len(frame.chunk), 0)))[:size]


def _supports() -> Iterator[bytes]:
    for value in PAYLOAD.values():
        if isinstance(value, SparseVector):
            encoding = index_sets.smallest(value.indices, value.size, seeded=value.seed is not None)
            packed = index_sets.pack(encoding, value.indices, value.size)
            head = struct.pack("<BIIH", encoding, len(value.indices), value.size, value.seed or 0)
            yield head + packed


def _read_support(data: bytes) -> None:
    if len(data) < 11:
        return
    number, count, size, seed = struct.unpack_from("<BIIH", data)
    encoding: Any = number % 7
    size %= 1 << 20 if encoding == pb.SEEDED else 1 << 32  # how long a seeded support may be is checked before
    packed = data[11:]
    index_sets.check_index_bytes(encoding, len(packed), count, size)
    if encoding == pb.EVERY_ENTRY and size > LIMIT:
        return  # its values have been found to have arrived
    if encoding == pb.SEEDED and count > LIMIT:
        return
    indices = index_sets.unpack(encoding, memoryview(packed), count, size, seed)
    index_sets.check(indices, size)
    assert len(indices) == count


def _read_ciphertexts(data: bytes) -> None:
    if len(data) < 2:
        return
    wire = ENCRYPTED.to_wire()
    vector = Ciphertexts(wire.key_id, LAYOUT, data[0], data[1] % 8, wire.ciphertext_bytes, data[2:])
    found = CipherVector.from_wire(vector, KEY_PAIR)
    assert all(0 < ciphertext < KEY_PAIR.n_squared for ciphertext in found.ciphertexts)
    assert bytes(found.to_wire().data) == data[2:]


@dataclass(frozen=True)
class _Context:
    """What a call looks like from the service, as far as it looks."""

    certificate: bytes

    def auth_context(self) -> dict[str, list[bytes]]:
        return {"x509_common_name": [b"a"], "x509_pem_cert": [self.certificate]}

    def invocation_metadata(self) -> tuple[tuple[str, bytes], ...]:
        return (("fenchel-client-bin", b"a"),)

    def peer(self) -> str:
        return "ipv4:192.0.2.1:4000"


def _streamed(*parts: bytes) -> bytes:
    return b"".join(struct.pack("<I", len(part)) + part for part in parts)


@dataclass
class _Line:
    """A stream that says what an input says, and then ends."""

    left: list[bytes]
    said: int = 0

    @classmethod
    def of(cls, data: bytes) -> _Line:
        left = []
        while len(data) >= 4:
            size = min(int.from_bytes(data[:4], "little"), len(data) - 4)
            left.append(data[4 : 4 + size])
            data = data[4 + size :]
        return cls(left)

    async def read(self) -> bytes | None:
        await asyncio.sleep(0)
        return self.left.pop(0) if self.left else None

    async def write(self, frame: bytes) -> None:
        self.said += len(frame)


class _Gate:
    """The server's door, and one client's conversation behind it."""

    def __init__(self, folder: Path, loop: asyncio.AbstractEventLoop) -> None:
        settings = validate(
            {
                "rounds": 1,
                "clients": 2,
                "data": {"name": "own"},
                "objective": {"kind": "logistic"},
                "algorithm": {"name": "fedavg"},
                "network": {"max_message_bytes": LIMIT},
            }
        )
        self._loop = loop
        coordinator = Coordinator(settings, RunFolder.create(folder, "gate"))
        coordinator.admission.registration = Registration(2, 1.0, ("a", "b"))
        self._service = Service(coordinator, secure=True)
        make_all(folder / "gate-certs", ["localhost"], ["a"])
        self._certificate = (folder / "gate-certs" / "a" / CERTIFICATE).read_bytes()

    def read(self, data: bytes) -> None:
        """Read the request of one call."""
        kind, content = data[:1], data[1:]
        context: Any = _Context(self._certificate)
        try:
            if kind == b"J":
                request = pb.JoinRequest.FromString(content)
                self._loop.run_until_complete(self._service._join(request, context))
            elif kind == b"P":
                probe = pb.ProbeRequest.FromString(content)
                reply = self._loop.run_until_complete(self._service._probe(probe, context))
                assert len(reply.payload) <= 1 << 20
            else:
                member = ClientRecord("a")
                hello = pb.Hello.FromString(content)
                hello.DiscardUnknownFields()  # type: ignore[no-untyped-call, unused-ignore]
                member.confirm(hello)
                kept = json.loads(json.dumps(MessageToDict(hello.shard))) if member.can_restore(hello) else {}
                assert not kept or ParseDict(kept, pb.ShardDescription()) == hello.shard
        except DecodeError as error:
            raise WireError(str(error)) from None  # gRPC's own answer: the call ends
        except RefusedError as error:
            raise JoinRefusedError(str(error)) from None  # the admission interceptor's

    def converse(self, data: bytes) -> None:
        """Take what a client says on its stream, while a question to it is open."""
        self._loop.run_until_complete(self._converse(data))

    async def _converse(self, data: bytes) -> None:
        member = ClientRecord("a")

        def judge(client: str, values: Values, finite: bool) -> None:
            check(values, ASKED, client=client, finite=finite)

        exchange = Request(
            phase="train", t=1, collector=GatherCollector(), check=judge, deadline=60.0, reservation=roomy()
        )
        call = member.post("train", 1, pb.ASK, Body(encode({"model": np.zeros(4)})), exchange)
        exchange.expect(member, call)

        async def admit(hello: pb.Hello) -> pb.Welcome:
            member.can_restore(hello)
            return pb.Welcome()

        line = _Line.of(data)
        await ClientStream(member, line, largest=LIMIT, limits=Limits()).run(admit)
        assert line.said < 1 << 20
        assert member.partial is None or member.partial.assembly.size <= LIMIT


class _Work:
    """A client at work."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        settings = validate(
            {
                "rounds": 1,
                "clients": 1,
                "data": {"name": "own"},
                "objective": {"kind": "logistic"},
                "algorithm": {"name": "fedavg", "local_steps": 1, "batch_size": None},
                "network": {"max_message_bytes": LIMIT},
            }
        )
        shard = Shard(np.arange(8.0).reshape(4, 2), np.array([0, 1, 1, 0]), 2, 2, np.arange(4))
        self._session = Session("a", settings, ClientData(shard))
        self._loop = loop

    def read(self, data: bytes) -> None:
        """Take what a server says."""
        with np.errstate(all="ignore"):
            self._loop.run_until_complete(Worker(self._session).work(_Line.of(data)))


class _TurnedAwayError(FenchelError):
    """The dashboard or the metrics have not answered a request with what they show."""


class _Page:
    """The dashboard and the metrics of a run, on sockets of this machine."""

    def __init__(self, folder: Path) -> None:
        run = RunFolder.create(folder, "watched")
        settings = validate(_RUNS[0])
        run.settings.write_text(settings.to_yaml())
        said: list[str] = []
        loopback = Address("127.0.0.1", 0)
        exporters = MonitoringOptions(dashboard=True, dashboard_at=loopback, metrics_at=loopback)
        self._open = watching(run, settings, exporters, said.append, said.append)
        self._open.__enter__()
        # Until this process ends, and not when it has ended: closing waits for threads, which stop then.
        atexit.register(self._open.__exit__, None, None, None)
        self._places = [
            (found.hostname or "", found.port or 0) for found in (urlsplit(words.split()[-1]) for words in said)
        ]
        heads = "Host: localhost\r\nAccept: */*\r\nConnection: keep-alive\r\n"
        self.requests = tuple(
            bytes([place]) + f"{words} HTTP/1.1\r\n{heads}{more}\r\n".encode()
            for place, words, more in (
                (0, "GET /metrics", ""),
                (0, "HEAD /metrics?x=1", "Accept-Encoding: gzip\r\n"),
                (1, "GET /fleet", 'If-None-Match: "0123456789abcdef0123456789abcdef"\r\n'),
                (1, "POST /data", "Content-Length: 3\r\nTransfer-Encoding: chunked\r\n"),
            )
        )

    def read(self, data: bytes) -> None:
        """Ask, say no more, and take what is answered."""
        place = self._places[data[0] % 2 if data else 0]
        answer = b""
        with socket.create_connection(place, 10) as connection, contextlib.suppress(ConnectionError):
            with contextlib.suppress(OSError):  # it may have been closed before
                connection.sendall(data[1:])
                connection.shutdown(socket.SHUT_WR)
            while some := connection.recv(1 << 16):
                answer += some
        if not answer:
            raise _TurnedAwayError("closed")
        version, code, _ = answer.split(b" ", 2)
        head, _, body = answer.partition(b"\r\n\r\n")
        assert version == b"HTTP/1.0"
        assert code in _CODES, answer[:300]
        assert head.count(b"\r\n") < 20
        assert b"Content-Security-Policy: default-src 'none'" in head
        if code != b"200":
            assert len(body) < 200
            raise _TurnedAwayError(code.decode())


_CODES = (b"200", b"304", b"400", b"404", b"405", b"414", b"421", b"431", b"501", b"505")


def _changed_request(chance: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    kinds: dict[bytes, type[Message]] = {b"J": pb.JoinRequest, b"P": pb.ProbeRequest, b"H": pb.Hello}
    if data[:1] not in kinds or chance.random() < 0.5:
        return damaged(chance, data, others)
    try:
        message = kinds[data[:1]].FromString(data[1:])
    except DecodeError:
        return damaged(chance, data, others)
    disturbed(chance, message)
    return data[:1] + message.SerializeToString()


# Settings

_RUNS: tuple[dict[str, Any], ...] = (
    {
        "rounds": 2,
        "clients": 3,
        "data": {"name": "digits", "samples": 120, "scale": ["standard"],
                 "partition": {"kind": "dirichlet", "alpha": 1}},
        "objective": {"kind": "softmax", "l2": 1e-3, "regularizer": {"kind": "l1", "weight": 0.1}},
        "algorithm": {"name": "fedavg", "local_steps": 1, "batch_size": None},
        "participation": {"sampler": {"kind": "fixed", "size": 2}, "deadline": 3},
        "network": {"max_message_bytes": 1000, "keepalive": 5},
        "links": {"default": "lte", "clients": {"client-001": {"rtt": "2.5ms", "upload": "2Mbit", "cut_at": ["2h"]}}},
    },
    {
        "rounds": 2,
        "clients": "auto",
        "data": {"name": "own", "classes": ["ill", "well"], "holdout": 0.2},
        "objective": {"kind": "logistic", "l2": 0.1},
        "algorithm": {"name": "fedpdm"},
        "uplink": {"sparsify": {"support": "top-k", "keep": 0.1}},
        "secrets": {"source": "file"},
    },
    {
        "rounds": 1,
        "clients": 4,
        "data": {"file": "x.csv", "binarise": {"positive": [3]}, "partition": {"kind": "grid", "sample_groups": 2,
                                                                               "feature_groups": 2}},
        "objective": {"kind": "own", "name": "a.b:C", "parameters": {"x": [1, None]}},
        "algorithm": {"name": "hyfdca", "preset": "safe"},
        "evaluation": {"histograms": 4},
    },
    {
        "rounds": 3,
        "clients": 2,
        "data": {"name": "mnist", "extractor": {"file": "w.pth", "size": 64}},
        "objective": {"kind": "binary", "scorer": {"kind": "mlp", "hidden": 4}, "initial": {"file": "m.npz"}},
        "algorithm": {"name": "codasca"},
        "checkpoint": {"every": 2, "sync": True},
    },
)  # fmt: skip


def _settings(folder: Path) -> Iterator[Parser]:
    def read_json(data: bytes) -> None:
        """Do what a client does with the settings that a server sends."""
        text = data.decode("utf-8", errors="replace")
        for name in outside_code(raw(text)):
            require_allowed(name, ())
        from_json(text)

    def changed(chance: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
        try:
            tree = json.loads(data)
        except (ValueError, RecursionError):
            tree = None
        if not isinstance(tree, dict) or chance.random() < 0.2:
            return damaged(chance, data, others)
        return json.dumps(rearranged(chance, tree, _RUNS)).encode()

    seeds = tuple(json.dumps(run).encode() for run in _RUNS)
    yield Parser("settings, JSON", seeds, read_json, (SettingsError,), 40, change=changed)
    path = folder / "settings.yaml"

    shared = b"rounds: &n 2\nclients: *n\ndata: &d {name: digits}\nobjective: {<<: *d, kind: softmax}\nalgorithm: *d\n"
    seeds = (*(yaml.safe_dump(run).encode() for run in _RUNS), shared, BOMB)
    yield Parser("settings, YAML", seeds, reading(path, load), (SettingsError,), 10)
    policy = b"maximum_epsilon: 5\nmechanisms: [contractive]\nsupports: [dense]\ndelta: 1.0e-6\n"
    yield Parser("policies", (policy,), reading(path, load_policy), (SettingsError,), 8)
    tuning = Path("fenchel/experiments/tune-fedavg-digits.yaml").read_bytes()
    yield Parser("tunings", (tuning,), reading(path, load_tuning), (SettingsError,), 8)
    short = (b"lbfgs", b"{kind: gradient, accelerated: true, stop: {steps: 30}}")

    def read_solver(data: bytes) -> None:
        parse_solver(data.decode("utf-8", errors="replace"))

    yield Parser("solvers", short, read_solver, (SettingsError,), 8)
    devices = (
        b"frequency: 1.0e+9\ncycles_per_mac: 2\ntransmit_power: 0.2\n",
        b"clients: {client-000: {frequency: 5.0e+8}, client-001: {receive_power: 0.1}}\n",
    )
    yield Parser("devices", devices, reading(path, lambda path: read_devices([str(path)])), (SettingsError,), 8)
    links = (b"preset=hyfdca-257ms", b"rtt=40ms\njitter=1.5ms\nupload=10Mbit\ndownload=1e6\ncut_every=2 min")

    def read_link(data: bytes) -> None:
        words = (word.partition("=") for word in data.decode("utf-8", errors="replace").split("\n"))
        parse_link({key: value for key, _, value in words}, "here")

    yield Parser("links", links, read_link, (SettingsError,), 8)
    addresses = (b"127.0.0.1:7444", b"[::1]:0", b"clinic-a.example.org:9464")

    def read_address(data: bytes) -> None:
        found = Address.parse(data.decode("utf-8", errors="replace"), "--metrics")
        void((found.is_loopback, str(found)))

    yield Parser("addresses", addresses, read_address, (SettingsError,), 5)
    model = io.BytesIO()
    np.savez(model, model=np.zeros(3))
    path_of_model = folder / "initial.npz"
    logistic = {"kind": "logistic", "initial": {"file": str(path_of_model)}}
    objective = validate(_RUNS[1] | {"algorithm": {"name": "fedavg"}, "objective": logistic, "uplink": {}}).objective

    read_model = reading(path_of_model, lambda path: initial_model(objective, 3, 2, 1))
    yield Parser("initial models", (model.getvalue(),), read_model, (SettingsError,), 15)


# Data files


def _data(folder: Path) -> Iterator[Parser]:
    chance = np.random.default_rng(5)
    features, labels = chance.standard_normal((12, 3)).round(3), np.arange(12) % 3
    rows = [",".join(map(str, [*row, label])) for row, label in zip(features, labels, strict=True)]
    csv = "\n".join(["a,b,c,label", *rows]).encode()
    words = b'name,size,kind\n1.5,2,"ill"\n3,4,well\n2,1e3,"a ""b"""\n'
    yield _file(folder, "x.csv", (csv, words, b"1,2,0\n3,4,1\n5,6,0\n"), 20)
    libsvm = b"1 1:0.5 3:2\n-1 2:1e-3 # why\n1 1:1 2:2 3:3\n"
    yield _file(folder, "x.libsvm", (libsvm, b"0 1:1\n1 2:1\n2 3:1\n"), 40)
    dense, sparse, object_ = io.BytesIO(), io.BytesIO(), io.BytesIO()
    np.savez(dense, X=features, y=labels)
    np.savez_compressed(sparse, X_train=features, y_train=labels, X_test=features[:2], y_test=labels[:2])
    np.savez(object_, X=features, y=np.array([None, "x"], dtype=object), allow_pickle=True)
    yield _file(folder, "x.npz", tuple(each.getvalue() for each in (dense, sparse, object_)), 20)
    parquet = io.BytesIO()
    table = pa.table({"a": features[:, 0], "b": features[:, 1], "label": labels, "c": features[:, 2]})
    pq.write_table(table, parquet)
    yield _file(folder, "x.parquet", (parquet.getvalue(),), 20)
    images = struct.pack(">HBB3I", 0, 8, 3, 4, 3, 3) + bytes(range(36))
    marks = struct.pack(">HBBI", 0, 8, 1, 4) + bytes(4)
    (folder / "y-idx1-ubyte").write_bytes(marks)
    read_idx = reading(folder / "x-idx3-ubyte", lambda path: read_files([path, folder / "y-idx1-ubyte"]))
    yield Parser("data, IDX", (images, marks), read_idx, (DataError,), 30)
    yield _file(folder, "x.csv.gz", (gzip.compress(csv, mtime=0), gzip.compress(bytes(4000), mtime=0)), 10)
    yield _identifiers(folder)
    yield _mammography(folder)
    yield _cifar_differences(folder)
    yield from named_sets(folder)


def _identifiers(folder: Path) -> Parser:
    """Identifiers of samples, plain or, by the first byte of an input, compressed."""
    names = b"one\n two \nthree\n"
    suffixes = ("", ".gz", ".bz2", ".xz")

    def read(data: bytes) -> None:
        path = folder / f"identifiers{suffixes[data[0] % len(suffixes)] if data else ''}"
        path.write_bytes(data[1:])
        found = of_lines(path, 3, folder / "x.libsvm")
        assert len(set(found)) == 3
        assert all(found)

    packed = (names, gzip.compress(names, mtime=0), bz2.compress(names), lzma.compress(names))
    seeds = (*(bytes([place]) + content for place, content in enumerate(packed)), b"\0\xef\xbb\xbfa\r\nb\r\n\xc3\xa9")
    return Parser("data, identifiers", seeds, read, (DataError,), 15)


def _mammography(folder: Path) -> Parser:
    read = reading(folder / "mammography.csv", read_mammography)
    seeds = (b"0.5,1,2,3,4,5,'-1'\n-0.5,1,2,3,4,5,'1'\n", b"1,-1\n2,1\n")
    return Parser("data, mammography", seeds, read, (DataError,), 10)


def _cifar_differences(folder: Path) -> Parser:
    marks, train, test = io.BytesIO(), io.BytesIO(), io.BytesIO()
    np.savez(marks, train2_y=np.arange(2), test1_y=np.arange(1))
    np.save(train, np.arange(3 * 2 * 32 * 32, dtype=np.uint8).reshape(3, 2, 32, 32))
    np.save(test, np.zeros((3, 1, 32, 32), np.uint8))
    whole = {"labels.npz": marks.getvalue(), "train2_x.npy": train.getvalue(), "test1_x.npy": test.getvalue()}
    return several("data, differences", folder / "cifar", whole, read_cifar_differences, 15)


def _file(folder: Path, name: str, seeds: tuple[bytes, ...], weight: int) -> Parser:
    kind, read = name.removeprefix("x."), reading(folder / name, read_file)
    return Parser(f"data, {kind}", seeds, read, (DataError,), weight, memory=256 << 20)


# Certificates, keys, sealed boxes


def _credentials(folder: Path) -> Iterator[Parser]:
    make_all(folder / "certs", ["localhost", "10.0.0.1"], ["a", "b"])
    own = folder / "fuzzed"
    own.mkdir()
    seeds = []
    for who in ("a", "b", "server"):
        for place, name in enumerate((AUTHORITY, CERTIFICATE, KEY)):
            seeds.append(bytes([place]) + (folder / "certs" / who / name).read_bytes())

    def read(data: bytes) -> None:
        place = data[0] % 3 if data else 0
        for number, name in enumerate((AUTHORITY, CERTIFICATE, KEY)):
            content = data[1:] if number == place else (folder / "certs" / "a" / name).read_bytes()
            (own / name).write_bytes(content)
        found = Credentials.load(own)
        common_name(found)
        describe(own)
        check_pair(found)

    refusals = (CredentialError,)
    yield Parser("certificates", tuple(seeds), read, refusals, 20, change=_changed_pem)
    first, second = (Credentials.load(folder / "certs" / who) for who in ("a", "b"))
    identity, other = Identity("a", first), Identity("b", second)
    signature = other.sign(b"signed")
    pem = second.certificate

    def check_identity(data: bytes) -> None:
        identity.check("b", data[72:].decode("utf-8", errors="replace"), b"signed", data[: len(signature)])

    yield Parser("identities", (signature.ljust(72, b"\0") + pem,), check_identity, refusals, 15, change=_changed_pem)
    yield _revocations(folder)
    yield _issued(folder)
    token = Invitation("north", Address("authority.example.org", 7444), bytes(range(32)), bytes(range(16))).token
    yield Parser("tokens", (token.encode(),), read_token, (SettingsError,), 8)
    asking = ec.generate_private_key(ec.SECP256R1())
    request = x509.CertificateSigningRequestBuilder().subject_name(subject("north")).sign(asking, hashes.SHA256())
    wanted = request.public_bytes(serialization.Encoding.DER)
    yield Parser("signing requests", (wanted,), lambda data: void(requested_key(data)), refusals, 15)
    secrets = Secrets.generate(512, for_tests=True)
    text, public = secrets.to_text().encode(), secrets.private_key.public.to_text().encode()

    def read_secrets(data: bytes) -> None:
        Secrets.from_text(data.decode("utf-8", errors="replace"))

    def read_public(data: bytes) -> None:
        PublicKey.from_text(data.decode("utf-8", errors="replace"), "x", smallest_bits=64)

    theirs = b'{"kty": "DAJ", "alg": "PAI-GN1", "key_ops": ["decrypt"], "p": "Cw", "q": "DQ", "kid": "phe"}'
    yield Parser("secrets", (text, public, theirs), read_secrets, refusals, 15)
    texts = {"authority": "AUTHORITY", "certificate": "CERTIFICATE", "key": "KEY"}
    line = json.dumps({"identities": {"a": texts, "b": None}, "secrets": len(text)}).encode()
    bundle = line + b"\n" + text
    yield Parser("bundles", (bundle,), lambda data: void(ReceivedBundle.read(io.BytesIO(data), "x")), refusals, 15)
    yield Parser("public keys", (public, theirs), read_public, refusals, 15)
    yield _exchange(folder / "exchange", identity, secrets)
    yield _own_secrets(folder / "noise")
    key = X25519PrivateKey.generate()
    box = seal(b"hello", key.public_key().public_bytes_raw(), b"here")
    yield Parser("sealed boxes", (box,), lambda data: void(unseal(data, key, b"here")), refusals, 15)


def _exchange(folder: Path, identity: Identity, secrets: Secrets) -> Parser:
    """Return what a client does that finds its part of an exchange on the disk: the first byte says which file."""
    folder.mkdir()
    files = {"exchange.key": bytes(range(32)), "clients.secret": secrets.to_text().encode()}

    def read(data: bytes) -> None:
        place = data[0] % 3 if data else 0
        for number, name in enumerate(files):
            (folder / name).unlink(missing_ok=True)
            if place in (number, 2):
                (folder / name).write_bytes(data[1:])
                (folder / name).chmod(0o600)
        found = SecretExchange("run", identity, 512, folder=folder)
        assert (found.secrets is None) == (place == 0)
        if place == 0:
            assert len(np.asarray(found.answer(OFFER, {})["public_key"])) == 32

    seeds = tuple(bytes([place]) + content for place, content in enumerate(files.values()))
    return Parser("exchanges", seeds, read, (CheckpointError, CredentialError), 15)


def _own_secrets(folder: Path) -> Parser:
    """Return what a client does that finds the secret on the disk from which its noise follows."""
    folder.mkdir()

    def read(data: bytes) -> None:
        (folder / SECRET).write_bytes(data)
        assert PrivateRandomness.kept_in(folder).secret == data
        assert len(data) == SECRET_BYTES

    return Parser("own secrets", (bytes(range(SECRET_BYTES)),), read, (CheckpointError,), 5)


def read_token(data: bytes) -> None:
    """Read a text as a token."""
    void(Invitation.parse(data.decode("utf-8", errors="replace")).name)


def _revocations(folder: Path) -> Parser:
    authority, own = folder / "certs" / "authority", folder / "revoked"
    own.mkdir()
    (own / AUTHORITY).write_bytes((authority / AUTHORITY).read_bytes())
    key = serialization.load_pem_private_key((authority / AUTHORITY_KEY).read_bytes(), password=None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    signer = key
    certificate = (folder / "certs" / "a" / CERTIFICATE).read_bytes()
    lists = []
    for name in "ba":
        revoke(authority, names=[name])
        lists.append((authority / REVOKED).read_bytes())
    empty = (
        x509.CertificateRevocationListBuilder()
        .issuer_name(x509.load_pem_x509_certificate((authority / AUTHORITY).read_bytes()).subject)
        .last_update(datetime(2026, 1, 1, tzinfo=UTC))
        .next_update(datetime(2036, 1, 1, tzinfo=UTC))
        .sign(key, hashes.SHA256())
        .public_bytes(serialization.Encoding.PEM)
    )
    (own / REVOKED).write_bytes(lists[0])
    known = Revocations(own)

    def read(data: bytes) -> None:
        """Do what a server does with a list when it starts, and with one that is put in the place of another."""
        (own / REVOKED).write_bytes(data)
        known._stamp = ()
        known.refresh()
        try:
            known.check(certificate)
        except RevokedError as error:
            assert len(str(error)) < 2000
        for place, since in read_revoked(own).items():
            void((place, f"{since:%Y}"))

    def changed(chance: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
        """Damage what a list says, behind its letters; often with a signature that is right again."""
        try:
            found = x509.load_pem_x509_crl(data)
            said = found.tbs_certlist_bytes
        except (ValueError, x509.InvalidVersion, UnsupportedAlgorithm):
            return damaged(chance, data, others)
        way = chance.random()
        if way < 0.2:
            return damaged(chance, data, others)
        if way < 0.4:
            der = damaged(chance, found.public_bytes(serialization.Encoding.DER), [said])
        else:
            der = _signed_list(damaged(chance, said, [said]), signer)
        return b"-----BEGIN X509 CRL-----\n" + base64.encodebytes(der) + b"-----END X509 CRL-----\n"

    seeds = (lists[1], lists[0], empty, lists[0] + empty)
    return Parser("revocation lists", seeds, read, (CredentialError,), 20, change=changed)


_ECDSA_WITH_SHA256 = bytes.fromhex("300a06082a8648ce3d040302")


def _signed_list(said: bytes, key: ec.EllipticCurvePrivateKey) -> bytes:
    """Return a revocation list (DER) of these words, which an authority has signed as they are."""
    signature = b"\0" + key.sign(said, ec.ECDSA(hashes.SHA256()))
    return _der(0x30, said + _ECDSA_WITH_SHA256 + _der(0x03, signature))


def _der(tag: int, content: bytes) -> bytes:
    length = len(content).to_bytes((len(content).bit_length() + 7) // 8 or 1, "big")
    head = length if len(content) < 128 else bytes([0x80 | len(length)]) + length
    return bytes([tag]) + head + content


def _issued(folder: Path) -> Parser:
    own = folder / "issuer"
    own.mkdir()
    text = (folder / "certs" / "authority" / ISSUED).read_bytes()
    read = reading(own / ISSUED, lambda path: [(each.serial, each.name == "a") for each in issued(own)])
    return Parser("issued certificates", (text,), read, (CredentialError,), 8, change=_changed_lines)


def _changed_lines(chance: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    """Damage a file of which each line is a JSON object, often in what the objects say."""
    lines = data.splitlines()
    if not lines or chance.random() < 0.4:
        return damaged(chance, data, others)
    place = chance.randrange(len(lines))
    with contextlib.suppress(ValueError, RecursionError):
        tree = json.loads(lines[place])
        lines[place] = json.dumps(rearranged(chance, tree, [tree])).encode()
    return b"\n".join(lines) + b"\n"


def _changed_pem(chance: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    """Damage what a certificate holds, behind its letters."""
    start = data.find(b"-----BEGIN CERTIFICATE")
    if start < 0 or chance.random() < 0.3:
        return damaged(chance, data, others)
    try:
        der = x509.load_pem_x509_certificate(data[start:]).public_bytes(serialization.Encoding.DER)
    except (ValueError, x509.InvalidVersion):
        return damaged(chance, data, others)
    letters = base64.encodebytes(damaged(chance, der, [der]))
    return data[:start] + b"-----BEGIN CERTIFICATE-----\n" + letters + b"-----END CERTIFICATE-----\n"


# What lies on the disk


@dataclass
class _State:
    model: np.ndarray
    notes: dict[str, Any]


def _state(folder: Path) -> Iterator[Parser]:
    path = folder / "store"
    state = _State(np.arange(5.0), {"a": [1, 2.5, None, "x"], "b/c": np.arange(3)})
    store.write(path, {**freeze(state), "reply/x": 1.5, "reply/y": np.zeros(2)})
    journal = path.read_bytes()
    run = RunFolder.create(folder, "run")
    member = ClientRecord("a", shard=pb.ShardDescription(samples=3, class_names=["x"]))
    member.post("tell", 1, pb.TELL, Body(encode({"model": np.ones(3)})))
    checkpoint.save(run, checkpoint.take("run", 3, 1, state, {"a": member}), sync=False)
    saved = run.checkpoint.read_bytes()

    def read_checkpoint(path: Path) -> None:
        found = checkpoint.load(path)
        found.restore()
        found.state(_State)

    entry = folder / "journal" / f"{7:020d}.state"
    entry.parent.mkdir()

    def read_journal(entry: Path) -> None:
        kept = Journal(state, entry.parent)
        kept.state_after(7)
        kept.reply_to(7)

    refusals = (CheckpointError,)
    yield Parser("store", (journal, saved), reading(path, store.read), refusals, 40, change=_changed_store)
    yield Parser("checkpoints", (saved,), reading(path, read_checkpoint), refusals, 30, change=_changed_store)
    read_entry = reading(entry, read_journal)
    yield Parser("journals", (journal,), read_entry, (*refusals, LostStateError), 30, change=_changed_store)
    yield _ledgers(folder)
    yield from _folders(folder)
    table = pa.table({"client": ["a", "b"], "bytes": [1, 2]})
    growing = io.BytesIO()
    with pa.ipc.new_stream(growing, table.schema) as writer:
        writer.write_table(table)
    read_table = reading(folder / "rows.arrows", lambda path: tables.read(path.with_suffix(".parquet")).to_pydict())
    yield Parser("tables", (growing.getvalue(),), read_table, refusals, 10)


def _ledgers(folder: Path) -> Parser:
    path = folder / "ledgers" / "ledger"
    ledger = Ledger(path, "a")
    for number in range(3):
        ledger.charge(bytes([number]) * 32, number + 1, Release(1.0 + number, 0.5))

    def read(data: bytes) -> None:
        """Do what a client does that is started again, and sends one thing more."""
        path.write_bytes(data)
        found = Ledger(path, "a")
        before = found.uploads
        found.charge(b"\x09" * 32, 9, Release(2.0, 0.5))
        assert Ledger(path, "a").uploads == found.uploads >= before

    def changed(chance: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
        """Damage lines, with digests that are right again."""
        if chance.random() < 0.4:
            return _changed_lines(chance, data, others)
        chain, lines = "", []
        for line in _changed_lines(chance, data, others).splitlines():
            try:
                entry = json.loads(line)
                entry.pop("chain", None)
                chain = _chained(chain, entry)
                lines.append(_line(entry, chain))
            except (AttributeError, TypeError, ValueError, RecursionError):
                lines.append(line + b"\n")
        return b"".join(lines)

    return Parser("ledgers", (path.read_bytes(),), read, (CheckpointError,), 20, change=changed)


def _folders(folder: Path) -> Iterator[Parser]:
    """Yield the other files of a run folder, which people copy from elsewhere."""
    run = RunFolder.create(folder, "copied")
    run.settings.write_text(validate(_RUNS[0]).to_yaml())
    account = DisclosureRecord(run.disclosures, run.id)
    account.opened("a", ["client"])
    account.head("up", pb.Hello(snapshots=[1]))
    account.shown(ExporterEntry("metrics", "http://127.0.0.1:1/metrics"))
    answer = pb.Reply(sequence=1, payload=encode({"model": np.ones(3)}).descriptor)
    account.received("a", answer, outline(answer.payload, LIMIT), None)
    account.save()

    def read_account(path: Path) -> None:
        found = load_disclosures(run.path)
        void((disclosure_rows(found), head_rows(found), noise_rows(found), exporter_rows(found)))
        DisclosureRecord(run.disclosures, run.id).resume(["a"])

    refusals = (CheckpointError,)
    changed = _changed_tree
    yield Parser(
        "accounts",
        (run.disclosures.read_bytes(),),
        reading(run.disclosures, read_account),
        refusals,
        10,
        change=changed,
    )
    summary = b'{"completed": true, "rounds": 2, "figures": {"objective": 0.5}, "reason": null}'

    def read_summary(path: Path) -> object:
        found = Run(run.path)
        return found.state, found.reason, found.figures

    yield Parser("summaries", (summary,), reading(run.summary, read_summary), refusals, 8, change=changed)
    model = io.BytesIO()
    np.savez(model, model=np.arange(3.0))
    read_model = reading(run.model, lambda path: Run(run.path).model)
    yield Parser("models", (model.getvalue(),), read_model, refusals, 15)


def _changed_tree(chance: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    """Damage a JSON text, often in what it says."""
    with contextlib.suppress(ValueError, RecursionError):
        tree = json.loads(data)
        if chance.random() < 0.6:
            return json.dumps(rearranged(chance, tree, [tree])).encode()
    return damaged(chance, data, others)


_HEADER = 16


def _changed_store(chance: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    """Damage a file behind its checksum, which is right again afterwards; now and then, the file as it is."""
    if chance.random() < 0.15 or len(data) < _HEADER:
        return damaged(chance, data, others)
    length = int.from_bytes(data[12:16], "little")
    about, body = data[_HEADER : _HEADER + length], data[_HEADER + length :]
    way = chance.random()
    if way < 0.4:
        with contextlib.suppress(DecodeError):
            payload = pb.Payload.FromString(about)
            texts = [item for item in payload.arrays if item.scalar.text]
            if texts and chance.random() < 0.6:
                item = chance.choice(texts)
                with contextlib.suppress(ValueError, RecursionError):
                    tree = json.loads(item.scalar.text)
                    changed = json.dumps(rearranged(chance, tree, [tree]))
                    item.scalar.text = changed.encode(errors="replace").decode()
            else:
                disturbed(chance, payload)
            about = payload.SerializeToString()
    elif way < 0.7:
        about = damaged(chance, about, [about])
    else:
        body = damaged(chance, body, [body])
    checksum = zlib.crc32(body, zlib.crc32(about)).to_bytes(4, "little")
    return data[:8] + checksum + len(about).to_bytes(4, "little") + about + body
