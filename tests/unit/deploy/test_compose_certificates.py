"""What the containers of docker-compose.yml are given: the server has no certificate that lets it be a client."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from fenchel.deploy.certificates.description import describe

ROOT = Path(__file__).resolve().parents[3]


def make_certificates(folder: Path) -> None:
    """Run the command of the container ``certs``, with the folders that it mounts below a folder."""
    service = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]["certs"]
    (script,) = service["command"]
    for mount in ("/certs", "/runs"):
        script = script.replace(mount, f"{folder}{mount}")
    script = script.replace("${FENCHEL_IDENTITIES:-64}", "2")
    path = os.pathsep.join((str(Path(sys.executable).parent), str(ROOT / "deploy"), os.environ["PATH"]))
    subprocess.run([*service["entrypoint"], script], check=True, env=os.environ | {"PATH": path})


@pytest.mark.skipif(os.getuid() == 0 and not Path("/usr/bin/setpriv").exists(), reason="setpriv is not installed")
def test_the_server_is_given_its_own_certificate_and_a_monitors(tmp_path: Path) -> None:
    for mount in ("certs/authority", "certs/server", "runs"):
        (tmp_path / mount).mkdir(parents=True)
    make_certificates(tmp_path)
    server = tmp_path / "certs" / "server"
    roles = {
        str(path.parent.relative_to(server)): describe(path.parent)["role"] for path in server.rglob("certificate.pem")
    }
    assert roles == {".": "server", "monitor": "monitor"}
    before = {path: path.read_bytes() for path in tmp_path.rglob("*.pem")}
    make_certificates(tmp_path)
    assert before == {path: path.read_bytes() for path in tmp_path.rglob("*.pem")}, "it makes them once"
