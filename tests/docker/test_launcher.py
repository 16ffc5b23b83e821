"""``fenchel up --on docker``: kills, what a killed command leaves, and what users get wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fenchel import up
from fenchel.common.errors import SettingsError, UnreachableError
from fenchel.deploy.launch.launchers.docker import LABEL
from tests.cluster.federation import wait_until
from tests.cluster.up import Up, local_digest, quickstart
from tests.docker.cluster import command
from tests.messages import raises

pytestmark = [pytest.mark.docker, pytest.mark.timeout(1800)]

ROUNDS = 12


def containers() -> list[str]:
    return command("docker", "ps", "--all", "--quiet", f"--filter=label={LABEL}").split()


def networks() -> list[str]:
    return command("docker", "network", "ls", "--quiet", f"--filter=label={LABEL}").split()


def started(folder: Path, image: str, *words: str) -> Up:
    (folder / "engine.yaml").write_text(f"image: {image}\n")
    return Up.start(folder, *words, "--on", "docker", "--engine", "engine.yaml")


def test_a_killed_container_costs_no_bit_and_secrets_are_nowhere(image: str, tmp_path: Path) -> None:
    process = started(tmp_path, image, *quickstart(ROUNDS))
    process.wait_for_round(3)
    running = containers()
    assert len(running) == 4
    for container in json.loads(command("docker", "inspect", *running)):
        assert "PRIVATE KEY" not in json.dumps(container)
        assert container["HostConfig"]["ReadonlyRootfs"]
        assert container["HostConfig"]["CapDrop"] == ["ALL"]
        assert container["HostConfig"]["LogConfig"]["Type"] == "none"
    command("docker", "kill", running[0])
    process.check_end(local_digest(ROUNDS))
    assert not containers()
    assert not networks()


def test_containers_end_with_the_command_and_the_run_goes_on_later(image: str, tmp_path: Path) -> None:
    process = started(tmp_path, image, *quickstart(ROUNDS))
    process.wait_for_round(3)
    process.kill()
    wait_until(lambda: not containers(), "the end of all containers")
    (run,) = (tmp_path / "runs").iterdir()
    started(tmp_path, image, "--resume", str(run)).check_end(local_digest(ROUNDS))
    assert not containers()
    assert not networks()  # of one name for all attempts at a run


def test_containers_reach_the_server_over_the_links_of_their_clients(image: str, tmp_path: Path) -> None:
    linked = ["client-000", "client-001", "client-003"]
    run = up(
        "quickstart",
        on="docker",
        engine={"image": image},
        overrides=["rounds=2", *(f"links.clients.{client}=lte" for client in linked)],
        runs=tmp_path,
        processes=2,
    )
    passed = json.loads((run.path / "links.json").read_text())
    assert sorted(passed) == linked
    calls = run.calls.groupby("client").wire_up.sum()
    for client, each in passed.items():
        assert each["passed"]["up"] >= calls[client], "all of it went over the link"


def test_a_mistake_is_an_error_before_anything_is_started(
    image: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with raises(SettingsError, key="image"):
        up("quickstart", on="docker", engine={"image": "no-such-image"}, runs=tmp_path)
    with raises(UnreachableError, source=image):
        up("quickstart", on="docker", engine={"image": image, "dial": "192.0.2.1"}, runs=tmp_path)
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/nowhere")
    with raises(UnreachableError, key="--on docker"):
        up("quickstart", on="docker", engine={"image": image}, runs=tmp_path)
    monkeypatch.undo()
    assert not containers()
    assert not networks()
