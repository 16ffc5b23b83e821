"""The account of what crossed: what it calls things, what it must not let itself be told, and its table."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from google.protobuf.message import Message
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from fenchel.common.errors import CheckpointError
from fenchel.common.settings.uplink import Uplink
from fenchel.common.storage.run_folder import RunFolder
from fenchel.common.wire.frames import Body
from fenchel.common.wire.outline import outline
from fenchel.common.wire.payload import encode
from fenchel.common.wire.phases import ACCEPT
from fenchel.deploy.cli.main import application
from fenchel.fleet.calls import Call
from fenchel.proto import fenchel_pb2 as pb
from fenchel.report.disclosures import disclosure_rows, exporter_rows, head_rows, load_disclosures, noise_rows
from fenchel.server.disclosure.exporters import ExporterEntry
from fenchel.server.disclosure.record import UNASKED, UNDECLARED, DisclosureRecord
from tests.complexity import LINEAR, growth
from tests.messages import raises
from tests.unit.server.conftest import request_of


@pytest.fixture
def account(tmp_path: Path) -> DisclosureRecord:
    found = DisclosureRecord(tmp_path / "disclosures.json", "run")
    for client in ("north", "south"):
        found.opened(client, ["client"])
    return found


def asked(client: str = "north", **forms: str) -> Call:
    request = request_of(t=3, forms=forms)
    return Call(client=client, sequence=7, base=0, phase="train", round=3, kind=pb.ASK, body=None, request=request)


def reply(**values: object) -> pb.Reply:
    return pb.Reply(sequence=7, payload=encode(values).descriptor)  # type: ignore[arg-type]


def receive(account: DisclosureRecord, client: str, answer: pb.Reply, call: Call | None) -> None:
    account.received(client, answer, outline(answer.payload, 1 << 20), call)


def test_sizes_are_the_smallest_and_largest_and_clients_are_named_unless_they_are_all(
    account: DisclosureRecord,
) -> None:
    for client, size in (("north", 5), ("north", 3), ("south", 9)):
        (*_, entry) = account.to_json()["messages"] or [None]
        assert entry is None or entry["clients"] == ["north"]
        receive(account, client, reply(model=np.zeros((2, size), np.float32)), asked(client, model="clear"))
    (entry,) = account.to_json()["messages"]
    assert (entry["shape"], entry["bytes"], entry["times"]) == ([[2, 2], [3, 9]], [24, 72], 3)
    assert (entry["clients"], entry["first_round"], entry["dtype"]) == ("all", 3, "float32")


def test_a_client_cannot_make_the_account_grow_by_what_nobody_asked_for(account: DisclosureRecord) -> None:
    for number in range(300):
        made_up = {f"{number}-{place}": number for place in range(20)}
        receive(account, "north", reply(model=1.0, **made_up), asked(model="clear"))
        receive(account, "north", reply(**made_up), None)
        cipher = pb.Array(name="model")
        cipher.ciphertexts.key_id = os.urandom(16)
        cipher.ciphertexts.slots, cipher.ciphertexts.slot_bits, cipher.ciphertexts.value_bits = 1, 32, 8
        cipher.ciphertexts.ciphertext_bytes = 8
        receive(account, "north", pb.Reply(payload=pb.Payload(arrays=[cipher])), asked(model="clear"))
    messages = account.to_json()["messages"]
    assert len(messages) < 15
    assert {(each["phase"], each["name"]) for each in messages} == {
        ("train", "model"),
        ("train", UNDECLARED),
        (UNASKED, UNDECLARED),
    }
    assert sum(each["times"] for each in messages) == 300 * 42, "but all of it is counted"


def test_what_goes_on_where_it_broke_off_counts_once(account: DisclosureRecord) -> None:
    body = Body(encode({"model": np.zeros(4)}))
    call = asked()
    account.sent(call, call.head(0), body.payload)
    account.sent(call, call.head(0), body.payload, goes_on=True)
    receive(account, "north", reply(model=np.zeros(4)), asked(model="noisy"))
    again = reply(model=np.zeros(4))
    again.resume = 16
    receive(account, "north", again, asked(model="noisy"))
    found = account.to_json()
    assert [(each["form"], each["times"]) for each in found["messages"]] == [("clear", 1), ("noisy", 1)]
    assert {each["message"]: each["times"] for each in found["heads"]} == {"Work": 2, "Instruction": 2, "Reply": 2}


def test_a_box_that_the_server_passes_on_is_not_called_clear(account: DisclosureRecord) -> None:
    call = Call(client="south", sequence=1, base=0, phase=ACCEPT, round=0, kind=pb.INSPECT, body=None)
    payload = Body(encode({"box": np.zeros(64, np.uint8), "sender": "north"})).payload
    account.sent(call, call.head(0), payload)
    assert {each["name"]: each["form"] for each in account.to_json()["messages"]} == {
        "box": "sealed",
        "sender": "clear",
    }


def fields_of(message: Message, prefix: str = "") -> Iterator[str]:
    """Yield what the protobuf library says is set, but not of the arrays."""
    for descriptor, value in message.ListFields():
        if descriptor.message_type is None:
            yield prefix + descriptor.name
        elif descriptor.message_type.name != "Payload":
            for each in value if descriptor.is_repeated else (value,):
                yield from fields_of(each, f"{prefix}{descriptor.name}.")


KINDS: list[Any] = [
    *(pb.Hello, pb.Welcome, pb.Instruction, pb.Reply, pb.Farewell, pb.JoinReply),
    *(health_pb2.HealthCheckRequest, reflection_pb2.ServerReflectionRequest),
    reflection_pb2.ServerReflectionResponse,
]


def fill(message: Any, draw: st.DrawFn) -> None:
    """Set some of a message's fields, perhaps to what they are when they are not set."""
    for field in message.DESCRIPTOR.fields:
        if field.name == "payload" or not draw(st.booleans()):
            continue
        held = getattr(message, field.name)
        if field.message_type is not None:
            part = held.add() if field.is_repeated else held
            part.SetInParent()
            fill(part, draw)
            continue
        texts: dict[int, list[Any]] = {field.TYPE_STRING: ["", "x"], field.TYPE_BYTES: [b"", b"x"]}
        value = draw(st.sampled_from(texts.get(field.type, [0, 1])))
        if field.is_repeated:
            held.append(value)
        else:
            setattr(message, field.name, bool(value) if field.type == field.TYPE_BOOL else value)


@st.composite
def heads(draw: st.DrawFn) -> Message:
    """Return a message that has no arrays."""
    message: Message = draw(st.sampled_from(KINDS))()
    fill(message, draw)
    return message


@given(messages=st.lists(heads(), max_size=8))
def test_heads_are_accounted_for_by_the_fields_that_were_ever_set(messages: list[Message]) -> None:
    account = DisclosureRecord(Path("nowhere"), "run")
    expected: dict[str, set[str]] = {}
    for message in messages:
        account.head("up", message)
        expected.setdefault(message.DESCRIPTOR.name, set()).update(fields_of(message))
    assert {each["message"]: set(each["fields"]) for each in account.to_json()["heads"]} == expected


def test_a_map_is_named_and_not_looked_into(account: DisclosureRecord) -> None:
    states: Any = health_pb2.HealthListResponse()  # type: ignore[attr-defined]
    account.head("down", states)
    states.statuses["service"].status = health_pb2.HealthCheckResponse.SERVING
    account.head("down", states)
    assert {each["message"]: each["fields"] for each in account.to_json()["heads"]}["HealthListResponse"] == [
        "statuses"
    ]


def test_fields_of_heads_are_named_without_their_values(account: DisclosureRecord) -> None:
    account.head("up", pb.Hello(shard=pb.ShardDescription(samples=5, class_names=["ill"]), stateless=True))
    account.head("up", reply(model=1.0))
    named = {each["message"]: each["fields"] for each in account.to_json()["heads"]}
    assert named["Hello"] == ["shard.class_names", "shard.samples", "stateless"]
    assert named["Reply"] == ["sequence"]


def test_the_file_holds_what_was_there_after_a_restart(account: DisclosureRecord) -> None:
    receive(account, "north", reply(model=np.zeros(4)), asked(model="noisy"))
    account.save()
    again = DisclosureRecord(account.path, "run")
    again.resume(["north", "south"])
    assert again.to_json() == account.to_json() == json.loads(account.path.read_text())
    receive(again, "north", reply(model=np.zeros(4)), asked(model="noisy"))
    assert [each["times"] for each in again.to_json()["messages"]] == [2]


def test_where_a_run_could_be_watched_is_told_once_and_kept(account: DisclosureRecord, tmp_path: Path) -> None:
    assert account.to_json()["exporters"] == []
    account.save()
    page, metrics = (
        ExporterEntry("dashboard", "http://127.0.0.1:7444/"),
        ExporterEntry("metrics", "http://x:9464/metrics"),
    )
    account.shown(page, metrics)
    account.save_news()
    again = DisclosureRecord(account.path, "run")
    again.resume([])
    again.shown(metrics)
    told = again.to_json()["exporters"]
    assert [each["exporter"] for each in told] == ["dashboard", "metrics"]
    assert "no password" in told[0]["readers"]
    (first, second) = exporter_rows({"exporters": told})
    assert first.startswith("dashboard at http://127.0.0.1:7444/: the run's id")
    assert "no client's name" in second
    older = json.loads(account.path.read_text())
    older["exporters"][0]["exporter"] = "live page"  # the name of earlier versions
    account.path.write_text(json.dumps(older))
    (again := DisclosureRecord(account.path, "run")).resume([])
    assert again.to_json()["exporters"] == told
    older["exporters"][0]["exporter"] = "telegraph"
    account.path.write_text(json.dumps(older))
    with raises(CheckpointError, source=account.path):
        DisclosureRecord(account.path, "run").resume([])
    del older["exporters"]
    account.path.write_text(json.dumps(older))
    DisclosureRecord(account.path, "run").resume([])
    assert exporter_rows(older) == []


def test_the_command_shows_a_table_of_words(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    account = DisclosureRecord(folder.disclosures, "run", uplink=Uplink(noise=0.5))
    account.opened("north", ["client"])
    receive(account, "north", reply(model=np.zeros(4), loss=0.5), asked(model="noisy", loss="clear"))
    account.shown(ExporterEntry("metrics", "http://127.0.0.1:9464/metrics"))
    account.save()
    found = load_disclosures(tmp_path)
    (model, loss) = disclosure_rows(found)
    assert model[3:6] == ("float64 [4]", "with noise", "the server")
    assert loss[3:7] == ("real", "in clear", "the server", "all")
    assert [row[0] for row in head_rows(found)] == ["Work", "Reply"]
    assert noise_rows(found) == ["noise of standard deviation 0.5, which promises nothing"]
    shown = CliRunner().invoke(application(), ["disclosures", str(tmp_path)], env={"COLUMNS": "200"})
    assert shown.exit_code == 0, shown.output
    assert "with noise" in shown.output
    assert "metrics at http://127.0.0.1:9464/metrics: the run's id" in shown.output
    as_json = CliRunner().invoke(application(), ["disclosures", str(tmp_path), "--json"])
    assert json.loads(as_json.output) == found


def test_a_narrow_terminal_shows_blocks_in_which_nothing_is_cut_off(account: DisclosureRecord, tmp_path: Path) -> None:
    receive(account, "north", reply(the_longest_of_names=np.zeros(4)), asked(the_longest_of_names="pseudonyms"))
    account.save()

    def shown(width: int) -> list[str]:
        words = ["disclosures", str(tmp_path)]
        lines: list[str] = CliRunner().invoke(application(), words, env={"COLUMNS": str(width)}).stdout.splitlines()
        return lines[: next(place for place, line in enumerate(lines) if line.startswith("Heads"))]

    assert "pseudonyms" in shown(160)[1]
    heading, first, *_ = narrow = shown(80)
    assert heading == "train, client to server"
    assert first.rstrip() == "  the_longest_of_names  float64 [4], pseudonyms; north, round 3, 1 time"
    assert all(len(line) <= 80 and "…" not in line for line in narrow)


def _set(*path: Any, value: Any) -> Callable[[Any], None]:
    def change(account: Any) -> None:
        for key in path[:-1]:
            account = account[key]
        account[path[-1]] = value

    return change


@pytest.mark.parametrize(
    "change",
    [
        _set("messages", value=None),
        _set("messages", 0, value=7),
        _set("messages", 0, "direction", value="sideways"),
        _set("messages", 0, "shape", 0, value=4),
        _set("messages", 0, "shape", 0, 1, value="4"),
        _set("messages", 0, "first_round", value=math.nan),
        _set("messages", 0, "times", value=None),
        _set("messages", 0, "key", value=5),
        _set("messages", 0, "clients", value=3),
        _set("heads", 0, "fields", value=1),
        _set("noise", value={"mechanism": "x", "delta": 0.1, "groups": [{}]}),
        _set("noise", value={"mechanism": "x", "standard_deviation": 10**400}),
        _set("exporters", value=[{}]),
    ],
    ids=lambda found: found if isinstance(found, str) else "",
)
def test_an_account_that_a_hand_has_changed_is_refused(
    account: DisclosureRecord, tmp_path: Path, change: Callable[[Any], None]
) -> None:
    path = RunFolder(tmp_path).disclosures
    account.opened("north", ["client"])
    receive(account, "north", reply(model=np.zeros(4)), asked(model="noisy"))
    told = account.to_json()
    path.write_text(json.dumps(told))
    disclosure_rows(load_disclosures(tmp_path))
    change(told)
    path.write_text(json.dumps(told))
    with raises(CheckpointError, file="disclosures.json"):
        load_disclosures(tmp_path)


@pytest.mark.parametrize("settings", [b"\xa8", b"[1]", b"rounds: " + b"9" * 5000, b"a: &a [*a]", None], ids=str)
def test_the_command_says_which_settings_it_cannot_read(tmp_path: Path, settings: bytes | None) -> None:
    folder = RunFolder(tmp_path)
    DisclosureRecord(folder.disclosures, "run").save()
    if settings is None:
        folder.settings.mkdir()
    else:
        folder.settings.write_bytes(settings)
    found = CliRunner().invoke(application(), ["disclosures", str(tmp_path)])
    assert isinstance(found.exception, CheckpointError)
    assert "settings.yaml" in str(found.exception)


def test_what_a_message_is_called_is_not_taken_for_a_style(account: DisclosureRecord, tmp_path: Path) -> None:
    account.opened("north", ["client"])
    told = account.to_json()
    told["heads"][0] |= {"message": "[/bold]", "fields": ["\x1b[2J"]}
    RunFolder(tmp_path).disclosures.write_text(json.dumps(told))
    shown = CliRunner().invoke(application(), ["disclosures", str(tmp_path)])
    assert shown.exit_code == 0, shown.output
    assert "[/bold]" in shown.output
    assert "\x1b" not in shown.output


def test_the_account_of_a_message_costs_no_more_after_many() -> None:
    account = DisclosureRecord(Path("nowhere"), "run")
    body = Body(encode({"model": np.zeros(4), "t": 1})).payload
    answer = reply(model=np.zeros(4), samples=3)
    call = asked(model="clear", samples="clear")
    head = call.head(0)

    def note(messages: int) -> None:
        for _ in range(messages):
            account.sent(call, head, body)
            receive(account, "north", answer, call)

    assert growth(note, 300) < LINEAR
