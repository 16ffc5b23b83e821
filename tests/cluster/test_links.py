"""Links between real processes: the probe measures what they impose, and no bit of a model depends on them.

Delays and bandwidths are checked strictly from below; from above there is room for a busy machine.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import fenchel
from fenchel.client.probe import ProbeResult, probe
from fenchel.common.errors import SettingsError
from fenchel.common.settings.run import load, validate
from fenchel.common.storage.run_folder import RunFolder
from fenchel.common.tls.credentials import Credentials
from fenchel.deploy.launch.in_process import run_in_process
from tests.cluster import ledger_runs
from tests.cluster.conftest import MakeFederation
from tests.cluster.federation import Federation, Process, digest, fork_server, free_port, wait_until
from tests.messages import raises

pytestmark = pytest.mark.cluster

FEDAVG = Path("fenchel/experiments/fedavg-digits.yaml")
EXPERIMENT = Path("fenchel/experiments/links-digits.yaml")
TRIES = 3  # of what a busy machine may spoil: it makes things slower now and then, never quicker


@pytest.fixture(scope="module")
def waiting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    """A server that waits for clients which never come, and so can be probed."""
    settings = load(FEDAVG).model_dump(mode="json") | {"clients": 2}
    federation = Federation(tmp_path_factory.mktemp("probed"), settings)
    federation.start_server()
    wait_until(lambda: "listening" in federation.says("server"), "the server")
    yield federation
    federation.end()


@pytest.fixture
def through(waiting: Federation) -> Iterator[Callable[..., int]]:
    """Starts ``fenchel relay`` in front of that server, and returns the port to dial."""
    started: list[Process] = []

    def start(*words: str) -> int:
        port = free_port()
        log = f"relay-{len(waiting.started)}"  # not named for the port, which an earlier relay may have had
        listen, to = f"127.0.0.1:{port}", f"127.0.0.1:{waiting.port}"
        started.append(waiting.process(log, "relay", "--listen", listen, "--to", to, *words))
        wait_until(lambda: "leads to" in waiting.says(log), "the relay")
        return port

    yield start
    for process in started:
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0  # stopping it is no failure


async def probed(waiting: Federation, port: int, **options: Any) -> ProbeResult:
    credentials = Credentials.load(waiting.folder / "certs" / "client-000")
    return await probe(f"localhost:{port}", credentials, "client-000", **options)


def relayed(waiting: Federation) -> list[float]:
    """Return the megabytes that the last relay counted up and down, after its end."""
    wait_until(lambda: waiting.started[-1].poll() is not None, "the relay's end")
    said = waiting.says(f"relay-{len(waiting.started) - 1}")
    counted = re.search(r"up ([\d.]+) ([kM])B  down ([\d.]+) ([kM])B  connections 0 of 1  cuts 0", said)
    assert counted is not None
    up, up_unit, down, down_unit = counted.groups()
    return [float(number) / (1 if unit == "M" else 1000) for number, unit in ((up, up_unit), (down, down_unit))]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("preset", "rtt"),
    [
        ("none", 0.0),
        ("datacentre", 0.0005),
        ("hyfdca-257ms", 0.2575),
        pytest.param("hyfdca-800ms", 0.8, marks=pytest.mark.slow),  # make test-all
    ],
)
async def test_the_probe_measures_the_round_trip_that_the_link_imposes(
    waiting: Federation, through: Callable[..., int], preset: str, rtt: float
) -> None:
    port = through("--link", preset)
    longest = 1.3 * rtt + 0.05  # on a busy machine; a way that was imposed twice would take longer
    medians = []
    for _ in range(TRIES):
        result = await probed(waiting, port, pings=6 if rtt > 0.1 else 50, payload_bytes=1000, seconds=0.0)
        assert result.rtt_p50 >= rtt
        assert abs(result.clock_offset) <= result.clock_uncertainty
        medians.append(result.rtt_p50)
        if medians[-1] <= longest:
            break
    assert min(medians) <= longest


@pytest.mark.slow  # make test-all
async def test_the_probe_measures_the_bandwidths_that_the_link_imposes(
    waiting: Federation, through: Callable[..., int]
) -> None:
    port = through("--up", "20Mbit", "--down", "60Mbit")
    up, down = 2.5e6, 7.5e6
    best = (0.0, 0.0)
    for _ in range(TRIES):
        result = await probed(waiting, port, pings=2, seconds=3.0)
        assert result.upload <= up
        assert result.download <= down
        best = max(best[0], result.upload), max(best[1], result.download)
        if best[0] >= 0.75 * up and best[1] >= 0.75 * down:
            break
    assert best[0] >= 0.75 * up
    assert best[1] >= 0.75 * down


@pytest.mark.slow  # make test-all
def test_the_probe_of_a_slow_link_sends_little(waiting: Federation, through: Callable[..., int]) -> None:
    port = through("--up", "200kbit", "--down", "400kbit", "--idle", "1")
    result = asyncio.run(probed(waiting, port, pings=2, seconds=0.0))
    assert all(megabytes < 1.0 for megabytes in relayed(waiting))  # four payloads of 1 MiB would take minutes
    assert 0.5 * 25e3 <= result.upload <= 25e3
    assert 0.5 * 50e3 <= result.download <= 50e3


async def test_the_probe_measures_the_jitter_that_the_link_imposes(
    waiting: Federation, through: Callable[..., int]
) -> None:
    port = through("--rtt", "20ms", "--jitter", "20ms")
    result = await probed(waiting, port, pings=60, payload_bytes=1000, seconds=0.0)
    # Ways up and down are exponential with a mean of 10 ms, so round trips differ by 15 ms on average.
    assert result.jitter >= 0.008
    assert result.rtt_p50 >= 0.02 + 0.009  # the median of their sum is 16.8 ms


def test_the_relay_counts_what_has_passed(waiting: Federation, through: Callable[..., int]) -> None:
    port = through("--link", "none", "--idle", "1")
    asyncio.run(probed(waiting, port, pings=2, payload_bytes=1 << 18, seconds=0.0))
    least = (4 * (1 << 18) + (1 << 16)) / 1e6
    for megabytes in relayed(waiting):
        assert least < megabytes < 1.05 * least  # five payloads each way, and what is around them


def test_words_that_are_no_link_are_refused() -> None:
    words = ["relay", "--listen", "localhost:0", "--to", "localhost:1", "--link", "pigeon"]
    done = subprocess.run([sys.executable, "-m", "fenchel", *words], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert "preset" in done.stderr
    assert "Traceback" not in done.stderr


def in_one_process(settings: dict[str, Any], parent: Path) -> str:
    folder = RunFolder.create(parent, "in-process")
    asyncio.run(run_in_process(validate(settings), folder))
    return digest(folder.model)


def passed(run: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run / "links.json").read_text())
    return found


@pytest.mark.slow
def test_the_experiment_has_the_bits_of_a_run_without_links_and_says_what_each_client_had(tmp_path: Path) -> None:
    run = fenchel.up(EXPERIMENT, overrides=["rounds=2"], runs=tmp_path, processes=2)
    settings = load(EXPERIMENT, ["rounds=2"])
    assert settings.links is not None
    assert run.settings.links == settings.links
    links = settings.links.of_clients([f"client-{number:03d}" for number in range(4)])
    calls = run.calls
    for name, link in links.items():
        assert calls[calls["client"] == name]["total_s"].min() >= link.rtt
    told = passed(run.path)
    assert {name: found["link"] for name, found in told.items()} == {
        name: link.model_dump(mode="json") for name, link in links.items()
    }
    for found in told.values():
        assert found["passed"]["up"] > 1000
        assert found["passed"]["connections"] >= 1
    without = settings.model_dump(mode="json") | {"links": None}
    assert digest(run.path / "model.npz") == in_one_process(without, tmp_path)


@pytest.mark.slow  # make test-all
@pytest.mark.timeout(300)
def test_links_that_are_cut_in_the_middle_of_a_run_cost_time_and_not_a_bit_of_the_model(tmp_path: Path) -> None:
    rounds = 90
    links = {
        "default": {"rtt": "5ms", "cut_every": "1s", "cut_for": "0.3s"},
        # Longer than gRPC waits for a handshake (5 s): a link that is down must not look like a bad certificate.
        "clients": {"client-001": {"cut_at": ["3s"], "cut_for": "7s"}},
    }
    settings = ledger_runs.settings(rounds, nap=0.02) | {"links": links}
    run = fenchel.up(settings, runs=tmp_path)
    cuts = {name: found["passed"]["cuts"] for name, found in passed(run.path).items()}
    assert cuts["client-000"] >= 3
    assert cuts["client-001"] == 1
    assert run.calls["total_s"].max() >= 4  # somebody waited for the client that was cut off
    assert digest(run.path / "model.npz") == ledger_runs.undisturbed(tmp_path / "reference", rounds)


def test_a_run_in_one_process_has_no_links(tmp_path: Path) -> None:
    with raises(SettingsError, key="links"):
        fenchel.up(EXPERIMENT, runs=tmp_path, in_process=True)


@pytest.mark.slow  # make test-all
def test_a_server_for_other_machines_leaves_links_out_and_says_so(federate: MakeFederation) -> None:
    federation = federate(load(EXPERIMENT, ["rounds=2"]).model_dump(mode="json"))
    federation.start()
    run = federation.finish()
    assert "links: left out" in federation.says("server")
    assert load(run / "settings.yaml").links is None  # the record claims nothing that was not so


def started_up(folder: Path) -> tuple[Process, Path, int]:
    """Begin a run with links; return its process, its log, and the process of its relays."""
    words = ["up", str(FEDAVG), "--runs", str(folder / "runs"), "--clients", "2"]
    words += ["--set", "links.default=hyfdca-257ms", "--set", "rounds=200"]
    log = folder / "log"
    with log.open("ab") as output:
        process = fork_server().start(words, output)
    wait_until(lambda: "round 2 " in log.read_text() or process.poll() is not None, "a round")
    children = [
        int(pid)
        for task in Path(f"/proc/{process.pid}/task").iterdir()
        for pid in (task / "children").read_text().split()
    ]
    (relays,) = (
        pid for pid in children if b"fenchel.deploy.netem.proxies" in Path(f"/proc/{pid}/cmdline").read_bytes()
    )
    return process, log, relays


def has_ended(pid: int) -> bool:
    """Whether a process has ended, perhaps without anybody having asked how."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


@pytest.mark.slow  # make test-all
def test_relays_end_with_whoever_started_them(tmp_path: Path) -> None:
    process, _, relays = started_up(tmp_path)
    process.kill()
    process.wait()
    wait_until(lambda: has_ended(relays), "the end of the relays", 20)


@pytest.mark.slow  # make test-all
def test_a_run_whose_relays_are_killed_stops_and_says_why(tmp_path: Path) -> None:
    process, log, relays = started_up(tmp_path)
    os.kill(relays, signal.SIGKILL)
    assert process.wait(60) == 7
    said = log.read_text()
    assert "the process of the emulated links was killed by signal 9 (Killed), perhaps because memory ran out" in said
    assert "Traceback" not in said
