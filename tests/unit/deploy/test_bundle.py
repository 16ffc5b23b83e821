"""Bundles: what a client process is given through its standard input, and what it does with damaged ones."""

from __future__ import annotations

import asyncio
import io
import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from fenchel.common.errors import CredentialError
from fenchel.common.tls.credentials import Credentials
from fenchel.deploy.certificates.making import make_all
from fenchel.deploy.launch.bundle import Bundle, ReceivedBundle
from tests.messages import raises

SOURCE = "standard input"
TEXTS = {"authority": "A", "certificate": "B", "key": "C"}
WHOLE = {"identities": {"client-000": TEXTS}, "secrets": 0}

DAMAGED = {
    "nothing": b"",
    "no line of JSON": b"\x00\xff\n",
    "another object": b"[]\n",
    "no identities": json.dumps(WHOLE | {"identities": {}}).encode(),
    "identities in a list": json.dumps(WHOLE | {"identities": ["client-000"]}).encode(),
    "a part is missing": json.dumps(WHOLE | {"identities": {"client-000": {"key": "C"}}}).encode(),
    "a part is a number": json.dumps(WHOLE | {"identities": {"client-000": TEXTS | {"key": 7}}}).encode(),
    "no length": json.dumps({"identities": {"client-000": TEXTS}}).encode(),
    "a length that is none": json.dumps(WHOLE | {"secrets": "long"}).encode(),
    "a length below 0": json.dumps(WHOLE | {"secrets": -1}).encode() + b"\n{}",
    "secrets that are cut off": json.dumps(WHOLE | {"secrets": 10}).encode() + b"\n{}",
    "secrets that are no text": json.dumps(WHOLE | {"secrets": 2}).encode() + b"\n\xff\xfe",
    "deep": b'{"identities":' * 100_000,
}


def sent(bundle: Bundle) -> bytes:
    """Return what a bundle writes into a pipe, which holds less than it."""
    reading, writing = os.pipe()
    found = io.BytesIO()

    def read() -> None:
        with os.fdopen(reading, "rb") as stream:
            found.write(stream.read())

    reader = threading.Thread(target=read)
    reader.start()
    asyncio.run(bundle.send(writing))
    os.close(writing)
    reader.join()
    return found.getvalue()


def test_what_was_sent_is_what_is_read(tmp_path: Path) -> None:
    make_all(tmp_path, ["localhost"], ["client-000", "client-001"])
    identities = {name: Credentials.load(tmp_path / name) for name in ("client-000", "client-001")}
    (tmp_path / "secrets").write_text("x" * 100_000)
    data = sent(Bundle(identities=identities, secrets=tmp_path / "secrets"))
    found = ReceivedBundle.read(io.BytesIO(data), SOURCE)
    assert found.identities == identities  # the folder that they come from does not count
    assert found.secrets == "x" * 100_000


def test_a_run_without_certificates_and_secrets_has_names_only() -> None:
    found = ReceivedBundle.read(io.BytesIO(sent(Bundle(identities={"client-000": None}))), SOURCE)
    assert found == ReceivedBundle({"client-000": None}, None)


@pytest.mark.parametrize("case", DAMAGED)
def test_a_damaged_bundle_is_an_error_that_names_its_source(case: str) -> None:
    with raises(CredentialError, source=SOURCE):
        ReceivedBundle.read(io.BytesIO(DAMAGED[case]), SOURCE)


def test_a_reader_that_has_ended_is_no_error_and_missing_secrets_are(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    asyncio.run(Bundle(identities={"client-000": None}).send(writing))
    os.fstat(writing)  # it is still open
    with pytest.raises(FileNotFoundError):
        asyncio.run(Bundle(identities={"client-000": None}, secrets=tmp_path / "gone").send(writing))
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(writing)


def client(*words: str, **given: object) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-P", "-m", "fenchel", "client", "localhost:1", *words]
    return subprocess.Popen(command, stderr=subprocess.PIPE, **given)  # type: ignore[call-overload, no-any-return]


def test_a_client_ends_with_its_standard_input(tmp_path: Path) -> None:
    """It dials in vain for ten minutes otherwise."""
    with client("--bundle", "-", "--state", str(tmp_path), stdin=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stderr is not None
        process.stdin.write(sent(Bundle(identities={"client-000": None})))
        process.stdin.flush()
        assert b"client-000" in process.stderr.readline()  # it is dialling
        process.stdin.close()
        assert process.wait(60) == 0


@pytest.mark.slow
def test_a_standard_input_without_an_end_of_its_own_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "bundle"
    file.write_bytes(sent(Bundle(identities={"client-000": None})))
    with file.open("rb") as opened:
        process = client("--bundle", "-", "--state", str(tmp_path), stdin=opened)
        said = process.communicate(timeout=60)[1]
    assert process.returncode == CredentialError.exit_code
    assert b"standard input" in said
