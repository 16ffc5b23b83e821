"""A supervised server that runs out of files, or is interrupted to be started elsewhere, keeps its clients."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fenchel.common.errors import INTERRUPTED, TooManyFilesError
from tests.cluster.conftest import MakeFederation
from tests.cluster.federation import digest
from tests.cluster.ledger import Ledger, LedgerClient, LedgerSettings
from tests.cluster.ledger_runs import LEDGER, settings, undisturbed

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

ROUNDS = 20


class ExhaustedSettings(LedgerSettings):
    """Settings of the ledger, and a file that tells whether the server has run out of files before."""

    marker: str


class Exhausted(Ledger):
    """Server half: the ledger, whose server runs out of files in round 5."""

    Settings = ExhaustedSettings  # type: ignore[assignment]
    settings: ExhaustedSettings

    async def round(self, t: int) -> None:
        if t == 5 and _first_time(Path(self.settings.marker)):
            raise TooManyFilesError("too many files are open, for a test")
        await super().round(t)


def _first_time(marker: Path) -> bool:
    """Leave a file as a marker; return whether it was missing."""
    if marker.exists():
        return False
    marker.touch()
    return True


class ExhaustedClient(LedgerClient):
    """Client half."""


def test_a_supervised_server_that_runs_out_of_files_gets_to_the_bits_of_an_undisturbed_run(
    federate: MakeFederation, tmp_path: Path
) -> None:
    name = f"{__name__}:Exhausted"
    chosen = settings(ROUNDS, nap=0.0)
    chosen["algorithm"] = {"name": name, "marker": str(tmp_path / "marker")}
    federation = federate(chosen, name)
    words = [sys.executable, "-m", "fenchel.deploy.cli.supervise", "server", str(tmp_path / "runs")]
    words += ["--listen", f"127.0.0.1:{federation.port}", "--certs", str(tmp_path / "certs/server"), "--linger", "600"]
    with subprocess.Popen([*words, "--", str(tmp_path / "settings.yaml")]) as server:
        try:
            for client in federation.names:
                federation.start_client(client)
            assert server.wait(120) == 0
        finally:
            server.terminate()
    assert (tmp_path / "marker").exists()
    for client in federation.clients.values():
        assert client.wait(30) == 0
    (folder,) = (tmp_path / "runs").iterdir()
    assert digest(folder / "model.npz") == undisturbed(tmp_path / "alone", ROUNDS)


def test_clients_that_are_kept_wait_for_the_next_server_when_theirs_is_interrupted(
    federate: MakeFederation, tmp_path: Path
) -> None:
    federation = federate(settings(ROUNDS, nap=0.05), LEDGER)
    federation.start_server("--keep-clients")
    for client in federation.names:
        federation.start_client(client)
    federation.wait_for_round(5)
    assert federation.server is not None
    federation.server.send_signal(signal.SIGTERM)
    assert federation.server.wait(60) == INTERRUPTED
    federation.start_server("--keep-clients")
    run = federation.finish()
    assert digest(run / "model.npz") == undisturbed(tmp_path / "alone", ROUNDS)
