"""A server that says nothing although its machine is there: clients notice, and come back when it goes on."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from tests.cluster.conftest import MakeFederation
from tests.cluster.federation import digest, wait_until
from tests.cluster.ledger_runs import LEDGER, settings, undisturbed

pytestmark = pytest.mark.cluster

ROUNDS = 60
KEEPALIVE = 1.0
SLACK = 3.0  # for a busy machine


def test_clients_notice_a_frozen_server_by_the_keepalive_of_the_run_and_not_a_bit_changes(
    federate: MakeFederation, tmp_path: Path
) -> None:
    federation = federate(settings(ROUNDS, nap=0.02) | {"network": {"keepalive": KEEPALIVE}}, LEDGER)
    federation.start()
    wait_until(lambda: "round 10 " in federation.says("server"), "round 10")
    assert federation.server is not None

    def complaints(name: str) -> int:
        return federation.says(name).count("does not answer")

    before = {name: complaints(name) for name in federation.names}  # of the time before it listened
    federation.server.send_signal(signal.SIGSTOP)
    stopped = time.monotonic()
    try:
        wait_until(lambda: all(complaints(name) > before[name] for name in before), "all clients to notice")
        assert time.monotonic() - stopped < 4 * KEEPALIVE + SLACK
    finally:
        federation.server.send_signal(signal.SIGCONT)
    run = federation.finish()
    assert digest(run / "model.npz") == undisturbed(tmp_path / "reference", ROUNDS)
