"""Clients that come with tokens make their keys themselves, and take part in a run over TLS."""

from __future__ import annotations

import re
import signal
from pathlib import Path
from typing import Any

import pytest

from fenchel.report.run import Run
from tests.cluster.conftest import MakeFederation
from tests.cluster.federation import Federation, wait_until
from tests.cluster.gated import NAME

pytestmark = pytest.mark.cluster


def settings(folder: Path) -> dict[str, Any]:
    return {
        "rounds": 3,
        "clients": 2,
        "data": {"name": "digits", "samples": 90},
        "objective": {"kind": "softmax"},
        "algorithm": {"name": NAME, "gates": str(folder)},
    }


def invite(federation: Federation, *names: str) -> tuple[Any, dict[str, str]]:
    """Start inviting; return the process, and the tokens by name."""
    words = [word for name in names for word in ("--name", name)]
    authority = ["--authority", str(federation.folder / "certs/authority")]
    at = ["--at", "localhost:0", "--listen", "127.0.0.1:0"]
    process = federation.process("invitations", "certs", "invite", *authority, *words, *at)
    wait_until(lambda: "waiting at" in federation.says("invitations"), "invitations")
    return process, dict(re.findall(r"^(\S+)  (fenchel_\S+)$", federation.says("invitations"), re.MULTILINE))


@pytest.mark.slow
def test_clients_with_tokens_join_a_run_and_come_back_without(federate: MakeFederation, tmp_path: Path) -> None:
    (tmp_path / "3.closed").touch()
    federation = federate(settings(tmp_path))
    inviting, tokens = invite(federation, "north", "south")
    assert set(tokens) == {"north", "south"}
    federation.start_server()
    own = {name: tmp_path / "own" / name for name in tokens}

    def start(name: str, *words: str) -> None:
        at = ["--allow", NAME, "--certs", str(own[name] / "certs"), "--state", str(own[name] / "state")]
        federation.clients[name] = federation.process(name, "client", f"localhost:{federation.port}", *at, *words)

    for name, token in tokens.items():
        start(name, "--token", token)
    assert inviting.wait(60) == 0  # each has its certificate
    federation.wait_for_round(2)
    federation.kill("north")
    start("north", "--token", tokens["north"])  # the same command again, though the token is spent
    (tmp_path / "3.closed").unlink()
    run = Run(federation.finish())
    assert sorted(set(run.calls["client"])) == ["north", "south"]
    for name in tokens:
        assert federation.says(name).count("certificate of client") == 1
        assert tokens[name] not in federation.says(name)
    keys = {(own[name] / "certs" / "key.pem").read_bytes() for name in own}
    assert len(keys) == 2


@pytest.mark.slow
def test_invitations_that_are_interrupted_are_over(federate: MakeFederation, tmp_path: Path) -> None:
    federation = federate(settings(tmp_path))
    inviting, tokens = invite(federation, "north")
    inviting.send_signal(signal.SIGINT)
    assert inviting.wait(30) != 0
    at = ["--certs", str(tmp_path / "late"), "--state", str(tmp_path / "state")]
    late = federation.process("late", "client", "localhost:1", *at, "--token", tokens["north"])
    assert late.wait(60) == 6
    assert "invite" in federation.says("late")
    wrong = federation.process("wrong", "client", "localhost:1", *at, "--token", tokens["north"][:-5])
    assert wrong.wait(60) == 2
