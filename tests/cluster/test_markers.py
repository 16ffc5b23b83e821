"""Planted markers: what is secret is in no file, log or last word of whoever must not have it, nor shown."""

from __future__ import annotations

import csv
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from fenchel.deploy.certificates.keys import make_keys
from fenchel.keys.shared import Secrets
from tests.cluster.conftest import MakeFederation
from tests.cluster.federation import Federation, free_port, wait_until
from tests.cluster.gated import NAME
from tests.cluster.onlooker import Onlooker
from tests.cluster.test_secrets import traces
from tests.slow import rest_slow

pytestmark = pytest.mark.cluster

ILL, WELL = "quokkosis", "nonquokkotic"
ROWS, COLUMNS = 24, ["weight", "height", "pressure"]
FLOATS = "values of four bytes"
FEWEST = {FLOATS: 3}
"""Different markers of a kind that show it: four bytes turn up by chance, as the upper half of some other number."""


@dataclass
class Clinics(Federation):
    """Clients with files of their own, whose contents are found wherever they turn up."""

    secrets: Secrets | None = None
    values: dict[str, list[float]] = field(default_factory=dict)
    identifiers: dict[str, list[str]] = field(default_factory=dict)

    def write_files(self) -> None:
        chance = np.random.default_rng(41)
        for place, name in enumerate(self.names):
            # Each clinic holds all columns of patients of its own, or with HyFDCA columns of the same patients.
            shared = self.secrets is not None
            columns = [COLUMNS[place]] if shared else COLUMNS
            patients = range(ROWS) if shared else range(place * ROWS, (place + 1) * ROWS)
            self.identifiers[name] = [f"wombat{patient * 104729:09d}" for patient in patients]
            drawn = chance.uniform(0.1, 0.9, (ROWS, len(columns)))
            self.values[name] = drawn.ravel().tolist()
            with (self.folder / f"{name}.csv").open("w", newline="") as file:
                writer = csv.writer(file)
                writer.writerow(["patient", *columns, "outcome"])
                for row, who in enumerate(self.identifiers[name]):
                    writer.writerow([who, *map(repr, drawn[row].tolist()), ILL if row % 3 else WELL])

    watched: dict[str, int] = field(default_factory=dict)
    """Ports at which clients, the server, and its dashboard can be watched."""

    def start_server(self, *words: str) -> None:
        if self.watched:
            words += ("--metrics", f"127.0.0.1:{self.watched['server']}")
            words += ("--dashboard-at", f"127.0.0.1:{self.watched['page']}")
        super().start_server(*words)

    def pages(self) -> list[str]:
        """Where all can be watched."""
        whole = [f"http://127.0.0.1:{self.watched['page']}/{part}" for part in ("", "data", "fleet")]
        return [*map(self.page, ("server", *self.names)), *whole]

    def page(self, who: str) -> str:
        """Where the metrics of the server or a client are."""
        return f"http://127.0.0.1:{self.watched[who]}/metrics"

    def client_words(self, name: str) -> list[str]:
        words = [*super().client_words(name), "--data", str(self.folder / f"{name}.csv")]
        words += ["--id", "patient", "--label", "outcome", "--allow", NAME]
        if self.secrets is not None:
            words += ["--secrets", str(self.folder / "keys/clients.secret")]
        if self.watched:
            words += ["--metrics", f"127.0.0.1:{self.watched[name]}"]
        return words

    def markers(self) -> dict[str, list[bytes]]:
        """Every secret by its kind, in every form in which it could lie in a file."""
        values = [value for each in self.values.values() for value in each]
        keys = [(self.folder / "certs" / name / "key.pem").read_text() for name in ("server", *self.names)]
        found = {
            "class names": [ILL.encode(), WELL.encode()],
            "sample ids": [each.encode() for ids in self.identifiers.values() for each in ids],
            "values": [form for value in values for form in (repr(value)[:12].encode(), np.float64(value).tobytes())],
            FLOATS: [np.float32(value).tobytes() for value in values],
            "TLS keys": [line.encode() for key in keys for line in key.splitlines()[1:-1] if len(line) > 30],
        }
        if self.secrets is not None:
            found["shared secrets"] = traces(self.secrets)
        return found


def contents(path: Path) -> Iterator[bytes]:
    """Yield the bytes of a file, and what tables and archives hold when they are unpacked."""
    yield path.read_bytes()
    if path.suffix == ".parquet":
        yield str(pq.read_table(path).to_pylist()).encode()
    if path.suffix == ".npz":
        with np.load(path) as archive:
            yield b"".join(archive[name].tobytes() for name in archive)


def found_in(paths: list[Path], markers: dict[str, list[bytes]]) -> dict[str, set[str]]:
    """Return the kinds of markers that occur in each file, by its name."""
    found: dict[str, set[str]] = {}
    for path in paths:
        for data in contents(path):
            if kinds := shown([data], markers):
                found.setdefault(path.name, set()).update(kinds)
    return found


def shown(contents: Iterable[bytes], markers: dict[str, list[bytes]]) -> set[str]:
    """Return the kinds of markers that occur in what an onlooker has."""
    return {
        kind
        for data in contents
        for kind, each in markers.items()
        if sum(marker in data for marker in each) >= FEWEST.get(kind, 1)
    }


def files(folder: Path) -> list[Path]:
    return [path for path in sorted(folder.rglob("*")) if path.is_file()]


def settings(folder: Path, **changes: Any) -> dict[str, Any]:
    return {
        "name": "markers",
        "rounds": 5,
        "clients": 3,
        "data": {"name": "own", "classes": [ILL, WELL], "columns": COLUMNS},
        "objective": {"kind": "logistic", "l2": 0.01},
        "algorithm": {"name": NAME, "gates": str(folder), "failing": "client-002"},
        "participation": {"min_replies": 2},
    } | changes


def hyfdca(folder: Path) -> dict[str, Any]:
    algorithm = {"name": "hyfdca", "encryption": {"key_bits": 2048}}
    evaluation = {"server": False, "clients": False}
    return settings(folder, rounds=3, algorithm=algorithm, evaluation=evaluation, participation={})


@pytest.fixture
def loose() -> Iterator[None]:
    """Nothing but the programs themselves keeps others from reading their files."""
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.mark.slow
@pytest.mark.parametrize("encrypted", rest_slow([False, True]), ids=["fails", "hyfdca"])
def test_no_file_or_word_holds_what_its_owner_must_not_have(
    encrypted: bool,
    federate: MakeFederation,
    tmp_path: Path,
    loose: None,
    collector: Onlooker,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clinics = federate(hyfdca(tmp_path) if encrypted else settings(tmp_path), NAME, Clinics)
    if encrypted:
        make_keys(tmp_path / "keys", 2048)
        clinics.secrets = Secrets.load(tmp_path / "keys/clients.secret")
    clinics.write_files()
    clinics.watched = {who: free_port() for who in ("server", "page", *clinics.names)}
    (tmp_path / "2.closed").touch()
    with collector.looking(clinics.pages()):
        clinics.start()
        clinics.wait_for_round(1)
        held = clinics.clients["client-002"]
        if encrypted:  # there are no gates
            held.send_signal(signal.SIGSTOP)
        else:
            check_modes(tmp_path)
        collector.seen.clear()
        silent = {clinics.page("client-002")} if encrypted else set()
        wait_until(lambda: collector.seen.keys() >= set(clinics.pages()) - silent, "all pages")
        held.send_signal(signal.SIGCONT)
        (tmp_path / "2.closed").unlink()
        run = clinics.finish()
    monkeypatch.delenv("OTEL_TRACES_EXPORTER")
    trace = subprocess.run([sys.executable, "-m", "fenchel", "trace", str(run)], capture_output=True, check=False)
    assert trace.returncode == 0
    markers = clinics.markers()
    own = found_in([tmp_path / f"{name}.csv" for name in clinics.names], markers)
    assert all({"class names", "sample ids", "values"} <= kinds for kinds in own.values()), "they can be found"
    for name in clinics.names:
        single = np.array(clinics.values[name], np.float32)
        assert shown([np.sort(single).tobytes()], markers) == {FLOATS}, "in any order"

    # The server knows the names of the classes, from its own settings (docs/security.md), and nothing else.
    everything = files(run)
    names = {path.name for path in everything}
    assert {"log.jsonl", "metrics.parquet", "calls.parquet", "trace.json", "disclosures.json", "latest"} <= names
    knowing = ("settings.yaml", "latest", "previous", "report.html")
    assert found_in(everything, markers) == {name: {"class names"} for name in knowing}
    for path in everything:
        told = path.read_bytes()
        assert max(told.count(name) for name in markers["class names"]) <= 4, "once for each client, not each sample"
    assert found_in([tmp_path / "server.log"], markers) == {}
    # Logs of clients: no data, not even of the one that failed with data in its error.
    logs = [tmp_path / f"{name}.log" for name in clinics.names]
    assert found_in(logs, markers) == {}
    if not encrypted:
        said = clinics.says("client-002")
        assert "unexpected ValueError" in said
        assert "tests/cluster/gated.py" in said, "but where it failed"
        assert "unexpected ValueError" in (run / "log.jsonl").read_text()
    check_modes(tmp_path)
    # Metrics of both roles and traces: nothing. The dashboard: what the settings say, as the report.
    for address, answers in collector.seen.items():
        assert shown(answers, markers) <= ({"class names"} if address.endswith(("/", "/data")) else set()), address
    spans = b"".join(each.SerializeToString() for each in collector.sent)
    assert all(word in spans for word in (b"fenchel-server", b"fenchel-client", b"client-000")), "they were sent"
    assert shown([spans], markers) == set()


def check_modes(folder: Path) -> None:
    """Whatever lies in a private place is its owner's alone: journals, ledgers, secrets, keys, checkpoints."""
    places = [folder / "state", folder / "certs", folder / "keys", *folder.glob("runs/*/checkpoint")]
    private = [path for place in places for path in files(place) if path.name != "server.public"]
    assert [path for path in private if stat.S_IMODE(path.stat().st_mode) != 0o600] == []
    assert any(path.name == "key.pem" for path in private)
    assert any(path.parent.name == "checkpoint" for path in private)


@pytest.mark.slow
def test_a_client_that_dies_of_a_defect_leaves_no_data_behind(federate: MakeFederation, tmp_path: Path) -> None:
    """Before the run begins, where no algorithm catches anything, and with all of its memory."""
    clinics = federate(settings(tmp_path), NAME, Clinics)
    clinics.write_files()
    (tmp_path / "1.closed").touch()
    broken = (
        "import fenchel.client.session\n"
        "from fenchel.client.session import ClientData\n"
        "def describe(self):\n"
        "    raise RuntimeError(f'{self.shard.sample_ids} {self.shard.features.tolist()} {self.shard.class_names}')\n"
        "ClientData.description = describe\n"
        "from fenchel.deploy.cli.main import main\n"
        "main()\n"
    )
    clinics.start_server()
    for name in clinics.names:
        clinics.start_client(name)
    victim = clinics.clients["client-000"]
    limits = Path(f"/proc/{victim.pid}/limits")
    wait_until(lambda: "working for run" in clinics.says("client-000"), "a client at work")
    (line,) = (line for line in limits.read_text().splitlines() if line.startswith("Max core file size"))
    assert line.split()[4] == "0", "its memory holds its data, and is written nowhere when it crashes"
    clinics.kill("client-000")
    words = clinics.client_words("client-000")
    died = subprocess.run([sys.executable, "-c", broken, *words], capture_output=True, check=False, timeout=60)
    assert died.returncode == 1
    assert b"unexpected RuntimeError" in died.stderr
    assert b"in describe" in died.stderr
    for kind, markers in clinics.markers().items():
        assert not any(marker in died.stdout + died.stderr for marker in markers), kind
