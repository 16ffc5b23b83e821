"""A server that goes on at another address: clients that are started again with it go on from their journals."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.cluster.conftest import MakeFederation
from tests.cluster.federation import digest, free_port, wait_until
from tests.cluster.ledger_runs import LEDGER, settings, undisturbed

pytestmark = pytest.mark.cluster

ROUNDS = 60


def test_clients_that_are_given_the_new_address_go_on_and_not_a_bit_of_the_model_changes(
    federate: MakeFederation, tmp_path: Path
) -> None:
    federation = federate(settings(ROUNDS, nap=0.01), LEDGER)
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
    assert "of 3 clients ready" not in federation.says("server").split("listening on")[-1], "nobody has come yet"
    for name in federation.names:
        federation.start_client(name)
    run = federation.finish()
    assert digest(run / "model.npz") == undisturbed(tmp_path / "reference", ROUNDS)
