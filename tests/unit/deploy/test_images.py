"""Images by digest: what ``deploy/pin-images`` prints, and that the compose files build on it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[3]
DIGEST = "python@sha256:" + 64 * "a"


def pinned(folder: Path, digests: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Run ``pin-images`` with a Docker that knows some digests of every image."""
    docker = folder / "docker"
    docker.write_text(f"#!/bin/sh\nprintf '{digests}\\n'\n")
    docker.chmod(0o755)
    return subprocess.run(
        [ROOT / "deploy" / "pin-images", *words],
        env=os.environ | {"PATH": f"{folder}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
    )


def test_an_image_that_was_pulled_is_named_by_its_digest(tmp_path: Path) -> None:
    done = pinned(tmp_path, DIGEST, "FENCHEL_BASE_IMAGE=python:3.11-slim-bookworm")
    assert done.returncode == 0
    assert done.stdout == f"FENCHEL_BASE_IMAGE={DIGEST}\n"


def test_an_image_without_a_digest_is_an_error(tmp_path: Path) -> None:
    done = pinned(tmp_path, "", "FENCHEL_BASE_IMAGE=python:3.11-slim-bookworm")
    assert done.returncode == 1
    assert done.stdout == ""
    assert "docker pull python:3.11-slim-bookworm" in done.stderr


def test_all_images_are_those_of_the_compose_files(tmp_path: Path) -> None:
    named = [line.partition("=")[0] for line in pinned(tmp_path, DIGEST).stdout.splitlines()]
    texts = [path.read_text() for path in (ROOT / "docker-compose.yml", *(ROOT / "deploy").glob("compose.*.yml"))]
    script = (ROOT / "deploy" / "pin-images").read_text()
    assert len(named) == 3
    for variable in named:
        (default,) = {
            line.split(f"{variable}=")[1].split()[0] for line in script.splitlines() if f"{variable}=" in line
        }
        assert any(f"${{{variable}:-{default}}}" in text for text in texts)


@pytest.mark.parametrize("file", ["docker-compose.yml", "deploy/compose.client.yml", "deploy/compose.server.yml"])
def test_the_base_image_can_be_chosen(file: str) -> None:
    services = yaml.safe_load((ROOT / file).read_text())["services"].values()
    (build,) = [service["build"] for service in services if "build" in service]
    default = (ROOT / "deploy" / "Dockerfile").read_text().split("ARG PYTHON=")[1].split()[0]
    assert build["args"]["PYTHON"] == f"${{FENCHEL_BASE_IMAGE:-{default}}}"
