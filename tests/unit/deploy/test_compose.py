"""The compose files give the clients' secrets to clients and to nobody else, and only where they are asked to."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from fenchel.deploy.cli.main import application

ROOT = Path(__file__).parents[3]
CLIENT_OVERLAY = "deploy/compose.client-secrets.yml"
SERVER_OVERLAY = "deploy/compose.server-key.yml"
VARIABLES = {
    "FENCHEL_SECRETS": "/keys/clients.secret",
    "FENCHEL_PUBLIC_KEY": "/keys/server.public",
    "FENCHEL_SERVER": "coordinator.example.org:7443",
}


def composed(*files: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """What docker-compose makes of some files; it needs no engine for that."""
    if shutil.which("docker-compose") is None:
        pytest.skip("docker-compose is not installed")
    words = [word for file in files for word in ("-f", file)]
    kept = {name: value for name, value in os.environ.items() if not name.startswith("FENCHEL_")}
    return subprocess.run(
        ["docker-compose", *words, "config"],
        cwd=ROOT,
        env=kept | variables,
        capture_output=True,
        text=True,
        check=False,
    )


@cache
def whole(*files: str) -> str:
    done = composed(*files, **VARIABLES)
    assert done.returncode == 0, done.stderr
    return done.stdout


def config(*files: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(whole(*files))
    return found


def given(service: dict[str, Any]) -> set[str]:
    """The secrets that a service is given."""
    return {each["source"] for each in service.get("secrets", [])}


@pytest.mark.parametrize(
    "files", [("docker-compose.yml",), ("deploy/compose.client.yml",), ("deploy/compose.server.yml",)]
)
def test_without_an_overlay_nothing_of_keys_is_wanted(files: tuple[str, ...]) -> None:
    found = config(*files)
    assert not found.get("secrets")
    for service in found["services"].values():
        assert not given(service)
        assert not {"FENCHEL_SECRETS", "FENCHEL_PUBLIC_KEY"} & set(service.get("environment", {}))


@pytest.mark.parametrize("basis", ["docker-compose.yml", "deploy/compose.client.yml"])
def test_the_overlay_of_clients_gives_the_secrets_to_clients_alone(basis: str) -> None:
    found = config(basis, CLIENT_OVERLAY)
    assert found["secrets"]["clients.secret"]["file"] == "/keys/clients.secret"
    receiving = {name for name, service in found["services"].items() if given(service)}
    assert receiving == {"client"}
    client = found["services"]["client"]
    assert client["environment"]["FENCHEL_SECRETS"] == "/run/secrets/clients.secret"
    assert client["command"] == config(basis)["services"]["client"]["command"]


@pytest.mark.parametrize("basis", ["docker-compose.yml", "deploy/compose.server.yml"])
def test_the_overlay_of_the_server_gives_it_the_public_key_alone(basis: str) -> None:
    found = config(basis, SERVER_OVERLAY)
    receiving = {name: given(service) for name, service in found["services"].items() if given(service)}
    assert receiving == {"server": {"server.public"}}
    assert found["services"]["server"]["environment"]["FENCHEL_PUBLIC_KEY"] == "/run/secrets/server.public"


def test_both_overlays_go_together() -> None:
    services = config("docker-compose.yml", CLIENT_OVERLAY, SERVER_OVERLAY)["services"]
    assert given(services["client"]) == {"clients.secret"}
    assert given(services["server"]) == {"server.public"}
    assert not given(services["certs"])


def test_an_overlay_without_its_file_says_what_is_missing() -> None:
    done = composed("docker-compose.yml", CLIENT_OVERLAY)
    assert done.returncode != 0
    assert "clients.secret" in done.stderr


LINK_OVERLAY = "deploy/compose.links.yml"


def test_with_links_clients_reach_the_server_through_the_relay_alone_and_by_the_name_in_its_certificate() -> None:
    services = config("docker-compose.yml", LINK_OVERLAY)["services"]
    networks = {name: set(service.get("networks", {})) for name, service in services.items()}
    assert not networks["client"] & networks["server"]
    assert networks["relay"] == networks["client"] | networks["server"]
    assert services["relay"]["networks"]["outside"]["aliases"] == ["server"]
    (inside,) = services["server"]["networks"].values()
    assert f"--to {inside['aliases'][0]}:7443" in services["relay"]["command"]
    plain = config("docker-compose.yml")["services"]
    for name in ("certs", "client", "server"):
        assert services[name]["command"] == plain[name]["command"]


def test_a_relay_has_no_keys_and_no_files() -> None:
    relay = config("docker-compose.yml", LINK_OVERLAY, CLIENT_OVERLAY, SERVER_OVERLAY)["services"]["relay"]
    assert not given(relay)
    assert not relay.get("volumes")
    assert relay["read_only"] is True
    assert relay["cap_drop"] == ["ALL"]


def test_the_words_that_compose_gives_a_relay_are_those_of_the_command() -> None:
    found = composed("docker-compose.yml", LINK_OVERLAY, FENCHEL_LINK="lte", FENCHEL_LINK_OPTIONS="--cut-every 60s")
    words = shlex.split(yaml.safe_load(found.stdout)["services"]["relay"]["command"])
    commands: Any = typer.main.get_command(application())
    context = commands.commands[words[0]].make_context("relay", words[1:])
    assert context.params["link"] == "lte"
    assert context.params["cut_every"] == "60s"
    assert context.params["each"] is True
