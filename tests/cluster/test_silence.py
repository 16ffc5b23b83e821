"""A server that says nothing although its machine is there: clients notice, and come back when it goes on."""

from __future__ import annotations

import asyncio
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from common.run_folder import RunFolder
from common.settings.run import validate
from deploy.inprocess import run_in_process
from tests.cluster.conftest import MakeFederation
from tests.cluster.federation import digest, wait_until

pytestmark = pytest.mark.cluster

LEDGER = "tests.cluster.ledger:Ledger"  # its clients keep state: one lost or repeated reply changes the model
KEEPALIVE = 1.0
SLACK = 3.0  # for a busy machine


def settings(nap: float) -> dict[str, Any]:
    return {
        "name": "silence",
        "seed": 11,
        "rounds": 60,
        "clients": 3,
        "data": {"name": "digits"},
        "objective": {"kind": "softmax"},
        "algorithm": {"name": LEDGER, "nap": nap},
        "participation": {"sampler": {"kind": "fixed", "size": 2}, "deadline": 120.0},
        "evaluation": {"server": False, "clients": False},
        "network": {"keepalive": KEEPALIVE},
    }


def test_clients_notice_a_frozen_server_by_the_keepalive_of_the_run_and_not_a_bit_changes(
    federate: MakeFederation, tmp_path: Path
) -> None:
    federation = federate(settings(nap=0.02), LEDGER)
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
    reference = RunFolder.create(tmp_path, "undisturbed")
    asyncio.run(run_in_process(validate(settings(nap=0.0)), reference))
    assert digest(run / "model.npz") == digest(reference.model)
