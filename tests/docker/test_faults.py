"""What a network does to real containers: cuts, silence, frozen processes, another address. No bit may change.

A gate in the clients' algorithm keeps them computing until the test has done what it wants to do in the middle of
a round, and another one in the next round until the test has seen what came of it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import yaml

from fenchel.common.settings.run import load
from fenchel.common.storage.run_folder import RunFolder
from fenchel.deploy.launch.in_process import run_in_process
from fenchel.deploy.launch.names import client_names
from tests.docker.cluster import ROOT, Cluster, command, model_bytes
from tests.docker.held import NAME

pytestmark = [pytest.mark.docker, pytest.mark.timeout(600)]

CLIENTS = 3
NAMES = client_names(CLIENTS)
VICTIM = "client-001"
FAULT, LOOK = (3, 4)  # the round in which something happens, and the one in which the test looks what came of it
ROUNDS = 12
KEEPALIVE = 2.0
RETURN = 10.0  # seconds in which a client is back: 5 s between two attempts, and 5 s for one that comes to nothing
SLACK = 3.0  # for a busy machine, and for the commands of this test themselves

Bring = Callable[..., Cluster]
log = logging.getLogger("fenchel.tests")  # what was measured: pytest --log-cli-level=INFO


def silence(keepalive: float) -> float:
    """Return after how many seconds without a word the other side must be known to be gone: a ping, and its answer.

    The kernel gives up between two of its own attempts, so it may be late by a quarter.
    """
    return 1.25 * 2 * keepalive + SLACK


def frozen(keepalive: float) -> float:
    """Return the same where a kernel goes on acknowledging for a process that does nothing."""
    return 4 * keepalive + SLACK


@dataclass(frozen=True)
class Held:
    """A cluster in which a test decides how long clients compute.

    Attributes
    ----------
    cluster
        The containers.
    settings
        The settings file.
    gates
        The folder of the gates.
    """

    cluster: Cluster
    settings: Path
    gates: Path

    def up_to_the_fault(self) -> Cluster:
        """Bring the cluster up, and return it in the middle of a round: one computes, the others have answered."""
        for t in (FAULT, LOOK):
            (self.gates / f"{VICTIM}.{t}.closed").touch()
        self.cluster.up(CLIENTS)
        self.cluster.wait(lambda: self.begun(FAULT) == 1, f"round {FAULT} to begin")
        self.cluster.wait(lambda: [each for each in NAMES if self.asked(each)] == [VICTIM], "the others' answers")
        return self.cluster

    def let_go(self, t: int) -> None:
        """Let the victim go on in round t."""
        (self.gates / f"{VICTIM}.{t}.closed").unlink()

    def begun(self, t: int) -> int:
        """Return how often the victim has begun to compute in round t."""
        path = self.gates / f"{VICTIM}.{t}.began"
        return len(path.read_text().splitlines()) if path.exists() else 0

    def asked(self, client: str) -> bool:
        """Whether a client has a question open."""
        return self.cluster.fleet()[client]["question"] is not None

    def away(self, client: str, since: float, within: float) -> None:
        """Wait until the server knows that a client is gone, which must not take long."""
        self._wait_for(client, "away", 1, since, within)

    def back(self, client: str, streams: int, since: float, within: float = RETURN + SLACK) -> None:
        """Wait until a client has come as often as expected, which must not take long."""
        self._wait_for(client, "connected", streams, since, within)

    def _wait_for(self, client: str, state: str, streams: int, since: float, within: float) -> None:
        def standing() -> tuple[str, int]:
            found = self.cluster.fleet()[client]
            return found["state"], found["streams"]

        self.cluster.wait(lambda: standing() == (state, streams), f"{client}: {state} ({streams})", 180)
        seconds = self.cluster.fleet()[client]["since_unix"] - since
        log.info("%s is %s after %.1f s", client, state, seconds)
        assert seconds < within

    def asks(self) -> list[dict[str, Any]]:
        """Return the record of all proposals that were asked for, once the run is over."""
        rows = pq.read_table(self.cluster.run_folder() / "calls.parquet").to_pylist()
        return [row for row in rows if row["phase"] == "propose"]

    async def ends_with_the_bits_of_an_undisturbed_run(self, parent: Path) -> None:
        """Let the victim go on, wait for the end of all, and compare."""
        self.let_go(LOOK)
        assert set(self.cluster.finished().values()) == {0}
        undisturbed = RunFolder.create(parent, "undisturbed")
        await run_in_process(load(self.settings, ["algorithm.gates=/nowhere"]), undisturbed)
        assert model_bytes(self.cluster.run_folder()) == model_bytes(undisturbed.path)

    async def ends_without_work_done_twice(self, parent: Path, lasted: float) -> dict[str, Any]:
        """Do the same; the victim's one answer of the round of the fault counted. Return its record.

        Parameters
        ----------
        lasted
            Seconds of the fault, which that answer must have outlived.
        """
        await self.ends_with_the_bits_of_an_undisturbed_run(parent)
        assert self.begun(FAULT) == 1, "it computed once"
        (call,) = (row for row in self.asks() if (row["client"], row["round"]) == (VICTIM, FAULT))
        assert call["outcome"] == "counted"
        assert call["total_s"] > lasted
        return call


Hold = Callable[..., Held]


@pytest.fixture
def hold(bring: Bring, tmp_path: Path) -> Hold:
    """Describes a cluster; keywords replace sections of its settings."""

    def describe(overlays: Sequence[str] = (), variables: Mapping[str, str] | None = None, **sections: Any) -> Held:
        gates = tmp_path / "gates"
        gates.mkdir()
        settings = {
            "name": "held",
            "seed": 11,
            "rounds": ROUNDS,
            "clients": CLIENTS,
            "data": {"name": "digits"},
            "objective": {"kind": "softmax"},
            "participation": {"deadline": 120.0},
            "evaluation": {"server": False, "clients": False},
            "network": {"keepalive": KEEPALIVE},
        } | sections
        settings["algorithm"] = {"name": NAME, "gates": "/gates"} | sections.get("algorithm", {})
        path = tmp_path / "held.yaml"
        path.write_text(yaml.safe_dump(settings))
        mounts = [f"{ROOT / 'tests'}:/own/tests:ro", f"{gates}:/gates"]
        brings = {"environment": {"PYTHONPATH": "/own"}, "volumes": mounts}
        serves = "server /runs --listen=0.0.0.0:7443 --certs=/certs --dashboard-at=127.0.0.1:7444 -- /settings.yaml"
        # The host's name is that of the folder of a run in progress: a new container goes on with the old one's.
        server = brings | {"command": serves, "hostname": "server"}
        overlay = tmp_path / "overlay.yml"
        overlay.write_text(yaml.safe_dump({"services": {"server": server, "client": brings}}))
        files = (ROOT / "docker-compose.yml", *(ROOT / name for name in overlays), overlay)
        cluster = bring(
            FENCHEL_SETTINGS=str(path),
            FENCHEL_CLIENT_OPTIONS=f"--allow {NAME}",
            COMPOSE_FILE=os.pathsep.join(map(str, files)),
            **(variables or {}),
        )
        return Held(cluster, path, gates)

    return describe


async def test_a_client_that_is_cut_off_while_it_computes_rejoins_and_its_answer_counts(
    hold: Hold, tmp_path: Path
) -> None:
    run = hold()
    cluster = run.up_to_the_fault()
    victim = cluster.container_of(VICTIM)
    cut = time.time()
    cluster.cut(victim)
    run.away(VICTIM, cut, silence(KEEPALIVE))
    run.let_go(FAULT)  # its answer is ready while it is cut off
    await asyncio.sleep(1)
    assert run.asked(VICTIM)
    mended = time.time()
    cluster.mend(victim)
    run.back(VICTIM, 2, mended)
    await run.ends_without_work_done_twice(tmp_path, mended - cut)


@pytest.mark.slow
async def test_a_client_that_is_cut_off_while_its_reply_is_on_its_way_sends_the_rest_of_it(
    hold: Hold, tmp_path: Path
) -> None:
    numbers, size = 1 << 19, 1 << 22  # 4 MiB take 8 s at half a megabyte a second
    run = hold(
        ["deploy/compose.links.yml"],
        {"FENCHEL_LINK": "none", "FENCHEL_LINK_OPTIONS": "--up 4Mbit"},
        algorithm={"laden": VICTIM, "laden_round": FAULT, "load": numbers},
    )
    cluster = run.up_to_the_fault()
    victim = cluster.container_of(VICTIM)
    (server,) = cluster.containers("server")
    before = cluster.received(server)
    run.let_go(FAULT)
    cluster.wait(lambda: cluster.received(server) - before > 0.6 * size, "more than half of the reply")
    cut = time.time()
    cluster.cut(victim, "outside")
    run.away(VICTIM, cut, frozen(KEEPALIVE))  # to the server's kernel the relay is the other side, and it is there
    arrived = cluster.received(server) - before
    log.info("%d bytes have arrived", arrived)
    assert 0.6 * size < arrived < 0.95 * size, "it was cut in the middle of the reply"
    assert run.asked(VICTIM)
    mended = time.time()
    cluster.mend(victim, network="outside")
    run.back(VICTIM, 2, mended)
    call = await run.ends_without_work_done_twice(tmp_path, mended - cut)
    assert size < call["bytes_up"] <= call["wire_up"] < 1.25 * size, "what had arrived was not sent again"


@pytest.mark.slow
async def test_a_server_that_is_cut_off_from_all_is_found_again_by_all(hold: Hold, tmp_path: Path) -> None:
    run = hold()
    cluster = run.up_to_the_fault()
    (server,) = cluster.containers("server")
    cut = time.time()
    cluster.cut(server)
    for client in NAMES:
        run.away(client, cut, silence(KEEPALIVE))
    clients_notice(cluster, cut, silence(KEEPALIVE))
    assert run.asked(VICTIM)
    run.let_go(FAULT)
    mended = time.time()
    cluster.mend(server, "server")
    for client in NAMES:
        run.back(client, 2, mended)
    assert cluster.connections() == CLIENTS
    await run.ends_without_work_done_twice(tmp_path, mended - cut)


def clients_notice(cluster: Cluster, since: float, within: float) -> None:
    """Wait until every client has said that its server does not answer, which must not take long."""

    def said(container: str) -> list[float]:
        return [moment for moment in cluster.said(container, "does not answer") if moment > since]

    for container in cluster.containers("client"):
        cluster.wait(lambda container=container: bool(said(container)), "a client to notice")  # type: ignore[misc]
        seconds = said(container)[0] - since
        log.info("a client knows after %.1f s", seconds)
        assert seconds < within


@pytest.mark.slow
async def test_a_frozen_client_that_thaws_before_the_deadline_changes_nothing(hold: Hold, tmp_path: Path) -> None:
    run = hold()
    cluster = run.up_to_the_fault()
    victim = cluster.container_of(VICTIM)
    stopped = time.time()
    cluster.signal(victim, signal.SIGSTOP)
    run.away(VICTIM, stopped, frozen(KEEPALIVE))
    assert run.asked(VICTIM)
    run.let_go(FAULT)
    thawed = time.time()
    cluster.signal(victim, signal.SIGCONT)
    run.back(VICTIM, 2, thawed)
    assert cluster.connections() == CLIENTS
    await run.ends_without_work_done_twice(tmp_path, thawed - stopped)


@pytest.mark.slow
def test_a_client_that_is_frozen_beyond_the_deadline_is_missed_and_takes_part_again_when_it_thaws(hold: Hold) -> None:
    deadline, rounds = 3.0, 40
    run = hold(rounds=rounds, algorithm={"nap": 0.1}, participation={"deadline": deadline})
    cluster = run.cluster
    cluster.up(CLIENTS)
    cluster.wait(lambda: run.begun(1) == 1, "round 1")
    victim = cluster.container_of(VICTIM)
    cluster.signal(victim, signal.SIGSTOP)
    cluster.wait_for_round(cluster.rounds() + 2)
    cluster.signal(victim, signal.SIGCONT)
    assert set(cluster.finished().values()) == {0}  # the ledger has found that nothing was lost or done twice
    outcomes = {name: [row["outcome"] for row in run.asks() if row["client"] == name] for name in NAMES}
    missed = [t for t, outcome in enumerate(outcomes[VICTIM], 1) if outcome != "counted"]
    assert len(missed) >= 2
    assert missed == list(range(missed[0], missed[-1] + 1)), "it came back once, for good"
    assert missed[-1] < rounds / 2
    assert [outcomes[name] for name in NAMES if name != VICTIM] == [["counted"] * rounds] * (CLIENTS - 1)
    metrics = pq.read_table(cluster.run_folder() / "metrics.parquet").to_pylist()
    lasted = [row["seconds"] for row in metrics if row["round"] in missed]
    log.info("rounds without it lasted %s s", lasted)
    assert deadline <= min(lasted[:2])
    assert max(lasted) < deadline + SLACK


@pytest.mark.slow
async def test_a_frozen_server_is_noticed_by_its_clients_and_found_again_when_it_thaws(
    hold: Hold, tmp_path: Path
) -> None:
    run = hold()
    cluster = run.up_to_the_fault()
    (server,) = cluster.containers("server")
    paused = time.time()
    command("docker", "pause", server)
    clients_notice(cluster, paused, frozen(KEEPALIVE))
    run.let_go(FAULT)
    thawed = time.time()
    command("docker", "unpause", server)
    for client in NAMES:
        run.back(client, 2, thawed)
    assert cluster.connections() == CLIENTS, "those of before are closed"
    await run.ends_without_work_done_twice(tmp_path, thawed - paused)


@pytest.mark.slow
@pytest.mark.parametrize("keepalive", [KEEPALIVE, 20.0])
async def test_a_client_that_vanishes_without_a_word_is_known_to_be_gone_and_leaves_no_stream_behind(
    keepalive: float, hold: Hold, tmp_path: Path
) -> None:
    run = hold(network={"keepalive": keepalive})
    cluster = run.up_to_the_fault()
    victim = cluster.container_of(VICTIM)
    assert cluster.connections() == CLIENTS
    cut = time.time()
    cluster.cut(victim)
    command("docker", "kill", victim)
    assert cluster.connections() == CLIENTS, "its connection is half open: nobody has told the server"
    run.away(VICTIM, cut, silence(keepalive))
    assert cluster.connections() == CLIENTS - 1
    run.let_go(FAULT)
    mended = time.time()
    cluster.mend(victim)
    command("docker", "start", victim)
    run.back(VICTIM, 2, mended)
    assert cluster.connections() == CLIENTS
    await run.ends_with_the_bits_of_an_undisturbed_run(tmp_path)


@contextmanager
def taken(cluster: Cluster, address: str) -> Iterator[None]:
    """Have another container hold an address that has become free."""
    of = f"com.docker.compose.project={cluster.project}"
    image = cluster.environment["FENCHEL_IMAGE"]
    words = ("--rm", "--init", "--network", f"{cluster.project}_default", "--label", of)
    other = command("docker", "run", "--detach", *words, "--entrypoint", "sleep", image, "600").strip()
    try:
        assert cluster.address(other) == address
        yield
    finally:
        command("docker", "kill", other)


@pytest.mark.slow
async def test_a_client_that_comes_back_while_the_server_holds_its_half_open_stream_replaces_it(
    hold: Hold, tmp_path: Path
) -> None:
    """The identity seems to be in use, by a process that is gone: the client waits until the server knows."""
    keepalive = 30.0
    run = hold(network={"keepalive": keepalive})
    cluster = run.up_to_the_fault()
    victim = cluster.container_of(VICTIM)
    before = cluster.address(victim)
    cut = time.time()
    cluster.cut(victim)
    command("docker", "kill", victim)
    run.let_go(FAULT)
    with taken(cluster, before):  # at its old address, its kernel would say at once that the connection is gone
        cluster.mend(victim)
        command("docker", "start", victim)
        assert cluster.address(victim) != before
    cluster.wait(lambda: bool(cluster.said(victim, "is in use")), "the client to be told so")
    standing = cluster.fleet()[VICTIM]
    assert (standing["state"], standing["streams"]) == ("connected", 1), "the old stream is still there"
    run.back(VICTIM, 2, cut, silence(keepalive) + RETURN)
    assert cluster.inspect(victim)["RestartCount"] == 0, "it had the patience"
    assert cluster.connections() == CLIENTS
    await run.ends_with_the_bits_of_an_undisturbed_run(tmp_path)


@pytest.mark.slow
async def test_a_server_that_comes_back_at_another_address_is_found_by_its_name(hold: Hold, tmp_path: Path) -> None:
    run = hold()
    cluster = run.up_to_the_fault()
    (server,) = cluster.containers("server")
    before = cluster.address(server)
    cluster.cut(server)  # nobody hears of its end
    command("docker", "rm", "--force", server)
    with taken(cluster, before):
        run.let_go(FAULT)
        await asyncio.sleep(15)  # its name leads nowhere, and clients have asked for it a few times
        cluster.do("up", "--detach", "--no-build", "--no-deps", "server")
        (server,) = cluster.containers("server")
        assert cluster.address(server) != before
        cluster.wait(lambda: bool(cluster.said(server, "listening on")), "the server")
        (listening,) = cluster.said(server, "listening on")
        for client in NAMES:
            run.back(client, 1, listening)  # the first time that they come to this process
        assert cluster.connections() == CLIENTS
        await run.ends_with_the_bits_of_an_undisturbed_run(tmp_path)
