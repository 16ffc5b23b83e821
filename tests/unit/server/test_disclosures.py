"""The account of what crossed: what it calls things, what it must not let itself be told, and its table."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from common.frames import Body
from common.payload import encode
from common.phases import ACCEPT
from common.run_folder import RunFolder
from common.settings.uplink import Uplink
from deploy import command
from proto import fenchel_pb2 as pb
from report.disclosures import disclosure_rows, head_rows, load_disclosures, noise_rows, outlet_rows
from server.calls import Call
from server.disclosures import UNASKED, UNDECLARED, Disclosures, Outlet, fields_of
from server.exchange import Exchange
from server.replies import Gathered


@pytest.fixture
def account(tmp_path: Path) -> Disclosures:
    found = Disclosures(tmp_path / "disclosures.json", "run")
    for client in ("north", "south"):
        found.opened(client, ["client"])
    return found


def asked(client: str = "north", **forms: str) -> Call:
    exchange = Exchange("train", 3, Gathered(), lambda *_: None, 1.0, forms=forms)  # type: ignore[arg-type]
    return Call(client, 7, 0, "train", 3, pb.ASK, None, exchange)


def reply(**values: object) -> pb.Reply:
    return pb.Reply(sequence=7, payload=encode(values).descriptor)  # type: ignore[arg-type]


def test_sizes_are_the_smallest_and_largest_and_clients_are_named_unless_they_are_all(
    account: Disclosures,
) -> None:
    for client, size in (("north", 5), ("north", 3), ("south", 9)):
        (*_, entry) = account.to_json()["messages"] or [None]
        assert entry is None or entry["clients"] == ["north"]
        account.received(client, reply(model=np.zeros((2, size), np.float32)), asked(client, model="clear"))
    (entry,) = account.to_json()["messages"]
    assert (entry["shape"], entry["bytes"], entry["times"]) == ([[2, 2], [3, 9]], [24, 72], 3)
    assert (entry["clients"], entry["first_round"], entry["dtype"]) == ("all", 3, "float32")


def test_a_client_cannot_make_the_account_grow_by_what_nobody_asked_for(account: Disclosures) -> None:
    for number in range(300):
        made_up = {f"{number}-{place}": number for place in range(20)}
        account.received("north", reply(model=1.0, **made_up), asked(model="clear"))
        account.received("north", reply(**made_up), None)
        cipher = pb.Array(name="model")
        cipher.ciphertexts.key_id, cipher.ciphertexts.slots = os.urandom(16), 1
        account.received("north", pb.Reply(payload=pb.Payload(arrays=[cipher])), asked(model="clear"))
    messages = account.to_json()["messages"]
    assert len(messages) < 15
    assert {(each["phase"], each["name"]) for each in messages} == {
        ("train", "model"),
        ("train", UNDECLARED),
        (UNASKED, UNDECLARED),
    }
    assert sum(each["times"] for each in messages) == 300 * 42, "but all of it is counted"


def test_what_goes_on_where_it_broke_off_counts_once(account: Disclosures) -> None:
    body = Body(encode({"model": np.zeros(4)}))
    call = asked()
    account.sent(call, call.head(0), body.payload)
    account.sent(call, call.head(0), body.payload, goes_on=True)
    first = reply(model=np.zeros(4))
    account.received("north", first, asked(model="noisy"))
    first.resume = 16
    account.received("north", first, asked(model="noisy"))
    found = account.to_json()
    assert [(each["form"], each["times"]) for each in found["messages"]] == [("clear", 1), ("noisy", 1)]
    assert {each["message"]: each["times"] for each in found["heads"]} == {
        "Work": 2,
        "Instruction": 2,
        "Reply": 2,
    }


def test_a_box_that_the_server_passes_on_is_not_called_clear(account: Disclosures) -> None:
    call = Call("south", 1, 0, ACCEPT, 0, pb.INSPECT, None)
    payload = Body(encode({"box": np.zeros(64, np.uint8), "sender": "north"})).payload
    account.sent(call, call.head(0), payload)
    assert {each["name"]: each["form"] for each in account.to_json()["messages"]} == {
        "box": "sealed",
        "sender": "clear",
    }


def test_fields_of_heads_are_named_without_their_values() -> None:
    hello = pb.Hello(shard=pb.ShardDescription(samples=5, class_names=["ill"]), stateless=True)
    assert set(fields_of(hello)) == {"shard.samples", "shard.class_names", "stateless"}
    assert set(fields_of(reply(model=1.0))) == {"sequence"}


def test_the_file_holds_what_was_there_after_a_restart(account: Disclosures) -> None:
    account.received("north", reply(model=np.zeros(4)), asked(model="noisy"))
    account.save()
    again = Disclosures(account.path, "run")
    again.resume(["north", "south"])
    assert again.to_json() == account.to_json() == json.loads(account.path.read_text())
    again.received("north", reply(model=np.zeros(4)), asked(model="noisy"))
    assert [each["times"] for each in again.to_json()["messages"]] == [2]


def test_where_a_run_could_be_watched_is_told_once_and_kept(account: Disclosures, tmp_path: Path) -> None:
    assert account.to_json()["outlets"] == []
    account.save()
    page, metrics = Outlet("live page", "http://127.0.0.1:7444/"), Outlet("metrics", "http://x:9464/metrics")
    account.shown(page, metrics)
    account.save_news()
    again = Disclosures(account.path, "run")
    again.resume([])
    again.shown(metrics)
    told = again.to_json()["outlets"]
    assert [each["outlet"] for each in told] == ["live page", "metrics"]
    assert "no password" in told[0]["readers"]
    (first, second) = outlet_rows({"outlets": told})
    assert first.startswith("live page at http://127.0.0.1:7444/: the run's id")
    assert "no client's name" in second
    older = json.loads(account.path.read_text())
    del older["outlets"]
    account.path.write_text(json.dumps(older))
    Disclosures(account.path, "run").resume([])
    assert outlet_rows(older) == []


def test_the_command_shows_a_table_of_words(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    account = Disclosures(folder.disclosures, "run", uplink=Uplink(noise=0.5))
    account.opened("north", ["client"])
    account.received("north", reply(model=np.zeros(4), loss=0.5), asked(model="noisy", loss="clear"))
    account.shown(Outlet("metrics", "http://127.0.0.1:9464/metrics"))
    account.save()
    found = load_disclosures(tmp_path)
    (model, loss) = disclosure_rows(found)
    assert (model.what, model.form, model.readers) == ("float64 [4]", "with noise", "the server")
    assert (loss.what, loss.form, loss.clients) == ("real", "in clear", "all")
    assert [row[0] for row in head_rows(found)] == ["Work", "Reply"]
    assert noise_rows(found) == ["noise of standard deviation 0.5, which promises nothing"]
    if not command.app.registered_commands:
        command.register()
    shown = CliRunner().invoke(command.app, ["disclosures", str(tmp_path)], env={"COLUMNS": "200"})
    assert shown.exit_code == 0, shown.output
    assert "with noise" in shown.output
    assert "metrics at http://127.0.0.1:9464/metrics: the run's id" in shown.output
    as_json = CliRunner().invoke(command.app, ["disclosures", str(tmp_path), "--json"])
    assert json.loads(as_json.output) == found


def test_the_account_costs_little() -> None:
    """Ten thousand messages, each in a fraction of the time that the wire itself takes."""
    account = Disclosures(Path("nowhere"), "run")
    body = Body(encode({"model": np.zeros(4), "t": 1})).payload
    answer = reply(model=np.zeros(4), samples=3)
    call = asked(model="clear", samples="clear")
    head = call.head(0)
    started = time.process_time()
    for _ in range(5000):
        account.sent(call, head, body)
        account.received("north", answer, call)
    assert (time.process_time() - started) / 10_000 < 0.2e-3
