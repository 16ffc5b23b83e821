"""The file of secrets keeps everything, shows nothing, and only its owner may read it."""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from threading import Barrier

import pytest

from fenchel.common.crypto.public_key import Backend, PublicKey, looks_private
from fenchel.common.errors import CredentialError
from fenchel.common.storage.store import write_private
from fenchel.keys.paillier.key import PrivateKey
from fenchel.keys.paillier.owner import KeyOwner, key_owner
from fenchel.keys.shared import Secrets
from tests.messages import raises


@cache
def made() -> Secrets:
    return Secrets.generate(256, for_tests=True)


def edited(**changes: object) -> str:
    return json.dumps({**json.loads(made().to_text()), **changes})


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "secrets.json"
    write_private(path, made().to_text().encode())
    return path


@pytest.mark.parametrize("mode", [0o600, 0o400, 0o700])
def test_secrets_come_back_from_their_file(path: Path, mode: int) -> None:
    path.chmod(mode)
    again = Secrets.load(path)
    assert again == made()
    assert again.fingerprint == made().fingerprint


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o666, 0o620, 0o644])
def test_a_file_that_others_may_open_is_refused(path: Path, mode: int) -> None:
    path.chmod(mode)
    with raises(CredentialError, file="secrets.json"):
        Secrets.load(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with raises(CredentialError, file="none.json"):
        Secrets.load(tmp_path / "none.json")


def test_neither_words_nor_fingerprint_show_a_secret() -> None:
    shown = repr(made()) + str(made()) + made().fingerprint
    key = made().private_key
    for secret in (made().alignment_key.hex(), repr(made().alignment_key), str(key.p), f"{key.p:x}", f"{key.q:x}"):
        assert secret not in shown


def test_fingerprints_differ_if_either_secret_does() -> None:
    other = Secrets.generate(256, for_tests=True)
    mixed = [
        made(),
        other,
        Secrets(made().private_key, other.alignment_key),
        Secrets(other.private_key, made().alignment_key),
    ]
    assert len({each.fingerprint for each in mixed}) == 4


def test_the_server_s_side_recognises_and_refuses_them() -> None:
    for text in (made().to_text(), json.dumps(made().private_key.to_fields())):
        assert looks_private(text)
        with raises(CredentialError, source="key.json"):
            PublicKey.from_text(text, "key.json", smallest_bits=256)


@pytest.mark.parametrize(
    "text",
    [
        *("", "[]", "{}", "3", "[" * 100_000, made().to_text()[:-30], '{"kind": 1, "kind": 2}'),
        json.dumps(made().private_key.to_fields()),
        made().private_key.public.to_text(),
        edited(version=2),
        edited(version=True),
        edited(more=1),
        edited(alignment_key="00"),
        edited(alignment_key="G" * 64),
        edited(alignment_key=1),
        edited(paillier=1),
        edited(paillier=json.loads(made().private_key.public.to_text())),
    ],
)
def test_a_text_that_holds_something_else_is_refused(text: str) -> None:
    with raises(CredentialError, source="clients/secrets.json"):
        Secrets.from_text(text, "clients/secrets.json")


def test_a_key_of_pseudonyms_of_another_length_is_refused() -> None:
    with raises(CredentialError, key="secrets"):
        Secrets(made().private_key, bytes(16))


def test_bytes_that_are_no_text_are_refused(path: Path) -> None:
    path.write_bytes(b"\xff\xfe\x00")
    with raises(CredentialError, file="secrets.json"):
        Secrets.load(path)


def test_all_threads_of_a_process_share_the_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    secrets, together = Secrets.generate(256, for_tests=True), Barrier(8)
    made: list[KeyOwner] = []

    def slow(key: PrivateKey, backend: Backend) -> KeyOwner:
        time.sleep(0.05)
        made.append(key_owner(key, backend))
        return made[-1]

    def owner(_: int) -> KeyOwner:
        together.wait()
        return secrets.owner()

    monkeypatch.setattr("fenchel.keys.shared.key_owner", slow)
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(owner, range(8)))
    assert len(made) == 1
    assert all(each is made[0] for each in found)
