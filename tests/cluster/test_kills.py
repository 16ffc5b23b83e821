"""Whatever is killed, frozen or moved: the final model is the one of a run that nothing disturbed, bit for bit."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cluster.conftest import MakeFederation
from tests.cluster.federation import digest, free_port, wait_until
from tests.cluster.ledger_runs import LEDGER, settings, undisturbed

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

KILLS = 20
ROUNDS = 60
KEEPALIVE = 1.0
SLACK = 3.0  # for a busy machine


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> str:
    return undisturbed(tmp_path_factory.mktemp("reference"), ROUNDS)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_twenty_kills_at_random_moments_do_not_change_a_bit_of_the_model(
    federate: MakeFederation, tmp_path: Path
) -> None:
    rounds = 300
    chance = random.Random(20)
    federation = federate(settings(rounds, nap=0.01), LEDGER)
    killed = set()
    federation.start()
    federation.wait_for_round(1)
    for _ in range(KILLS):
        assert federation.server is not None
        assert federation.server.poll() is None, "the run ended before all kills: give it more rounds"
        who = chance.choice(["server", *federation.names])
        federation.kill(who)
        killed.add(who)
        time.sleep(chance.uniform(0.0, 0.2))
        federation.restart(who)
        time.sleep(chance.uniform(0.0, 1.0))
    run = federation.finish(patience=300)
    assert {"server"} < killed, "both sides must have been killed"
    assert digest(run / "model.npz") == undisturbed(tmp_path / "reference", rounds)


def test_a_run_that_was_brought_up_in_one_command_resumes_after_a_kill(
    federate: MakeFederation, reference: str, tmp_path: Path
) -> None:
    federation = federate(settings(ROUNDS, nap=0.01))
    words = ["up", str(tmp_path / "settings.yaml"), "--runs", str(tmp_path / "runs")]
    federation.server = federation.process("server", *words)
    federation.wait_for_round(20)
    federation.kill("server")
    federation.server = federation.process("server", "up", "--resume", str(federation.run_folder))
    assert digest(federation.finish() / "model.npz") == reference


@pytest.mark.slow  # make test-all
def test_clients_notice_a_frozen_server_and_go_on_with_one_at_another_address(
    federate: MakeFederation, reference: str
) -> None:
    """They notice by the keepalive of the run, and are started again with the new address."""
    federation = federate(settings(ROUNDS, nap=0.02) | {"network": {"keepalive": KEEPALIVE}}, LEDGER)
    federation.start()
    federation.wait_for_round(10)
    assert federation.server is not None
    notice = noticing(federation.says, federation.names)
    federation.server.send_signal(signal.SIGSTOP)
    stopped = time.monotonic()
    try:
        wait_until(notice, "all clients to notice")
        assert time.monotonic() - stopped < 4 * KEEPALIVE + SLACK
    finally:
        federation.server.send_signal(signal.SIGCONT)
    federation.wait_for_round(20)
    first, *others = federation.names
    notice = noticing(federation.says, [first])
    federation.kill("server")
    before, federation.port = federation.port, free_port()
    assert federation.port != before
    federation.start_server()
    wait_until(lambda: federation.says("server").count("listening on") == 2, "the server at its new address")
    wait_until(notice, "a client to notice")
    federation.clients[first].send_signal(signal.SIGTERM)
    federation.clients[first].wait()
    for name in others:
        federation.kill(name)
    assert "of 3 clients ready" not in federation.says("server").split("listening on")[-1], "nobody has come yet"
    for name in federation.names:
        federation.start_client(name)
    assert digest(federation.finish() / "model.npz") == reference


def noticing(says: Callable[[str], str], names: list[str]) -> Callable[[], bool]:
    """Return a condition: all of these clients have complained since now that the server does not answer."""

    def complaints(name: str) -> int:
        return says(name).count("does not answer")

    before = {name: complaints(name) for name in names}  # of the time before it listened
    return lambda: all(complaints(name) > before[name] for name in names)
