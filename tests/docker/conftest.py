"""What the tests with containers share: an engine, one image, and clusters that are taken down again."""

from __future__ import annotations

import secrets
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from tests.docker.cluster import Cluster, command

_IMAGE = "fenchel-under-test"


@pytest.fixture(scope="session")
def compose() -> Sequence[str]:
    """The words that docker-compose is called with: the classic one, or Docker's plugin."""
    if shutil.which("docker") is None:
        pytest.skip("Docker is not installed")
    asked = subprocess.run(
        ["docker", "info", "--format", "{{.ServerVersion}}"], capture_output=True, text=True, check=False
    )
    if asked.returncode != 0 or not asked.stdout.strip():
        pytest.skip(f"no Docker engine answers: {asked.stderr.strip()}")
    if shutil.which("docker-compose"):
        return ("docker-compose",)
    if subprocess.run(["docker", "compose", "version"], capture_output=True, check=False).returncode == 0:
        return ("docker", "compose")
    pytest.skip("neither docker-compose nor docker compose is installed")


@pytest.fixture(scope="session")
def image(compose: Sequence[str]) -> str:
    """The image of this working tree."""
    command(*compose, "-p", _IMAGE, "build", "certs", environment={"FENCHEL_IMAGE": _IMAGE})
    return _IMAGE


@pytest.fixture
def bring(compose: Sequence[str], image: str, tmp_path: Path) -> Iterator[Callable[..., Cluster]]:
    """Describes a cluster, and takes it down after the test; keywords are variables of docker-compose.yml."""
    made: list[Cluster] = []

    def describe(**variables: str) -> Cluster:
        project = f"fenchel-test-{secrets.token_hex(4)}"
        runs = tmp_path / project
        runs.mkdir()
        environment = {"FENCHEL_IMAGE": image, "FENCHEL_RUNS": str(runs), "FENCHEL_IDENTITIES": "8"}
        made.append(Cluster(compose, project, environment | variables, runs))
        return made[-1]

    yield describe
    for each in made:
        each.down()
