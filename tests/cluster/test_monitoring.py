"""Real processes are watched: metrics of both roles, one trace over all of them, the dashboard in a browser."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import subprocess
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from fenchel.common.settings.run import validate
from fenchel.common.storage.run_folder import RunFolder
from fenchel.deploy.launch.in_process import run_in_process
from fenchel.report.run import Run
from tests.cluster import paced
from tests.cluster.conftest import MakeFederation
from tests.cluster.federation import PATIENCE, Federation, digest, free_port, wait_until
from tests.cluster.onlooker import Onlooker

pytestmark = pytest.mark.cluster

Labels = frozenset[tuple[str, str]]


def settings(rounds: int) -> dict[str, Any]:
    return {
        "name": "monitored",
        "seed": 5,
        "rounds": rounds,
        "clients": 2,
        "data": {"name": "digits", "holdout": 0.1},
        "objective": {"kind": "softmax", "l2": 1e-4},
        "algorithm": {"name": "fedavg", "local_epochs": 1, "batch_size": 16, "step_size": 0.1},
    }


def endless() -> dict[str, Any]:
    """Return settings of a run whose end is not waited for, and which leaves the processors to those who watch it."""
    chosen = settings(rounds=100_000)
    return chosen | {"algorithm": chosen["algorithm"] | {"name": paced.NAME, "interval": 0.2}}


def fetched(port: int, path: str) -> bytes:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=PATIENCE) as response:
        body: bytes = response.read()
        return body


def scraped(port: int) -> dict[tuple[str, Labels], float]:
    text = fetched(port, "/metrics").decode()
    families = text_string_to_metric_families(text)
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in families
        for sample in family.samples
    }


def answers(port: int, path: str) -> bool:
    try:
        fetched(port, path)
    except OSError:
        return False
    return True


def started(federation: Federation, server: tuple[str, ...], clients: tuple[str, ...] = ()) -> None:
    """Start everybody, the first client with more words than the others."""
    federation.start_server(*server)
    for name in federation.names:
        federation.start_client(name, *(clients if name == federation.names[0] else ()))


def test_both_roles_are_scraped_while_they_run(federate: MakeFederation) -> None:
    at_server, at_client = free_port(), free_port()
    federation = federate(endless(), paced.NAME)
    started(federation, ("--metrics", f"127.0.0.1:{at_server}"), ("--metrics", f"127.0.0.1:{at_client}"))
    none: Labels = frozenset()
    mine: Labels = frozenset({("client", "client-000")})
    trained = mine | {("phase", "train"), ("outcome", "done")}
    wait_until(
        lambda: answers(at_server, "/metrics") and scraped(at_server)["fenchel_rounds_total", none] >= 5, "five rounds"
    )
    wait_until(lambda: scraped(at_client)["fenchel_client_instructions_total", trained] >= 5, "the client's account")
    server, client = scraped(at_server), scraped(at_client)
    later = scraped(at_server)
    assert server["fenchel_clients", frozenset({("state", "connected")})] == 2
    assert 5 <= server["fenchel_rounds_total", none] <= later["fenchel_rounds_total", none]
    socket = frozenset({("layer", "socket"), ("direction", "up")})
    wire = frozenset({("layer", "wire"), ("direction", "up")})
    assert server["fenchel_transferred_bytes_total", socket] > server["fenchel_transferred_bytes_total", wire] > 0
    assert client["fenchel_client_connected", mine] == 1
    assert client["fenchel_client_streams_total", mine] == 1
    assert 0 < client["fenchel_client_round_trip_seconds", mine] < 10
    computed = client["fenchel_client_part_seconds_total", mine | {("part", "compute")}]
    answered = client["fenchel_client_instruction_seconds_sum", frozenset({("phase", "train")})]
    assert computed > 0
    assert answered > 0
    sent = client["fenchel_client_payload_bytes_total", mine | {("direction", "up")}]
    assert sent >= 5 * 640 * 8  # the model, in float64, for each round


@pytest.mark.slow
def test_a_run_is_one_trace_over_all_processes_and_the_model_is_the_same(
    federate: MakeFederation, collector: Onlooker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    federation = federate(settings(rounds=3))
    federation.start()
    model = digest(federation.finish() / "model.npz")
    server, clients = collector.spans("fenchel-server"), collector.spans("fenchel-client")
    (run,) = (span for span in server if span.name == "run")
    trained = [span for span in server if span.name == "phase train"]
    rounds = {span.span_id: span for span in server if span.name == "round"}
    assert len(rounds) == len(trained) == 3
    assert {span.parent_span_id for span in rounds.values()} == {run.span_id}
    assert {span.parent_span_id for span in trained} == set(rounds)
    below = [span for span in clients if span.name == "instruction train"]
    assert {span.trace_id for span in below} == {run.trace_id}
    asked = {span.span_id for span in trained}
    assert sorted(span.parent_span_id for span in below) == sorted([*asked, *asked])  # two clients
    streams = {span.span_id for span in clients if span.name == "stream"}
    assert {link.span_id for link in run.links} == streams
    assert len(streams) == 2
    monkeypatch.delenv("OTEL_TRACES_EXPORTER")
    plain = RunFolder.create(tmp_path, "plain")
    asyncio.run(run_in_process(validate(settings(rounds=3)), plain))
    assert digest(plain.model) == model


@pytest.mark.slow  # make test-all
def test_a_collector_that_is_not_there_costs_a_run_nothing_but_its_traces(
    federate: MakeFederation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "otlp")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{free_port()}")
    federation = federate(settings(rounds=3))
    federation.start()
    wait_until(lambda: "round 3" in federation.says("server"), "the last round")
    ended = time.monotonic()
    federation.finish()
    assert time.monotonic() - ended < 20


CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


def browsed(url: str, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Have a browser open a page, run its scripts, and do what ``words`` say."""
    assert CHROMIUM is not None
    quiet = [
        *("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-sync"),
        *("--disable-background-networking", "--disable-component-update", "--enable-logging=stderr"),
    ]
    return subprocess.run(
        [CHROMIUM, *quiet, f"--user-data-dir={folder}", *words, url],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )


@pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium on this machine")
@pytest.mark.timeout(400)
@pytest.mark.slow  # make test-all
def test_the_live_page_follows_the_run_in_a_browser(federate: MakeFederation, tmp_path: Path) -> None:
    port = free_port()
    federation = federate(endless(), paced.NAME)
    started(federation, ("--dashboard-at", f"127.0.0.1:{port}"))
    wait_until(lambda: answers(port, "/fleet") and json.loads(fetched(port, "/fleet"))["done"] >= 2, "the second round")
    wait_until(lambda: b"Convergence" in fetched(port, "/"), "the page")
    before = json.loads(fetched(port, "/fleet"))["done"]
    # Minutes of the page's own time pass as fast as its requests are answered.
    seen = browsed(f"http://127.0.0.1:{port}/", tmp_path / "browser", "--virtual-time-budget=200000", "--dump-dom")
    page = seen.stdout
    after = json.loads(fetched(port, "/fleet"))
    assert after["running"] is True, "the run ended before the page was seen: give it more rounds"
    assert "Content Security Policy" not in seen.stderr, seen.stderr
    assert "Uncaught" not in seen.stderr, seen.stderr
    live = re.search(r'id="live"[^>]*>([^<]*)', page)
    assert live is not None
    shown = re.search(r"Live: round (\d+) of 100000", live[1])
    assert shown is not None, live[1]
    assert before < int(shown[1]) <= after["round"]
    updates = re.search(r'data-updates="(\d+)"', page)
    assert updates is not None
    assert int(updates[1]) >= 1  # on a busy machine no more are rendered meanwhile
    assert page.count("main-svg") >= 2  # charts are drawn
    for name in federation.names:
        assert f"<td>{name}</td>" in page
    assert page.count('class="state connected"') == 2
    federation.end()
    assert Run(federation.run_folder).rounds > before
