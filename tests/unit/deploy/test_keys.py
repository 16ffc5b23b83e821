"""Keys reach the clients; the server gets the public half, and refuses to start near the other one."""

from __future__ import annotations

import errno
import json
import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer

from fenchel.algorithms.hyfdca.settings import Encryption
from fenchel.common.crypto.public_key import BITS_OF_SECURITY
from fenchel.common.crypto.residues.choice import backend_of
from fenchel.common.errors import CredentialError, SettingsError
from fenchel.common.settings.run import RunSettings
from fenchel.common.storage import store
from fenchel.deploy.certificates import keys
from fenchel.deploy.certificates.keys import CLIENTS, SERVER, make_keys, read_public, refuse_private_keys
from fenchel.deploy.certificates.making import make_all
from fenchel.deploy.cli.main import application
from fenchel.keys.shared import Secrets
from tests.messages import raises


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("made") / "below" / "keys"
    make_keys(made, 2048)
    return made


def fenchel(*words: str) -> Any:
    """Run a command in this process."""
    return typer.main.get_command(application()).main(list(words), standalone_mode=False)


def test_the_two_files_belong_together(folder: Path) -> None:
    secrets, public = Secrets.load(folder / CLIENTS), read_public(folder / SERVER)
    assert secrets.private_key.public == public
    assert public.bits == 2048
    assert sorted(path.name for path in folder.iterdir()) == [CLIENTS, SERVER]


def test_only_the_owner_can_read_the_clients_file(tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        make_keys(tmp_path / "keys", 2048)
    finally:
        os.umask(old)
    assert stat.S_IMODE((tmp_path / "keys" / CLIENTS).stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "keys").stat().st_mode) == 0o700


def test_the_length_follows_from_the_security(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fenchel("keys", str(tmp_path / "112"), "--security", "112", "--json")
    made = json.loads(capsys.readouterr().out)
    assert (made["bits"], made["backend"]) == (2048, backend_of("fenchel"))
    assert read_public(tmp_path / "112" / SERVER).bits == 2048
    fenchel("keys", str(tmp_path / "bits"), "--bits", "2050")
    assert read_public(tmp_path / "bits" / SERVER).bits == 2050
    bits = {security: Encryption(security=security).bits for security in BITS_OF_SECURITY}
    assert bits == {112: 2048, 128: 3072, 192: 7680}
    assert Encryption().bits == 3072
    assert Encryption(security=192, key_bits=256).bits == 256


def test_keys_are_replaced_only_by_force(folder: Path, tmp_path: Path) -> None:
    (tmp_path / SERVER).write_text((folder / SERVER).read_text())
    with raises(SettingsError, file="server.public"):
        make_keys(tmp_path, 2048)
    assert not (tmp_path / CLIENTS).exists()
    public = make_keys(tmp_path, 2048, force=True)
    assert read_public(tmp_path / SERVER) == public != read_public(folder / SERVER)
    with raises(SettingsError, file="clients.secret"):
        make_keys(tmp_path, 2048)


def secret_words(folder: Path) -> list[str]:
    """Every long word of the clients' file that the server's does not have."""
    words = (folder / CLIENTS).read_text().replace('"', " ").replace(",", " ").split()
    public = (folder / SERVER).read_text()
    return [word for word in words if len(word) > 20 and word.removeprefix("0x") not in public]


@pytest.mark.parametrize("existing", [False, True])
@pytest.mark.parametrize("full_at", [CLIENTS, SERVER])
def test_a_full_disk_destroys_no_keys_and_leaves_no_half_of_a_pair(
    full_at: str, existing: bool, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if existing:
        shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    def full(path: Path, **options: Any) -> Any:
        if path.name == full_at:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return store.replacing(path, **options)

    monkeypatch.setattr(keys, "replacing", full)
    with raises(CredentialError, source=tmp_path):
        make_keys(tmp_path, 2048, force=True)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_no_command_prints_a_secret(folder: Path, capfd: pytest.CaptureFixture[str], options: list[str]) -> None:
    secrets = Secrets.load(folder / CLIENTS)
    fenchel("keys", "show", str(folder / CLIENTS), *options)
    of_clients = capfd.readouterr()
    fenchel("keys", "show", str(folder / SERVER), *options)
    of_server = capfd.readouterr()
    said = of_clients.out + of_clients.err + of_server.out + of_server.err
    assert len(secret_words(folder)) >= 4  # p, q, factors of p-1 and q-1, the key of pseudonyms
    assert [word for word in secret_words(folder) if word in said] == []
    for shown, kind in ((of_clients.out, "never for the server"), (of_server.out, "public key")):
        assert kind in shown
        assert "2048" in shown
        assert secrets.private_key.public.fingerprint in shown


def test_the_command_makes_keys_and_says_what_goes_where(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    fenchel("keys", str(tmp_path / "keys"), "--bits", "2048")
    said = capfd.readouterr().out
    assert read_public(tmp_path / "keys" / SERVER).fingerprint in said
    assert "never to the server" in said
    assert [word for word in secret_words(tmp_path / "keys") if word in said] == []
    fenchel("keys", str(tmp_path / "keys"), "--bits", "2048", "--force", "--json")
    made = json.loads(capfd.readouterr().out)
    assert made["fingerprint"] == read_public(tmp_path / "keys" / SERVER).fingerprint


def test_a_short_key_other_words_and_files_that_are_no_keys_are_refused(tmp_path: Path) -> None:
    with raises(SettingsError):
        make_keys(tmp_path / "keys", 1024)
    assert not (tmp_path / "keys").exists()
    with raises(SettingsError):
        fenchel("keys", str(tmp_path / "keys"), "--bits", "0")
    assert not (tmp_path / "keys").exists()
    with raises(SettingsError):
        fenchel("keys", "show", "one", "two")
    (tmp_path / "other").write_text("{}")
    with raises(CredentialError, file="other"):
        fenchel("keys", "show", str(tmp_path / "other"))
    with raises(CredentialError, file="missing"):
        fenchel("keys", "show", str(tmp_path / "missing"))


# The server


def test_a_server_takes_no_private_key_for_the_public_one(folder: Path, tmp_path: Path) -> None:
    with raises(CredentialError, file="clients.secret"):
        fenchel(
            *("server", "fenchel/experiments/quickstart.yaml", "--insecure", "--runs", str(tmp_path)),
            *("--public-key", str(folder / CLIENTS)),
        )
    assert list(tmp_path.iterdir()) == []


def test_a_server_refuses_to_start_with_the_clients_file_among_its_certificates(folder: Path, tmp_path: Path) -> None:
    make_all(tmp_path / "certs", ["localhost"], [])
    certs = tmp_path / "certs/server"
    refuse_private_keys(certs, {})
    (certs / "renamed").write_text((folder / CLIENTS).read_text())
    with raises(CredentialError, file="renamed"):
        fenchel(
            "server", "fenchel/experiments/quickstart.yaml", "--certs", str(certs), "--runs", str(tmp_path / "runs")
        )
    assert not (tmp_path / "runs").exists()


def test_a_server_refuses_what_its_environment_or_its_container_gives_it(folder: Path, tmp_path: Path) -> None:
    refuse_private_keys(None, {"FENCHEL_SECRETS": str(folder / "missing"), "FENCHEL_PUBLIC_KEY": str(folder / SERVER)})
    with raises(CredentialError, source="the variable KEY of the environment"):
        refuse_private_keys(None, {"PATH": "/bin", "KEY": (folder / CLIENTS).read_text()})
    for variable in ("FENCHEL_SECRETS", "FENCHEL_PUBLIC_KEY"):
        with raises(CredentialError, file="clients.secret"):
            refuse_private_keys(None, {variable: str(folder / CLIENTS)})
    (tmp_path / "password").write_bytes(bytes(range(256)))
    (tmp_path / SERVER).write_text((folder / SERVER).read_text())
    refuse_private_keys(None, {}, tmp_path)
    (tmp_path / "clients").write_text(json.dumps(Secrets.load(folder / CLIENTS).private_key.to_fields()))
    with raises(CredentialError, file="clients"):
        refuse_private_keys(None, {}, tmp_path)


def test_the_refusal_ends_the_process_with_the_code_of_credentials(folder: Path, tmp_path: Path) -> None:
    words = ["server", "fenchel/experiments/quickstart.yaml", "--insecure", "--runs", str(tmp_path)]
    done = subprocess.run(
        [sys.executable, "-m", "fenchel", *words],
        env=os.environ | {"FENCHEL_SECRETS": str(folder / CLIENTS)},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == CredentialError.exit_code
    assert "give the server server.public only" in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr


def test_a_public_key_for_a_run_that_encrypts_nothing_is_refused(folder: Path, tmp_path: Path) -> None:
    with raises(SettingsError):
        fenchel(
            *("server", "fenchel/experiments/fedavg-digits.yaml", "--insecure", "--runs", str(tmp_path)),
            *("--public-key", str(folder / SERVER)),
        )


def test_a_run_without_encryption_needs_no_key_and_nobody_makes_secrets_that_are_not_sealed(make_settings: Any) -> None:
    settings: RunSettings = make_settings()
    assert settings.algorithm.key_bits is None
    assert not settings.seals_secrets
    assert not make_settings(secrets={"source": "sealed"}).seals_secrets
    with raises(SettingsError, key="secrets", source="settings"):
        make_settings(secrets={"designated": "north"})
    assert make_settings(secrets={"source": "sealed", "designated": "north"}).secrets.designated == "north"
