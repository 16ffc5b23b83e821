"""Disks that are full, read-only or damaged: it is detected and said, and the last good state is used."""

from __future__ import annotations

import asyncio
import resource
import signal
from pathlib import Path

import pytest

from fenchel.common.settings.run import validate
from fenchel.common.storage.run_folder import RunFolder
from fenchel.deploy.launch.in_process import run_in_process
from fenchel.server import checkpoint as checkpoints
from tests.cluster.conftest import MakeFederation
from tests.cluster.federation import Federation, Process, digest
from tests.cluster.ledger_runs import LEDGER, settings, undisturbed

pytestmark = pytest.mark.cluster

ROUNDS = 40
FULL = 12  # exit code of a StorageError
ROOM = 5000  # bytes: enough for what a process says, not for journal, tables and checkpoint


def flip(path: Path, share: float = 0.9) -> None:
    """Replace a file by a copy with one byte changed. A server killed during a save leaves one file under two names."""
    content = bytearray(path.read_bytes())
    content[int(share * len(content))] ^= 1
    path.unlink()
    path.write_bytes(content)


def limit_files(process: Process, size: int) -> None:
    """Let no file of a process grow beyond a size: writing fails in the middle, as on a full disk."""
    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


@pytest.fixture
def federation(federate: MakeFederation) -> Federation:
    made: Federation = federate(settings(ROUNDS, nap=0.05), LEDGER)
    return made


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_full_disk_stops_a_client_which_goes_on_when_there_is_room(federation: Federation, tmp_path: Path) -> None:
    federation.start()
    federation.wait_for_round(5)
    victim = federation.names[1]
    limit_files(federation.clients[victim], ROOM)
    assert federation.clients[victim].wait(60) == FULL
    said = federation.says(victim)
    assert "cannot be written" in said
    assert "Make room on this client's disk" in " ".join(said.split())
    assert "Traceback" not in said
    federation.restart(victim)
    run = federation.finish()
    assert digest(run / "model.npz") == undisturbed(tmp_path / "reference", ROUNDS)


@pytest.mark.slow  # make test-all
@pytest.mark.timeout(300)
def test_a_damaged_checkpoint_sends_the_run_back_to_the_one_before_it(federation: Federation, tmp_path: Path) -> None:
    federation.start()
    federation.wait_for_round(15)
    federation.kill("server")
    flip(federation.run_folder / "checkpoint/latest")
    federation.restart("server")
    run = federation.finish()
    said = " ".join(federation.says("server").split())
    assert "wrong checksum" in said
    assert "continues from the previous checkpoint" in said
    assert (run / "checkpoint/damaged").exists()
    assert digest(run / "model.npz") == undisturbed(tmp_path / "reference", ROUNDS)


@pytest.mark.timeout(300)
@pytest.mark.slow  # make test-all
def test_a_damaged_journal_stops_the_run_which_can_go_back_behind_it(federate: MakeFederation, tmp_path: Path) -> None:
    """All that one client did after the checkpoint before the last one is gone, but what is older is there.

    Everybody takes part in each round: otherwise the others could do rounds before the client is missed.
    """
    everybody = settings(ROUNDS, nap=0.05) | {"participation": {"deadline": 120.0}}
    federation = federate(everybody, LEDGER)
    federation.start()
    federation.wait_for_round(15)
    assert federation.server is not None
    federation.server.send_signal(signal.SIGTERM)
    federation.server.wait(60)
    for name in federation.names:
        federation.kill(name)  # one that has not heard of the end tries to reach the server still
    folder = RunFolder(federation.run_folder)
    latest, before = (checkpoints.load(path).members for path in (folder.checkpoint, folder.previous_checkpoint))
    victim = next(name for name in latest if latest[name]["base"] > before[name]["base"])
    spoilt = [
        entry
        for entry in (federation.folder / "state" / victim).rglob("*.state")
        if int(entry.stem) > before[victim]["base"]
    ]
    for entry in spoilt:
        flip(entry)
    federation.start()
    assert federation.server.wait(60) == 7
    said = federation.says("server")
    assert "journal" in said
    assert "--previous" in said
    assert all(entry.name in federation.says(victim) for entry in spoilt)
    federation.start_server("--previous")
    for name in federation.names:
        federation.kill(name)  # those that did not hear of the end try to reach it still
        federation.start_client(name)
    run = federation.finish()
    reference = RunFolder.create(tmp_path / "reference", "undisturbed")
    asyncio.run(run_in_process(validate(everybody), reference))
    assert digest(run / "model.npz") == digest(reference.model)
