"""The encrypted quickstart in containers: four hospitals, whose secrets the server never gets."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from fenchel.common.settings.run import load
from fenchel.common.storage.run_folder import RunFolder
from fenchel.deploy.certificates.keys import make_keys
from fenchel.deploy.launch.in_process import run_in_process
from fenchel.keys.shared import Secrets
from tests.docker.cluster import ROOT, Cluster, command

pytestmark = [pytest.mark.docker, pytest.mark.timeout(900)]

CLIENTS = 4
QUICKSTART = ROOT / "fenchel" / "experiments" / "quickstart.yaml"
TOLERANCE = 1e-9  # of weights after 30 rounds; values are rounded to 2^-40 whatever the key

Bring = Callable[..., Cluster]


def model(folder: Path) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    with np.load(RunFolder(folder).model) as archive:
        weights: np.ndarray[tuple[int, ...], np.dtype[np.float64]] = archive["model"]
    return weights


async def in_plaintext(parent: Path, settings: Path = QUICKSTART) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    folder = RunFolder.create(parent, "plaintext")
    await run_in_process(load(settings, ["algorithm.privacy=none"]), folder)
    return model(folder.path)


async def test_clients_get_the_secrets_as_a_compose_secret_and_the_server_only_the_public_key(
    bring: Bring, tmp_path: Path
) -> None:
    make_keys(tmp_path / "keys", 3072)
    overlays = ("docker-compose.yml", "deploy/compose.client-secrets.yml", "deploy/compose.server-key.yml")
    cluster = bring(
        FENCHEL_SETTINGS=str(QUICKSTART),
        FENCHEL_CLIENTS=str(CLIENTS),
        FENCHEL_SECRETS=str(tmp_path / "keys" / "clients.secret"),
        FENCHEL_PUBLIC_KEY=str(tmp_path / "keys" / "server.public"),
        COMPOSE_FILE=os.pathsep.join(str(ROOT / name) for name in overlays),
    )
    cluster.up(CLIENTS)
    assert set(cluster.finished().values()) == {0}
    secrets = Secrets.load(tmp_path / "keys" / "clients.secret").private_key
    for path in cluster.run_folder().rglob("*"):
        content = path.read_bytes() if path.is_file() else b""
        for number in (secrets.p, secrets.q):
            assert int(number).to_bytes(192, "big") not in content
            assert b"%x" % int(number) not in content
    np.testing.assert_allclose(model(cluster.run_folder()), await in_plaintext(tmp_path), atol=TOLERANCE)


async def test_clients_seal_the_secrets_for_each_other_and_nobody_carries_a_file(bring: Bring, tmp_path: Path) -> None:
    settings = tmp_path / "sealed.yaml"
    settings.write_text(QUICKSTART.read_text() + "secrets: {source: sealed}\n")
    cluster = bring(FENCHEL_SETTINGS=str(settings), FENCHEL_CLIENTS=str(CLIENTS))
    cluster.up(CLIENTS)
    assert set(cluster.finished().values()) == {0}
    np.testing.assert_allclose(model(cluster.run_folder()), await in_plaintext(tmp_path), atol=TOLERANCE)


def test_a_server_that_is_given_the_clients_secrets_does_not_start(bring: Bring, tmp_path: Path) -> None:
    make_keys(tmp_path / "keys", 2048)
    cluster = bring(
        FENCHEL_SETTINGS=str(QUICKSTART),
        FENCHEL_PUBLIC_KEY=str(tmp_path / "keys" / "clients.secret"),
        COMPOSE_FILE=os.pathsep.join(
            str(ROOT / name) for name in ("docker-compose.yml", "deploy/compose.server-key.yml")
        ),
    )
    cluster.do("run", "--rm", "certs")
    server = subprocess.run(
        [*cluster.compose, "-p", cluster.project, "run", "--no-deps", "--rm", "-T", "server"],
        cwd=ROOT,
        env=os.environ | cluster.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert server.returncode != 0
    assert "has the clients' private key" in " ".join(server.stdout.split())


def test_the_image_has_the_compiled_kernel(image: str) -> None:
    asked = "from fenchel.common.crypto.residues import _ifma; print(_ifma.__file__)"
    found = command("docker", "run", "--rm", "--entrypoint", "python", image, "-c", asked)
    assert found.strip().endswith("_ifma.abi3.so")
