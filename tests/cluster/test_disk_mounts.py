"""Disks that are really full, and folders that really become read-only, in the middle of a run.

Whoever cannot write says which file and what to do, and ends with code 12. Once there is room the run goes
on, to the bits of a run that nothing disturbed.
"""

from __future__ import annotations

import asyncio
import shlex
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from fenchel.client.privacy.ledger import Ledger
from fenchel.common.settings.run import validate
from fenchel.common.storage.run_folder import RunFolder
from fenchel.deploy.launch.fork_server import ForkServer
from fenchel.deploy.launch.in_process import run_in_process
from tests.algorithms.test_private_runs import REPEATABLE, private
from tests.cluster.conftest import MakeFederation
from tests.cluster.disk import Disk, NoDiskError
from tests.cluster.federation import MODULES, Federation, digest, wait_until
from tests.cluster.ledger_runs import LEDGER, settings, undisturbed

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

ROUNDS = 40
PRIVATE_ROUNDS = 60
CANNOT_WRITE = 12  # exit code of a StorageError
SMALL = "3m"  # for journals; and
LARGE = "20m"  # for run folders


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Disk, ForkServer]]:
    """One disk for all tests, each of which has a folder of its own there, and what forks processes within."""
    place = tmp_path_factory.mktemp("disk")
    try:
        made = Disk.mounted(place)
    except NoDiskError as refusal:
        pytest.skip(f"a test can mount no disk here: {refusal}")
    python = place / "python"  # not on the disk, which the namespace alone has
    python.write_text(f'#!/bin/sh\nexec {shlex.join([*made.within, sys.executable])} "$@"\n')
    python.chmod(0o700)
    with ExitStack() as stack:
        with patch.object(sys, "executable", str(python)):
            forks = stack.enter_context(ForkServer(MODULES))
        yield made, forks
    made.end()


@pytest.fixture
def disk(shared: tuple[Disk, ForkServer]) -> Disk:
    return shared[0]


@pytest.fixture
def on_disk(shared: tuple[Disk, ForkServer], federate: MakeFederation, tmp_path: Path) -> MakeFederation:
    """Return a function that makes a federation on the disk."""

    def make(settings: Mapping[str, Any], allow: str | None = None) -> Federation:
        disk, forks = shared
        folder = disk.folder / tmp_path.name
        folder.mkdir()
        made: Federation = federate(settings, allow, folder=folder, forks=lambda: forks)
        return made

    return make


@pytest.fixture
def federation(on_disk: MakeFederation) -> Federation:
    made: Federation = on_disk(settings(ROUNDS, nap=0.05), LEDGER)
    return made


@dataclass(frozen=True)
class Trouble:
    """What happens to a folder in the middle of a run, and how it is put right."""

    begin: Callable[[Disk, Path], None]
    end: Callable[[Disk, Path], None]
    reason: str


FULL = Trouble(Disk.fill, Disk.make_room, "No space left on device")
FROZEN = Trouble(Disk.freeze, Disk.thaw, "Read-only file system")


def fails(federation: Federation, who: str) -> str:
    """Wait until a process has ended as one that cannot write; return what it has said."""
    process = federation.server if who == "server" else federation.clients[who]
    assert process is not None
    assert process.wait(60) == CANNOT_WRITE, federation.says(who)
    said = federation.says(who)
    assert "Traceback" not in said
    (last,) = [line for line in said.splitlines() if line.startswith("error: ")]
    assert str(federation.folder) in last, "the file is named"
    return last


@pytest.mark.slow  # make test-all
def test_a_client_that_cannot_write_its_journal_goes_on_later(
    disk: Disk, federation: Federation, tmp_path: Path
) -> None:
    victim = federation.names[1]
    state = federation.folder / "state" / victim
    disk.mount(state, SMALL)
    disk.freeze(state)  # a client may begin so
    federation.start()
    assert "Read-only file system" in fails(federation, victim)
    disk.thaw(state)
    federation.restart(victim)
    for t, trouble in ((5, FROZEN), (10, FULL)):
        federation.wait_for_round(t)
        (federation.folder / f"{victim}.log").write_text("")
        trouble.begin(disk, state)
        last = fails(federation, victim)
        assert "make room" in last.lower()
        assert "start this client again" in last
        assert str(federation.folder / "state") not in federation.says("server")
        trouble.end(disk, state)
        federation.restart(victim)
    assert digest(federation.finish() / "model.npz") == undisturbed(tmp_path / "reference", ROUNDS)


@pytest.mark.slow  # make test-all
def test_a_server_that_cannot_write_is_resumed_later(disk: Disk, federation: Federation, tmp_path: Path) -> None:
    runs = federation.folder / "runs"
    disk.mount(runs, LARGE)
    log = federation.folder / "server.log"
    federation.start()
    for trouble in (FROZEN, FULL):
        wait_until(lambda: "\nround " in federation.says("server"), "a round of this server")
        log.write_text("")
        place = runs if trouble is FULL else federation.run_folder / "checkpoint"
        trouble.begin(disk, place)
        last = fails(federation, "server")
        assert f"cannot be written ({trouble.reason})" in last
        assert "--resume" in last
        for name in federation.names:  # clients hear that the run has stopped, and end
            assert federation.clients[name].wait(60) == 0
        trouble.end(disk, place)
        log.write_text("")
        federation.start()

    # Not even where the last checkpoint is damaged and would be put aside is a run resumed in a frozen folder.
    checkpoints = federation.run_folder / "checkpoint"
    wait_until(lambda: "\nround " in federation.says("server"), "a round of this server")
    wait_until((checkpoints / "previous").exists, "a checkpoint before the last")
    assert federation.server is not None
    federation.server.send_signal(signal.SIGTERM)
    federation.server.wait(60)
    for name in federation.names:
        federation.kill(name)  # one that has not heard of the end tries to reach the server still
    content = bytearray((checkpoints / "latest").read_bytes())
    content[-5] ^= 1
    (checkpoints / "latest").write_bytes(content)
    for folder in (federation.run_folder, checkpoints):
        log.write_text("")
        disk.freeze(folder)
        federation.start_server()
        assert "cannot be written (Read-only file system)" in fails(federation, "server")
        disk.thaw(folder)
    federation.start()
    assert digest(federation.finish() / "model.npz") == undisturbed(tmp_path / "reference", ROUNDS)


@pytest.mark.slow
@pytest.mark.parametrize("trouble", [FROZEN, FULL], ids=["frozen", "full"])
def test_a_folder_in_which_no_run_can_begin_is_refused_at_once(
    disk: Disk, federation: Federation, trouble: Trouble
) -> None:
    runs = federation.folder / "runs"
    disk.mount(runs, "4k,nr_inodes=1" if trouble is FULL else LARGE)
    if trouble is FROZEN:
        disk.freeze(runs)
    up = federation.process("server", "up", str(federation.folder / "settings.yaml"), "--runs", str(runs))
    assert up.wait(60) == CANNOT_WRITE, federation.says("server")
    assert f"no run folder can be created in this folder ({trouble.reason})" in " ".join(
        federation.says("server").split()
    )
    assert "Traceback" not in federation.says("server")


def private_settings() -> dict[str, Any]:
    return private(REPEATABLE).model_dump(mode="json") | {
        "rounds": PRIVATE_ROUNDS,
        "clients": 3,
        "evaluation": {"server": False, "clients": False},
        "participation": {"sampler": {"kind": "fixed", "size": 2}, "deadline": 120.0},
    }


@pytest.fixture(scope="module")
def private_reference(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A private run in which nothing goes wrong."""
    reference = RunFolder.create(tmp_path_factory.mktemp("reference"), "undisturbed")
    asyncio.run(run_in_process(validate(private_settings()), reference))
    return reference


@pytest.mark.slow  # make test-all
@pytest.mark.parametrize("trouble", [FROZEN, FULL], ids=["frozen", "full"])
def test_a_client_that_cannot_write_its_ledger_sends_nothing_and_spends_nothing(
    disk: Disk, on_disk: MakeFederation, private_reference: RunFolder, trouble: Trouble
) -> None:
    federation = on_disk(private_settings())
    victim = federation.names[1]
    state = federation.folder / "state" / victim
    disk.mount(state, SMALL)
    federation.start()
    federation.wait_for_round(3)
    trouble.begin(disk, state)
    last = fails(federation, victim)
    if trouble is FROZEN:
        assert "privacy.ledger: the privacy ledger cannot be written (Read-only file system)" in last
        assert "nothing is sent and no budget spent" in last
    assert str(federation.folder / "state") not in federation.says("server")
    assert "failed" not in federation.says("server")
    (ledger,) = state.rglob("privacy.ledger")
    trouble.end(disk, state)
    federation.restart(victim)
    run = federation.finish()
    spent = Ledger(ledger, victim).releases
    assert digest(run / "model.npz") == digest(private_reference.model)
    (undisturbed_ledger,) = private_reference.journals.rglob(f"{victim}/privacy.ledger")
    assert spent == Ledger(undisturbed_ledger, victim).releases
