"""All clients of a federation come to the same secrets, and no server process, nor its files, ever has them."""

from __future__ import annotations

import json
import stat
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import fenchel
from fenchel.common.errors import RunStoppedError, SettingsError
from fenchel.deploy.certificates.keys import make_keys
from fenchel.keys.shared import Secrets
from tests.cluster.conftest import MakeFederation
from tests.cluster.federation import Federation, Process, wait_until
from tests.messages import raises
from tests.slow import rest_slow

pytestmark = pytest.mark.cluster

VAULT = "tests.cluster.vault:Vault"
NAMES = ["client-000", "client-001", "client-002"]


def settings(rounds: int = 3, nap: float = 0.0, source: str = "sealed", **algorithm: Any) -> dict[str, Any]:
    return {
        "name": "vault",
        "rounds": rounds,
        "clients": len(NAMES),
        "data": {"name": "digits", "samples": 120},
        "objective": {"kind": "softmax"},
        "algorithm": {"name": VAULT, "nap": nap, **algorithm},
        "evaluation": {"server": False, "clients": False},
        "secrets": {"source": source},
    }


IMPORTS_ARE_SAID = {"PYTHONPROFILEIMPORTTIME": "1"}
"""With this in its environment a process writes each module that it loads to its log."""
SAYING_AT_THE_END = """
import atexit, sys
from fenchel.deploy.cli.main import main
atexit.register(lambda: print(*(f"import time: | {name}" for name in sys.modules), sep="\\n", file=sys.stderr))
main()
"""
"""A program that does so for itself, but not for processes that it starts."""


@dataclass
class Watched(Federation):
    """A federation in which some processes write each module that they load to their logs. The others are forked."""

    watched: Sequence[str] = ("server",)

    def process(self, log: str, *words: str) -> Process:
        self.environment = IMPORTS_ARE_SAID if log in self.watched else {}
        return super().process(log, *words)


def loaded(log: str) -> set[str]:
    """The modules of this project that a process has loaded."""
    names = {line.rpartition("|")[2].strip() for line in log.splitlines() if line.startswith("import time:")}
    return {name for name in names if name.startswith("fenchel.")}


def decrypting(modules: set[str]) -> set[str]:
    return {
        name
        for name in modules
        if name.startswith("fenchel.keys.paillier")
        or name
        in ("fenchel.keys.shared", "fenchel.keys.secret_exchange", "fenchel.keys.sealing", "fenchel.client.session")
    }


def traces(secrets: Secrets) -> list[bytes]:
    """Every form in which one of the secrets could lie in a file."""
    key = secrets.private_key
    found = [secrets.alignment_key, secrets.alignment_key.hex().encode()]
    for number in (key.p, key.q, *(factor for factor in key.p_factors + key.q_factors if factor > 1 << 64)):
        size = (number.bit_length() + 7) // 8
        found += [f"{number:x}".encode(), str(number).encode()]
        found += [number.to_bytes(size, "big"), number.to_bytes(size, "little")]
    return found


def holding(folder: Path, secrets: Secrets) -> list[Path]:
    """The files below a folder in which a secret is."""
    wanted = traces(secrets)
    return [
        path
        for path in sorted(folder.rglob("*"))
        if path.is_file() and any(trace in path.read_bytes() for trace in wanted)
    ]


def kept(federation: Federation, name: str, file: str) -> Path:
    """Where a client keeps something of the run."""
    return federation.folder / "state" / name / federation.run_folder.name / name / file


def begun(federation: Federation) -> bool:
    return (federation.folder / "runs").is_dir() and any((federation.folder / "runs").iterdir())


@pytest.mark.slow
def test_clients_seal_secrets_for_each_other_and_the_server_only_relays(federate: MakeFederation) -> None:
    chosen = settings(rounds=40, nap=0.05) | {"secrets": {"source": "sealed", "designated": NAMES[2]}}
    federation = federate(chosen, allow=VAULT, kind=Watched, watched=("server", NAMES[0]))
    federation.start()
    federation.wait_for_round(5)
    files = [kept(federation, name, "clients.secret") for name in NAMES]
    assert len({path.read_text() for path in files}) == 1
    assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o600}
    assert not any(kept(federation, name, "exchange.key").exists() for name in NAMES)
    secrets = Secrets.load(files[0])
    assert holding(federation.folder / "state", secrets) == sorted(files), "so the search finds what there is"
    # A client that is killed has them again; a server that is killed goes on without them.
    federation.kill("client-001")
    federation.restart("client-001")
    wait_until(lambda: (federation.run_folder / "checkpoint/latest").exists(), "a checkpoint")
    federation.kill("server")
    federation.restart("server")
    run = federation.finish()
    assert f"client {NAMES[2]} made the secrets" in (run / "log.jsonl").read_text()
    assert holding(federation.folder, secrets) == [], "the clients have removed them, too: the run is complete"
    assert decrypting(loaded(federation.says("server"))) == set()
    assert "fenchel.server.membership.secret_exchange" in loaded(federation.says("server"))
    assert {"fenchel.keys.shared", "fenchel.keys.sealing"} <= decrypting(loaded(federation.says("client-000")))


def test_clients_that_are_killed_in_the_middle_of_the_exchange_come_to_the_same_secrets(
    federate: MakeFederation,
) -> None:
    federation = federate(settings(bits=3072), allow=VAULT)
    federation.start()
    wait_until(lambda: begun(federation) and kept(federation, NAMES[1], "exchange.key").exists(), "an offer")
    federation.kill(NAMES[1])
    federation.kill(NAMES[0])  # who makes the secrets: they may be made by now, or not yet
    made = kept(federation, NAMES[0], "clients.secret").exists()
    offered = kept(federation, NAMES[1], "exchange.key").read_bytes()
    federation.restart(NAMES[0])
    federation.restart(NAMES[1])  # its offer may not have left, and without it nothing goes on
    wait_until(lambda: kept(federation, NAMES[0], "clients.secret").exists(), "the secrets")
    assert kept(federation, NAMES[1], "exchange.key").read_bytes() == offered, f"made before the kill: {made}"
    federation.finish()


def test_a_client_that_was_told_its_peers_shares_with_nobody_else(federate: MakeFederation) -> None:
    federation = federate(settings(), allow=VAULT)
    federation.start_server()
    for name in NAMES[1:]:
        federation.start_client(name)
    words = ["client", f"localhost:{federation.port}", "--certs", str(federation.folder / "certs" / NAMES[0])]
    words += ["--state", str(federation.folder / "state" / NAMES[0]), "--allow", VAULT, "--peer", NAMES[1]]
    federation.clients[NAMES[0]] = federation.process(NAMES[0], *words)
    assert federation.server is not None
    assert federation.server.wait(60) == RunStoppedError.exit_code
    assert f"--peer {NAMES[2]}" in " ".join(federation.says("server").split())
    assert not any(kept(federation, name, "clients.secret").exists() for name in NAMES)


@pytest.mark.slow
def test_secrets_from_a_file_reach_the_clients_and_the_server_insists_on_their_key(
    federate: MakeFederation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_keys(tmp_path / "keys", 2048)
    federation = federate(settings(source="file"), allow=VAULT, kind=Watched)
    monkeypatch.setenv("FENCHEL_PUBLIC_KEY", str(tmp_path / "keys/server.public"))
    federation.start_server()
    monkeypatch.delenv("FENCHEL_PUBLIC_KEY")
    # One client was forgotten: it says so, and the others wait for it.
    federation.start_client(NAMES[0])
    monkeypatch.setenv("FENCHEL_SECRETS", str(tmp_path / "keys/clients.secret"))
    for name in NAMES[1:]:
        federation.start_client(name)
    assert federation.clients[NAMES[0]].wait(60) == SettingsError.exit_code
    assert "--secrets FILE" in federation.says(NAMES[0])
    federation.start_client(NAMES[0])
    run = federation.finish()
    assert holding(run, Secrets.load(tmp_path / "keys/clients.secret")) == []
    assert decrypting(loaded(federation.says("server"))) == set()


@pytest.mark.slow
@pytest.mark.parametrize("source", rest_slow(["sealed", "file"]))
def test_one_command_makes_the_secrets_elsewhere_and_finds_them_again(
    source: str, federate: MakeFederation, tmp_path: Path
) -> None:
    federation = federate(settings(rounds=40, nap=0.05, source=source))
    words = ["up", str(tmp_path / "settings.yaml"), "--runs", str(tmp_path / "runs")]
    federation.server = federation.process("server", *words)
    federation.wait_for_round(10)
    wait_until(lambda: (federation.run_folder / "checkpoint/latest").exists(), "a checkpoint")
    federation.kill("server")
    found = list((federation.run_folder / "journals").rglob("clients.secret"))
    assert len(found) == (1 if source == "file" else len(NAMES))
    assert {stat.S_IMODE(path.stat().st_mode) for path in found} == {0o600}
    folders = {parent for path in found for parent in path.relative_to(federation.run_folder).parents} - {Path()}
    assert {stat.S_IMODE((federation.run_folder / each).stat().st_mode) for each in folders} == {0o700}
    secrets = Secrets.load(found[0])
    assert holding(federation.run_folder, secrets) == sorted(found)
    with (tmp_path / "server.log").open("ab") as log:
        words = [sys.executable, "-c", SAYING_AT_THE_END, "up", "--resume", str(federation.run_folder)]
        federation.server = subprocess.Popen(words, stdout=log, stderr=log)
    federation.started.append(federation.server)
    run = federation.finish()
    assert holding(run, secrets) == []
    assert loaded(federation.says("server"))
    assert decrypting(loaded(federation.says("server"))) == set(), "the launcher's process is a server"


def test_sealing_without_certificates_is_refused_by_both_sides(federate: MakeFederation, tmp_path: Path) -> None:
    federation = federate(settings())
    for words in (["up"], ["server", "--listen", f"127.0.0.1:{federation.port}"]):
        command = [*words, str(tmp_path / "settings.yaml"), "--insecure", "--runs", str(tmp_path / "runs")]
        process = federation.process(words[0], *command)
        assert process.wait(60) == SettingsError.exit_code
        assert "sealed needs certificates of the clients" in " ".join(federation.says(words[0]).split())
    with raises(SettingsError, key="secrets.source"):
        fenchel.up(settings(), runs=tmp_path / "in-process", in_process=True)


def test_secrets_in_one_process_are_made_and_removed(tmp_path: Path) -> None:
    run = fenchel.up(settings(source="file"), runs=tmp_path, in_process=True)
    assert run.completed
    assert list(run.path.rglob("*secret*")) == []
    assert json.loads((run.path / "summary.json").read_text())["rounds"] == 3


@pytest.mark.slow
def test_a_key_that_is_too_short_is_refused_before_anything_starts(federate: MakeFederation, tmp_path: Path) -> None:
    federation = federate(settings(source="file", bits=512))
    process = federation.process("up", "up", str(tmp_path / "settings.yaml"), "--runs", str(tmp_path / "runs"))
    assert process.wait(60) == SettingsError.exit_code
    assert "too short" in federation.says("up")
    assert list((tmp_path / "runs").iterdir()) == []
