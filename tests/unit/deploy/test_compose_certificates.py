"""What the containers of docker-compose.yml are given: the server has no certificate that lets it be a client."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from fenchel.common.tls.credentials import Credentials
from fenchel.common.tls.revocation import REVOKED, Revocations
from fenchel.deploy.certificates.description import describe
from fenchel.deploy.certificates.making import make_all, make_client

COMPOSE = Path(__file__).resolve().parents[3] / "docker-compose.yml"


def make_certificates(folder: Path) -> None:
    """Run the command of the container ``certs`` in a folder."""
    service = yaml.safe_load(COMPOSE.read_text())["services"]["certs"]
    (script,) = service["command"]
    script = script.replace("$$", "$").replace("/certs", str(folder)).replace("${FENCHEL_IDENTITIES:-64}", "2")
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    subprocess.run([*service["entrypoint"], script], check=True, env=os.environ | {"PATH": path})


def certificates(folder: Path) -> dict[str, str]:
    """Return the role of each certificate in a folder and below it."""
    return {
        str(path.parent.relative_to(folder)): describe(path.parent)["role"]
        for path in sorted(folder.rglob("certificate.pem"))
    }


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "certs"


def test_the_server_is_given_its_own_certificate_and_a_monitors(folder: Path) -> None:
    folder.mkdir()
    make_certificates(folder)
    assert certificates(folder / "server") == {".": "server", "monitor": "monitor"}
    before = {path: path.read_bytes() for path in folder.rglob("*.pem")}
    make_certificates(folder)
    assert before == {path: path.read_bytes() for path in folder.rglob("*.pem")}, "it makes them once"


def test_a_health_certificate_of_before_is_revoked_everywhere_and_removed(folder: Path) -> None:
    make_all(folder, ["server"], ["client-000", "client-001"])
    make_client(folder / "authority", folder / "server" / "health", "health")
    old = Credentials.load(folder / "server" / "health").certificate
    kept = Credentials.load(folder / "client-000")
    make_certificates(folder)
    assert certificates(folder / "server") == {".": "server", "monitor": "monitor"}
    assert Credentials.load(folder / "client-000") == kept
    for each in ("server", "client-000", "client-001"):
        assert (folder / each / REVOKED).exists()
        revocations = Revocations(folder / each)
        assert "'health'" in revocations.refusal(old)
        assert not revocations.refusal(kept.certificate)
