"""The account of what crossed, held against what real clients read and write inside TLS."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from fenchel.keys.shared import Secrets
from tests.algorithms.wire import Frame, account_of, check_account, entries, messages
from tests.cluster.conftest import MakeFederation
from tests.cluster.federation import PATIENCE, Federation, Process, free_port, wait_until
from tests.cluster.onlooker import Onlooker
from tests.cluster.test_secrets import VAULT, kept, settings
from tests.cluster.test_secrets import traces as traces_of
from tests.cluster.wiretap import FILE

pytestmark = pytest.mark.cluster


class Tapped(Federation):
    """Clients that write down what they read and write."""

    def process(self, log: str, *words: str) -> Process:
        if words[0] != "client":
            return super().process(log, *words)
        with (self.folder / f"{log}.log").open("ab") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "tests.cluster.wiretap", *words],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=os.environ | {"PYTHONPATH": str(Path.cwd()), FILE: str(self.folder / f"{log}.wire")},
            )
        self.started.append(process)
        return process

    def heard(self) -> list[Frame]:
        """Return all frames of all clients."""
        return [
            Frame(name, direction, bytes.fromhex(frame))
            for name in self.names
            for direction, frame in map(json.loads, (self.folder / f"{name}.wire").read_text().splitlines())
        ]


@pytest.mark.slow
def test_sealed_boxes_are_listed_as_such_and_hold_nothing_that_can_be_read(federate: MakeFederation) -> None:
    federation = federate(settings(rounds=30, nap=0.05), VAULT, Tapped)
    federation.start()
    federation.wait_for_round(2)
    secrets = Secrets.load(kept(federation, federation.names[0], "clients.secret"))
    account = account_of(federation.finish())
    frames = federation.heard()
    check_account(account, messages(frames))
    listed = entries(account)
    sealed = {
        (phase, direction, name): each
        for (phase, direction, name, *_), each in listed.items()
        if each["form"] == "sealed"
    }
    assert {place: each["readers"] for place, each in sealed.items()} == {
        ("fenchel.secrets.seal", "up", "*/box"): "the one client that each box is sealed for",
        ("fenchel.secrets.accept", "down", "box"): "the clients it went to",
    }
    assert not any(trace in frame.data for frame in frames for trace in traces_of(secrets))
    assert {each["clients"][0] for each in sealed.values() if each["direction"] == "up"} == {federation.names[0]}


@pytest.mark.slow  # make test-all
def test_where_a_run_could_be_watched_is_listed_with_what_is_shown_there(
    federate: MakeFederation, collector: Onlooker
) -> None:
    """Held against all that left the server by these ways."""
    federation = federate(settings(rounds=30, nap=0.05), VAULT, Tapped)
    metrics, page = free_port(), free_port()
    federation.start_server("--metrics", f"127.0.0.1:{metrics}", "--dashboard-at", f"127.0.0.1:{page}")
    for name in federation.names:
        federation.start_client(name)
    federation.wait_for_round(2)
    secrets = Secrets.load(kept(federation, federation.names[0], "clients.secret"))
    federation.clients[federation.names[0]].send_signal(signal.SIGSTOP)  # the run waits for those who look

    def fetched(port: int, path: str) -> bytes:
        answers: list[bytes] = []

        def is_answered() -> bool:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=PATIENCE) as response:
                    answers.append(response.read())
            except urllib.error.HTTPError as busy:
                assert busy.code == 503
            return bool(answers)

        wait_until(is_answered, path)
        return answers[0]

    shown = {"metrics": fetched(metrics, "/metrics"), "dashboard": fetched(page, "/fleet") + fetched(page, "/")}
    federation.clients[federation.names[0]].send_signal(signal.SIGCONT)
    account = account_of(federation.finish())
    shown["traces"] = b"".join(
        each.SerializeToString() for each in collector.sent if b"fenchel-server" in each.SerializeToString()
    )
    listed = {each["exporter"]: each for each in account["exporters"]}
    assert {name: each["address"] for name, each in listed.items()} == {
        "metrics": f"http://127.0.0.1:{metrics}/metrics",
        "dashboard": f"http://127.0.0.1:{page}/",
        "traces": collector.collector,
    }
    for name, each in listed.items():
        has_names = any(client.encode() in shown[name] for client in federation.names)
        assert has_names == ("names of clients" in each["shows"]), name
        assert (account["run"].encode() in shown[name]) == ("the run's id" in each["shows"]), name
        assert not any(trace in shown[name] for trace in traces_of(secrets)), name
    assert b"fenchel.phase" in shown["traces"]
    assert b"fenchel_rounds_total" in shown["metrics"]
