"""A server that goes on at another address: clients that are started again with it go on from their journals."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from typing import Any

import pytest

from common.run_folder import RunFolder
from common.settings.run import validate
from deploy.inprocess import run_in_process
from tests.cluster.conftest import MakeFederation
from tests.cluster.federation import digest, free_port, wait_until

pytestmark = pytest.mark.cluster

LEDGER = "tests.cluster.ledger:Ledger"  # its clients keep state: one lost or repeated reply changes the model
ROUNDS = 200


def settings(nap: float) -> dict[str, Any]:
    return {
        "name": "address",
        "seed": 11,
        "rounds": ROUNDS,
        "clients": 3,
        "data": {"name": "digits"},
        "objective": {"kind": "softmax"},
        "algorithm": {"name": LEDGER, "nap": nap},
        "participation": {"sampler": {"kind": "fixed", "size": 2}, "deadline": 120.0},
        "evaluation": {"server": False, "clients": False},
    }


def test_clients_that_are_given_the_new_address_go_on_and_not_a_bit_of_the_model_changes(
    federate: MakeFederation, tmp_path: Path
) -> None:
    federation = federate(settings(nap=0.01), LEDGER)
    federation.start()
    wait_until(lambda: "round 20 " in federation.says("server"), "round 20")
    first, *others = federation.names
    said = federation.says(first)
    federation.kill("server")
    before, federation.port = federation.port, free_port()
    assert federation.port != before
    federation.start_server()
    wait_until(lambda: federation.says("server").count("listening on") == 2, "the server at its new address")
    wait_until(lambda: federation.says(first) != said, "a client to notice")
    federation.clients[first].send_signal(signal.SIGTERM)
    federation.clients[first].wait()
    for name in others:
        federation.kill(name)
    assert "of 3 clients ready" not in federation.says("server").split("listening on")[-1], (
        "nobody has come yet"
    )
    for name in federation.names:
        federation.start_client(name)
    run = federation.finish()
    reference = RunFolder.create(tmp_path, "undisturbed")
    asyncio.run(run_in_process(validate(settings(nap=0.0)), reference))
    assert digest(run / "model.npz") == digest(reference.model)
