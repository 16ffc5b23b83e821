"""A server that a client must not trust: it learns nothing, and has nothing opened, imported or written."""

from __future__ import annotations

import asyncio
import contextlib
import json
import resource
import sys
from collections.abc import Awaitable, Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from fenchel.client.connection import Connection
from fenchel.client.joining import Participant
from fenchel.client.local_data import LocalData, OwnFile
from fenchel.client.trust_limits import TrustLimits, named_files
from fenchel.common.data.extractor import VARIABLE
from fenchel.common.data.shard import Shard
from fenchel.common.errors import CredentialError, FenchelError, SettingsError, WireError
from fenchel.common.settings.run import RunSettings, validate
from fenchel.common.tls.credentials import Credentials
from fenchel.common.wire.channel import options
from fenchel.common.wire.frames import frames
from fenchel.common.wire.reader import SMALLEST_PIECE
from fenchel.deploy.certificates.making import make_all
from fenchel.proto import fenchel_pb2 as pb
from tests.hostile.relay import relaying
from tests.messages import raises

RUN = "20260101-000000-small-ab12"
SETTINGS: dict[str, Any] = {
    "rounds": 1,
    "clients": 1,
    "data": {"name": "digits"},
    "objective": {"kind": "softmax"},
    "algorithm": {"name": "fedavg"},
}


@dataclass
class Impostor:
    """A server that says what it likes, over TLS."""

    credentials: Credentials
    settings: str
    run: str = RUN
    says: Callable[[], Iterable[bytes]] = lambda: frames(pb.Farewell(completed=True))
    joined: list[pb.JoinRequest] = field(default_factory=list)  # in calls that came through
    heard: list[bytes] = field(default_factory=list)  # on streams
    wire: list[bytearray] = field(default_factory=list)  # what each connection brought, as it was encrypted

    async def _join(self, request: pb.JoinRequest, context: object) -> pb.JoinReply:
        self.joined.append(request)
        return pb.JoinReply(run=self.run, settings=self.settings, assignment=pb.Assignment(index=0, clients=1))

    async def _work(self, incoming: Any, context: Any) -> None:
        self.heard.append(await context.read())
        for frame in self.says():
            await context.write(frame)

    @contextlib.asynccontextmanager
    async def listening(self) -> Any:
        server = grpc.aio.server(options=options(20.0))
        calls = {
            "Join": grpc.unary_unary_rpc_method_handler(
                self._join, pb.JoinRequest.FromString, pb.JoinReply.SerializeToString
            ),
            "Work": grpc.stream_stream_rpc_method_handler(self._work),
        }
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("fenchel.v1.Coordinator", calls),))
        port = server.add_secure_port("0.0.0.0:0", self.credentials.for_server())
        await server.start()
        try:
            yield port
        finally:
            await server.stop(None)


def encrypted(wire: bytearray) -> int:
    """Return how many bytes of a connection are neither a greeting nor an alarm: encrypted, in a TLS connection."""
    count, place = 0, 0
    while place + 5 <= len(wire):
        kind, length = wire[place], int.from_bytes(wire[place + 3 : place + 5], "big")
        assert 20 <= kind <= 23, "no TLS"
        count += length if kind == 23 else 0
        place += 5 + length
    return count


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("certificates")
    make_all(folder / "ours", ["localhost"], ["a"])
    make_all(folder / "theirs", ["localhost"], ["a"])
    return folder


Visit = Callable[..., Awaitable[Impostor]]


@pytest.fixture
def met() -> list[Impostor]:
    """The impostors that clients have dialled, in this order."""
    return []


@pytest.fixture
def visit(certificates: Path, tmp_path: Path, met: list[Impostor]) -> Visit:
    """Return a function that has a client take part in a run of an impostor."""

    async def visited(
        settings: dict[str, Any] | str,
        *,
        run: str = RUN,
        trust_limits: TrustLimits | None = None,
        own: Path | None = None,
        server: str = "ours",
        host: str = "localhost",
        says: Callable[[], Iterable[bytes]] | None = None,
    ) -> Impostor:
        text = settings if isinstance(settings, str) else json.dumps(settings)
        impostor = Impostor(Credentials.load(certificates / server / "server"), text, run)
        met.append(impostor)
        if says is not None:
            impostor.says = says
        async with impostor.listening() as port, relaying(port, "0.0.0.0") as relay:
            impostor.wire = relay.up
            participant = Participant(
                name="a",
                server=f"{host}:{relay.port}",
                credentials=Credentials.load(certificates / "ours" / "a"),
                local_data=LocalData() if own is None else OwnFile(own),
                state_folder=tmp_path / "state",
                trust_limits=trust_limits or TrustLimits(),
                retry_for=20.0,
            )
            with ThreadPoolExecutor(1) as executor:
                async with asyncio.timeout(60):
                    await Connection(participant, executor).take_part()
        return impostor

    return visited


@pytest.fixture
def opened() -> Iterator[list[str]]:
    """The paths that this process opens meanwhile, and the modules that it imports."""
    found: list[str] = []
    listening = True

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if listening and event in ("open", "import"):
            found.append(str(arguments[0]))

    sys.addaudithook(hook)
    yield found
    listening = False


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    """A data file of the client's machine that has nothing to do with the run."""
    chance = np.random.default_rng(0)
    path = tmp_path / "patients.csv"
    rows = [f"{value:.3f},{value > 0:d}" for value in chance.standard_normal(40)]
    path.write_text("\n".join(["x,label", *rows]) + "\n")
    return path


def everything_in(folder: Path) -> set[Path]:
    return set(folder.rglob("*"))


async def test_a_server_as_it_should_be_is_worked_for(visit: Visit, met: list[Impostor]) -> None:
    impostor = await visit(SETTINGS)
    assert met == [impostor]
    assert [request.client for request in impostor.joined] == ["a"]
    assert len(impostor.heard) == 1
    assert max(map(encrypted, impostor.wire)) > 1000, "its certificate, and calls"


@pytest.mark.parametrize(
    ("server", "host", "most"),
    [
        ("theirs", "localhost", 100),  # bytes: a last word, and not even the client's certificate
        ("ours", "127.0.0.2", 800),  # with its certificate: names are compared when the handshake is done
    ],
    ids=["authority", "host name"],
)
async def test_a_server_with_a_wrong_certificate_hears_nothing(
    server: str, host: str, most: int, visit: Visit, met: list[Impostor]
) -> None:
    with raises(CredentialError):
        await visit(SETTINGS, server=server, host=host)
    (impostor,) = met
    assert impostor.joined == impostor.heard == []
    assert any(impostor.wire), "the client has been there"
    assert max(map(encrypted, impostor.wire)) < most


async def test_a_file_is_not_opened_because_a_server_names_it(secret: Path, visit: Visit, opened: list[str]) -> None:
    settings = SETTINGS | {"data": {"file": str(secret)}, "objective": {"kind": "logistic"}}
    with raises(SettingsError):
        await visit(settings)
    assert str(secret) not in opened
    elsewhere = TrustLimits(files={secret.with_name("other.csv")})
    with raises(SettingsError):
        await visit(settings, trust_limits=elsewhere)
    allowed = secret.parent / "shared" / "data.csv"
    sneaky = {"file": f"{allowed.parent}/../{secret.name}"}
    with raises(SettingsError):
        await visit(settings | {"data": sneaky}, trust_limits=TrustLimits(files={allowed}))
    assert not [path for path in opened if secret.name in path]
    assert len((await visit(settings, trust_limits=TrustLimits(files={secret}))).heard) == 1
    assert str(secret) in opened, "the watch sees what is opened"


async def test_the_weights_of_an_extractor_are_this_machines_choice(
    secret: Path, visit: Visit, opened: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    settings = SETTINGS | {"data": {"name": "digits", "extractor": {"file": str(secret)}}}
    with raises(SettingsError):
        await visit(settings)
    assert str(secret) not in opened
    pytest.importorskip("torch")
    ours = secret.with_name("weights.pth")
    monkeypatch.setenv(VARIABLE, str(ours))
    # It is not there, but it is what was looked for.
    with raises(FenchelError, key="data.extractor.file", file="weights.pth"):
        await visit(settings)
    assert str(secret) not in opened


async def test_a_model_to_start_from_is_the_servers_own_affair(secret: Path, visit: Visit, opened: list[str]) -> None:
    settings = SETTINGS | {"objective": {"kind": "softmax", "initial": {"file": str(secret)}}}
    assert len((await visit(settings)).heard) == 1
    assert str(secret) not in opened


@pytest.mark.parametrize(
    "section",
    [
        {"algorithm": {"name": "tests.hostile.trap:Trap"}},
        {"objective": {"kind": "own", "name": "tests.hostile.trap:Trap"}},
        {"algorithm": {"name": "tests.hostile.trap:Trap", "kind": "own"}, "rounds": "x"},
        *(
            {"algorithm": {"name": name}}
            for name in ("os:system", "os", "__main__", "../trap", "", ":", "builtins:eval")
        ),
    ],
    ids=str,
)
async def test_code_is_not_imported_because_a_server_names_it(
    section: dict[str, Any], visit: Visit, opened: list[str]
) -> None:
    before = set(sys.modules)
    with raises(SettingsError):
        await visit(SETTINGS | section)
    assert not {each for each in set(sys.modules) - before if "trap" in each}
    assert "tests.hostile.trap" not in opened
    assert "tests.hostile.trap" not in sys.modules


async def test_another_data_set_than_this_client_was_started_for_is_not_used(secret: Path, visit: Visit) -> None:
    only = TrustLimits(data={"breast_cancer"})
    with raises(SettingsError):
        await visit(SETTINGS, trust_limits=only)
    with raises(SettingsError):
        await visit(SETTINGS, own=secret)


async def test_a_data_set_that_is_not_public_needs_consent(
    visit: Visit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, opened: list[str]
) -> None:
    imported = tmp_path / "sets" / "patients" / "data.npz"
    imported.parent.mkdir(parents=True)
    np.savez(imported, X=np.arange(40.0).reshape(20, 2), y=np.arange(20) % 2)
    opened.clear()
    monkeypatch.setenv("FENCHEL_DATA", str(tmp_path / "sets"))
    settings = SETTINGS | {"data": {"name": "patients"}, "objective": {"kind": "logistic"}}
    with raises(SettingsError):
        await visit(settings)
    assert str(imported) not in opened
    assert len((await visit(settings, trust_limits=TrustLimits(data={"patients"}))).heard) == 1


@pytest.mark.parametrize("run", ["", ".", "..", "../../.ssh", "/tmp/x", "a/b", "a\0b", "a\nb", "~", "x" * 129])
async def test_a_run_cannot_lead_the_journal_out_of_its_folder(run: str, visit: Visit, tmp_path: Path) -> None:
    before = everything_in(tmp_path)
    with raises(WireError):
        await visit(SETTINGS | {"algorithm": {"name": "scaffold"}}, run=run)
    assert everything_in(tmp_path) == before


async def test_messages_larger_than_this_client_takes_are_refused_before_they_come(visit: Visit) -> None:
    settings = SETTINGS | {"network": {"max_message_bytes": 1 << 60}}
    with raises(SettingsError):
        await visit(settings)
    assert len((await visit(settings, trust_limits=TrustLimits(message_bytes=1 << 60))).heard) == 1


@pytest.mark.parametrize(
    "objective",
    [
        {"kind": "mlp", "hidden": 2_000_000},
        {"kind": "mlp", "hidden": 2_000_000_000},
        {"kind": "mlp", "hidden": 10**30},
        {"kind": "binary", "positive": [1], "scorer": {"kind": "mlp", "hidden": 2_000_000}},
    ],
    ids=["a gigabyte", "terabytes", "absurd", "scorer"],
)
async def test_a_model_larger_than_this_client_takes_is_refused_before_it_is_built(
    objective: dict[str, Any], visit: Visit
) -> None:
    pytest.importorskip("torch")
    small = {"network": {"max_message_bytes": 1 << 28}}
    trust_limits = TrustLimits(message_bytes=1 << 28)
    await visit(SETTINGS | small | {"objective": {"kind": "mlp", "hidden": 32}}, trust_limits=trust_limits)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with raises(SettingsError):
        await visit(SETTINGS | small | {"objective": objective}, trust_limits=trust_limits)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000, "kilobytes"


async def test_a_linear_model_of_many_classes_is_measured_too(visit: Visit) -> None:
    tiny = SETTINGS | {"network": {"max_message_bytes": 1 << 20}}
    assert len((await visit(tiny, trust_limits=TrustLimits(message_bytes=1 << 20))).heard) == 1
    least = validate(tiny)
    shard = Shard(np.empty((0, 64)), np.empty(0, np.int64), 10, 64, np.empty(0, np.int64))
    TrustLimits(message_bytes=64 * 10 * 8).check_model(least, shard)
    with raises(SettingsError):
        TrustLimits(message_bytes=64 * 10 * 8 - 1).check_model(least, shard)


@pytest.mark.parametrize("piece", [0, 1, SMALLEST_PIECE - 1])
async def test_a_server_that_sends_drops_without_end_is_left(piece: int, visit: Visit) -> None:
    def drops() -> Iterator[bytes]:
        yield from frames(pb.Welcome())
        model = pb.Array(name="model", dense=pb.Dense(dtype=pb.FLOAT64, shape=[1 << 24]))
        asked = pb.Instruction(
            phase="train", sequence=1, kind=pb.ASK, payload=pb.Payload(body_bytes=1 << 27, arrays=[model])
        )
        yield pb.Frame(instruction=asked).SerializeToString()
        for _ in range(1 << 20):
            yield pb.Frame(chunk=bytes(piece)).SerializeToString()

    with raises(WireError):
        await visit(SETTINGS, says=drops)


@pytest.mark.parametrize("clients", [True, False])
async def test_scores_of_fewer_samples_than_agreed_are_not_told(clients: bool, visit: Visit) -> None:
    evaluation: dict[str, Any] = {"clients": clients, "histograms": 4}
    settings = SETTINGS | {"evaluation": evaluation}
    if clients:
        with raises(SettingsError):
            await visit(settings)
        assert len((await visit(settings, trust_limits=TrustLimits(least_group=4))).heard) == 1
    evaluation["histograms"] = 5
    assert len((await visit(settings)).heard) == 1
    if clients:
        with raises(SettingsError):
            await visit(settings, trust_limits=TrustLimits(least_group=6))
    else:  # a client tells no scores in such a run
        assert len((await visit(settings, trust_limits=TrustLimits(least_group=6))).heard) == 1


@pytest.mark.parametrize("text", ["", "null", "[" * 100_000, '{"a":' * 50_000, "9" * 5000, "NaN", '{"rounds": NaN}'])
async def test_settings_that_are_none_are_refused(text: str, visit: Visit) -> None:
    with raises(SettingsError):
        await visit(text)


def test_every_path_in_the_settings_needs_consent() -> None:
    """Whoever adds a key that names a file must decide whose file it is: a path in it is the clients'."""
    sections = {
        "data": {"name": "mnist", "extractor": {"file": "w.pth"}},
        "objective": {"kind": "softmax", "initial": {"file": "m.npz"}},
    }
    found = dict(named_files(validate(SETTINGS | sections)))
    assert found == {"data.extractor.file": Path("w.pth")}
    assert dict(named_files(validate(SETTINGS | {"data": {"file": "x.csv"}}))) == {"data.file": Path("x.csv")}
    schema = RunSettings.model_json_schema()
    named = [
        f"{title}.{key}"
        for title, section in schema["$defs"].items()
        for key, about in section.get("properties", {}).items()
        if "path" in json.dumps(about.get("format", "")) or '"format": "path"' in json.dumps(about)
    ]
    assert sorted(named) == ["DataSettings.file", "ExtractorSettings.file"]
