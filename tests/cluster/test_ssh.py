"""``fenchel up --on ssh``: hosts of their own, lost connections, and what users get wrong."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from fenchel import up
from fenchel.common.errors import SettingsError, UnreachableError
from fenchel.deploy.launch.launchers.choice import _hosts
from tests.cluster.ssh_hosts import Hosts, NoHostsError, hosts
from tests.cluster.up import Up, local_digest, quickstart, wait_calmly
from tests.messages import raises

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1800)]

ROUNDS = 30


@pytest.fixture(scope="module")
def reached(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    try:
        with hosts(tmp_path_factory.mktemp("hosts")) as found:
            yield found
    except NoHostsError as error:
        pytest.skip(str(error))


def engine_file(folder: Path, reached: Hosts, **more: Any) -> Path:
    file = folder / "engine.yaml"
    file.write_text(yaml.safe_dump(reached.engine(**more)))
    return file


def started(folder: Path, engine: Path, *words: str) -> Up:
    return Up.start(folder, *words, "--on", "ssh", "--engine", str(engine))


def begun(folder: Path, engine: Path, *words: str) -> Up:
    """Begin a run, and wait until it is in the middle."""
    process = started(folder, engine, *quickstart(ROUNDS), *words)
    process.wait_for_round(3)
    return process


def clients_of(reached: Hosts) -> list[str]:
    """Return the command lines of client processes on all hosts."""
    found = []
    for address in reached.namespaces:
        for process in reached.processes(address):
            with suppress(psutil.Error):  # it has just ended
                found.append(" ".join(process.cmdline()))
    return [line for line in found if "fenchel.deploy.cli.remote client" in line]


def check_end(process: Up, reached: Hosts) -> Path:
    run = process.check_end(local_digest(ROUNDS))
    assert not clients_of(reached)
    assert not list((reached.folder / "state").iterdir()), "journals of a completed run are removed"
    return run


@pytest.mark.slow  # make test-all
def test_connections_that_are_cut_and_a_network_that_is_away_cost_no_bit_and_secrets_are_nowhere(
    reached: Hosts, tmp_path: Path
) -> None:
    """A connection that is cut has its clients started again, a network that is away for a while has none."""
    process = begun(tmp_path, engine_file(tmp_path, reached))
    running = clients_of(reached)
    assert len(running) == 4
    for line in running:
        assert "PRIVATE KEY" not in line
        assert "--bundle -" in line
    for address in reached.namespaces:
        for each in reached.processes(address):
            with suppress(psutil.Error):
                assert "PRIVATE KEY" not in "".join(each.environ().values())
    (run,) = (tmp_path / "runs").iterdir()
    first, second = reached.namespaces
    # First the network of one host, while no client has been started twice.
    reached.switch(second, on=False)
    time.sleep(20)  # longer than either side waits for a sign of life
    reached.switch(second, on=True)
    process.wait_for_round(ROUNDS // 2)  # rounds wait for all clients, so these are connected again
    assert starts(run) == [1, 1, 1, 1]
    cut = [each for each in reached.processes(first) if each.name() == "sshd"]
    assert cut
    for each in cut:
        each.kill()
    assert check_end(process, reached) == run
    assert starts(run) == [1, 1, 2, 2], "nothing but the cut connections was started again"


def starts(run: Path) -> list[int]:
    """Return how often each client has begun to work, in ascending order."""
    return sorted(log.read_text().count("working for run") for log in (run / "clients").glob("*.log"))


@pytest.mark.slow  # make test-all
def test_clients_end_with_the_command_and_the_run_goes_on_later(reached: Hosts, tmp_path: Path) -> None:
    engine = engine_file(tmp_path, reached)
    process = begun(tmp_path, engine, "--processes", "2")
    process.kill()
    wait_calmly(lambda: not clients_of(reached), "the end of all clients")
    (run,) = (tmp_path / "runs").iterdir()
    check_end(started(tmp_path, engine, "--resume", str(run), "--processes", "2"), reached)


UNKNOWN = ("StrictHostKeyChecking=no", "UserKnownHostsFile=/dev/null")
WRONG: dict[str, tuple[dict[str, Any], type[Exception], dict[str, str]]] = {
    "a host that does not answer": ({"hosts": ["127.0.0.1"], "options": ["Port=1"]}, UnreachableError, {}),
    "hosts that do not take the user's key": (
        {"options": ["IdentityFile=/nowhere", "IdentitiesOnly=yes", *UNKNOWN]},
        UnreachableError,
        {},
    ),
    "hosts that are not known": ({"options": ["UserKnownHostsFile=/dev/null"]}, UnreachableError, {}),
    "a host without Fenchel": ({"python": "/nowhere/python"}, SettingsError, {"key": "python"}),
    "an address that hosts do not reach": ({"dial": "127.0.0.2"}, UnreachableError, {}),
    "an option in place of a host": ({"hosts": ["-oProxyCommand=touch /tmp/here"]}, SettingsError, {"key": "hosts"}),
    "no hosts": ({"hosts": []}, SettingsError, {"key": "hosts"}),
    "a key that is none": ({"host": "a"}, SettingsError, {"key": "host"}),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_mistake_is_told_before_anything_is_started(case: str, reached: Hosts, tmp_path: Path) -> None:
    more, kind, attributes = WRONG[case]
    with raises(kind, **attributes):
        up("quickstart", on="ssh", engine=reached.engine(**more), runs=tmp_path)
    assert not clients_of(reached)


def test_hosts_come_from_a_list_or_a_file(tmp_path: Path) -> None:
    file = tmp_path / "hosts"
    file.write_text("# two machines\nfirst second\n\nfirst\n")
    assert _hosts("a,b, c\nd\n") == ["a", "b", "c", "d"]
    assert _hosts(str(file)) == ["first", "second", "first"]
    assert _hosts(["a", "b"]) == ["a", "b"]
