"""Ray as far as it goes without Ray: settings, plans, room in a cluster, and streams that are handed over."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fenchel.common.errors import MissingDependencyError, SettingsError, UnreachableError
from fenchel.deploy.launch.bundle import Bundle
from fenchel.deploy.launch.launchers import piped
from fenchel.deploy.launch.launchers import ray as module
from fenchel.deploy.launch.launchers.choice import launcher
from fenchel.deploy.launch.launchers.interface import ClientProcess, Requirements
from fenchel.deploy.launch.launchers.ray import _HANDOVER, RayLauncher, RaySettings
from fenchel.deploy.launch.launchers.ray_driver import Driver
from fenchel.deploy.launch.launchers.survey import Survey, temporary_state
from tests.messages import raises


def process(folder: Path) -> ClientProcess:
    words = ["client", "here:1", "--bundle", "-"]
    return ClientProcess(number=0, words=words, bundle=Bundle(identities={"a": None}), log=folder / "log")


def required(folder: Path, *, stateless: bool = False) -> Requirements:
    return Requirements(run="r", processes=2, journals=folder, stateless=stateless)


def test_a_plan_shows_the_actor_and_its_command(tmp_path: Path) -> None:
    plan = RayLauncher(RaySettings(gpus=0.25, resources={"hospital": 1})).plan(process(tmp_path))
    for shown in (
        "num_cpus=1",
        "num_gpus=0.25",
        "'hospital': 1",
        "max_restarts=0",
        "client here:1 --bundle - < BUNDLE",
    ):
        assert shown in plan


def test_without_ray_it_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    with raises(MissingDependencyError, key="--on ray"):
        launcher("ray")


@pytest.mark.parametrize(
    ("key", "value"), [("cpus", -1), ("gpus", -0.5), ("address", "ray://head:10001"), ("python", "/usr/bin/python3")]
)
def test_settings_that_no_cluster_could_serve_are_refused(
    key: str, value: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "find_spec", lambda name: name)
    with raises(SettingsError, key=key):
        launcher("ray", engine={key: value})


@pytest.mark.parametrize("address", ["127.0.0.1:1", "nowhere.invalid:6379", "127.0.0.1:99999"])
async def test_an_address_where_nothing_listens_is_refused_before_ray_tries_it(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(RayLauncher, "_connect")
    with raises(UnreachableError, key="address"):
        await RayLauncher(RaySettings(address=address)).open(required(tmp_path))


def driver(nodes: list[dict[str, float]], **settings: Any) -> Driver:
    listed = [{"Alive": True, "Resources": node} for node in nodes] + [{"Alive": False, "Resources": {"CPU": 64}}]
    return Driver(SimpleNamespace(nodes=lambda: listed), RaySettings(**settings).actor)


@pytest.mark.parametrize(
    ("settings", "rooms"),
    [
        ({}, [2, 4]),
        ({"cpus": 3}, [1]),
        ({"cpus": 0.1}, [20, 40]),
        ({"cpus": 0, "gpus": 0.3}, [3]),
        ({"cpus": 1, "gpus": 0.1}, [4]),
        ({"cpus": 0, "resources": {"hospital": 1}}, [2]),
        ({"cpus": 8}, []),
    ],
)
def test_only_nodes_that_are_large_enough_have_room(settings: dict[str, Any], rooms: list[int]) -> None:
    nodes = [{"CPU": 2.0, "hospital": 2.0}, {"CPU": 4.0, "GPU": 1.0}, {"memory": 1.0}]
    assert [room for _, room in driver(nodes, **settings).able()] == rooms


def test_a_cluster_that_is_too_small_is_refused() -> None:
    found = {"room": 1, "resources": {"CPU": 3.0}}
    launching = RayLauncher(RaySettings(cpus=2))
    launching._check_room(found, 1)
    with raises(SettingsError, key="--on ray"):
        launching._check_room(found, 2)


def test_journals_that_a_node_does_not_see_are_temporary_or_an_error(tmp_path: Path) -> None:
    seen, blind = (Survey(host="h", software="s", dial="d", problem="", shares=shares) for shares in (True, False))
    assert temporary_state({"a": seen}, required(tmp_path)) is None
    assert temporary_state({"a": seen, "b": blind}, required(tmp_path, stateless=True)) == "/tmp/fenchel-r"
    with raises(SettingsError, key="--runs"):
        temporary_state({"a": seen, "b": blind}, required(tmp_path))


@pytest.mark.parametrize("said", ["", "no JSON", '{"host": "h"}'])
def test_a_node_without_fenchel_is_named(said: str) -> None:
    nodes = [{"node": "192.0.2.7", "result": [1, said, "No module named fenchel"]}]
    with raises(SettingsError, source="192.0.2.7"):
        RayLauncher(RaySettings())._surveys(nodes, 1)


@pytest.fixture
def server() -> Iterator[socket.socket]:
    with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as listening:
        listening.settimeout(60)
        listening.bind(f"{folder}/s")
        listening.listen()
        yield listening


async def handed_over(
    server: socket.socket, folder: Path
) -> tuple[piped.PipedProcess, socket.socket, list[int], bytes]:
    command = [sys.executable, "-P", "-m", _HANDOVER, server.getsockname(), "client"]
    started, (connection, _) = await asyncio.gather(
        piped.start(command, process(folder)), asyncio.to_thread(server.accept)
    )
    _, streams, _, _ = socket.recv_fds(connection, 1, 3)
    with connection.makefile("rb") as orders:
        return started, connection, streams, orders.readline()


async def test_streams_that_are_handed_over_bring_the_bundle_and_take_report_and_log(
    server: socket.socket, tmp_path: Path
) -> None:
    started, connection, (given, report, log), order = await handed_over(server, tmp_path)
    assert order == b'["client"]\n'
    assert b'"secrets": 0' in os.read(given, 65_536)
    for stream, text in ((report, b"5\n"), (log, b"words\n")):
        os.write(stream, text)
        os.close(stream)
    connection.close()
    assert await started.ended() == 5
    assert not os.read(given, 1), "the standard input ends with the process"
    os.close(given)
    assert (tmp_path / "log").read_bytes() == b"words\n"


async def test_a_process_that_is_killed_ends_its_connection(server: socket.socket, tmp_path: Path) -> None:
    started, connection, streams, _ = await handed_over(server, tmp_path)
    started.stop(now=True)
    with connection:
        assert await asyncio.to_thread(connection.recv, 1) == b""
    for each in streams:
        os.close(each)
    assert await started.ended() is None


async def test_a_process_without_a_driver_counts_as_killed_and_says_why(tmp_path: Path) -> None:
    started = await piped.start([sys.executable, "-P", "-m", _HANDOVER, str(tmp_path / "gone")], process(tmp_path))
    assert await started.ended() is None
    assert (tmp_path / "log").read_text()
