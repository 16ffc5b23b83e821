"""Certificates are replaced and revoked while a run goes on."""

from __future__ import annotations

import json
import os
import socket
import ssl
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from fenchel.common.errors import JoinRefusedError
from fenchel.deploy.certificates.description import describe
from tests.cluster.conftest import MakeFederation
from tests.cluster.federation import Federation, wait_until
from tests.cluster.gated import NAME

pytestmark = pytest.mark.cluster

ROUNDS, SECOND_GATE = 7, 6


def settings(folder: Path) -> dict[str, Any]:
    return {
        "name": "rotation",
        "rounds": ROUNDS,
        "clients": 3,
        "data": {"name": "digits", "samples": 90},
        "objective": {"kind": "softmax"},
        "algorithm": {"name": NAME, "gates": str(folder)},
        "evaluation": {"server": False, "clients": False},
        "participation": {"deadline": 3.0, "min_replies": 2},
    }


def certs(federation: Federation, *words: str) -> str:
    """Run ``fenchel certs`` with the authority of a federation."""
    command, *others = words
    authority = ["--authority", str(federation.folder / "certs/authority")]
    done = subprocess.run(
        [sys.executable, "-m", "fenchel", "certs", command, *authority, *others],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"PYTHONPATH": str(Path.cwd())},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def shown_serial(federation: Federation) -> str:
    """The number of the certificate that the server shows to a new connection."""
    own = federation.folder / "certs" / "client-001"
    context = ssl.create_default_context(cafile=str(own / "authority.pem"))
    context.load_cert_chain(own / "certificate.pem", own / "key.pem")
    context.set_alpn_protocols(["h2"])
    with (
        socket.create_connection(("127.0.0.1", federation.port), timeout=10) as plain,
        context.wrap_socket(plain, server_hostname="localhost") as secure,
    ):
        found = secure.getpeercert()
    assert found
    return str(found["serialNumber"]).lower().lstrip("0")


def round_is_done(federation: Federation, t: int) -> bool:
    return f"round {t} " in federation.says("server")


def counted(run: Path) -> dict[int, set[str]]:
    """Whose answers counted in each round."""
    calls = pq.read_table(run / "calls.parquet").to_pylist()
    found: dict[int, set[str]] = {}
    for call in calls:
        if call["outcome"] == "counted":
            found.setdefault(call["round"], set()).add(call["client"])
    return found


@pytest.mark.slow  # make test-all
def test_a_run_goes_on_while_certificates_are_replaced_and_one_client_is_shut_out(
    federate: MakeFederation, tmp_path: Path
) -> None:
    for rate_limiter in (3, SECOND_GATE):
        (tmp_path / f"{rate_limiter}.closed").touch()
    federation = federate(settings(tmp_path), allow=NAME)
    federation.start()
    wait_until(lambda: round_is_done(federation, 2), "round 2")
    server, north = tmp_path / "certs/server", tmp_path / "certs/client-000"
    old = {folder: describe(folder)["serial"] for folder in (server, north)}
    assert shown_serial(federation) == old[server]

    # Both are replaced; the streams that are open go on. That the old certificate is revoked makes one come back.
    certs(federation, "renew", str(server))
    assert old[north] in certs(federation, "renew", str(north)).replace("\n", "")
    new = {folder: describe(folder)["serial"] for folder in (server, north)}
    assert len({*old.values(), *new.values()}) == 4
    assert shown_serial(federation) == new[server]
    assert "reconnecting" not in federation.says("client-000")
    certs(federation, "revoke", "--serial", old[north], "--to", str(server))
    back = "the certificate was replaced; reconnecting with the new one"
    wait_until(lambda: back in federation.says("client-000"), "client-000 with its new certificate")
    (tmp_path / "3.closed").unlink()
    wait_until(lambda: round_is_done(federation, SECOND_GATE - 1), "the second gate")

    # A client that was not given another certificate is out.
    certs(federation, "revoke", "--name", "client-002", "--to", str(server))
    shut_out = federation.clients.pop("client-002")
    assert shut_out.wait(60) == JoinRefusedError.exit_code
    assert "was revoked" in " ".join(federation.says("client-002").split())
    (tmp_path / f"{SECOND_GATE}.closed").unlink()
    run = federation.finish()

    everybody = {"client-000", "client-001", "client-002"}
    assert counted(run) == {
        t: everybody if t < SECOND_GATE else everybody - {"client-002"} for t in range(1, ROUNDS + 1)
    }
    assert json.loads((run / "summary.json").read_text())["completed"]
    said = [json.loads(line)["message"] for line in (run / "log.jsonl").read_text().splitlines()]
    ended = Counter(line.split("'")[1] for line in said if "its stream is ended: the certificate of" in line)
    assert ended == {"client-000": 1, "client-002": 1}, "and the log says why"
    # Who starts again with the old certificate does not get in, and hears why.
    assert any("was replaced; new connections use the new one" in line for line in said)


@pytest.mark.slow  # make test-all
def test_a_revoked_client_is_not_let_in_and_a_damaged_list_stops_nobody_who_was_let_in(
    federate: MakeFederation, tmp_path: Path
) -> None:
    (tmp_path / "3.closed").touch()
    federation = federate(settings(tmp_path), allow=NAME)
    server = tmp_path / "certs/server"
    certs(federation, "revoke", "--name", "client-002", "--to", str(server))
    federation.start()
    assert federation.clients.pop("client-002").wait(60) == JoinRefusedError.exit_code
    certs(federation, "client", "--name", "client-002", "--force", str(tmp_path / "certs/client-002"))
    federation.start_client("client-002")
    wait_until(lambda: round_is_done(federation, 2), "round 2")
    (server / "revoked.pem").write_text("-----BEGIN X509 CRL-----\nAAAA\n-----END X509 CRL-----\n")
    wait_until(
        lambda: "already revoked stay revoked" in " ".join(federation.says("server").split()), "a word about the list"
    )
    (tmp_path / "3.closed").unlink()
    federation.finish()
