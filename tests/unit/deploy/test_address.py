"""Addresses on the command line are host and port, and what is none is refused before anything begins."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from fenchel.common.errors import SettingsError, UnreachableError
from fenchel.deploy.address import Address
from fenchel.deploy.certificates.making import make_all
from fenchel.deploy.cli.main import application
from tests.messages import raises

WRONG = ["", "7444", "localhost", "localhost:", ":7444", "localhost:x", "localhost:70000", "host:" + "9" * 5000]
WRONG += ["https://server:7443", "a b:80", "user@host:80", "[::1:80", "::1", "fe80::1", "[::1]"]
WRONG += ["a..b:80", ".b:80", "a..:80", "x" * 64 + ".example.org:80"]


@pytest.mark.parametrize("words", WRONG)
def test_an_address_that_is_none_is_refused_by_the_name_of_its_option(words: str) -> None:
    with raises(SettingsError, key="--metrics"):
        Address.parse(words, "--metrics")


def test_addresses_are_read_and_known_as_private_or_not() -> None:
    assert Address.parse("[::1]:80", "--metrics") == Address("::1", 80)
    assert Address.parse("localhost:7443", "--to") == Address("localhost", 7443)
    assert Address.parse("server.example.org.:7443", "--to") == Address("server.example.org.", 7443)
    assert str(Address("::1", 80)) == "[::1]:80"
    assert all(Address(host, 1).is_loopback for host in ("127.0.0.1", "127.8.8.8", "::1", "localhost"))
    assert not any(Address(host, 1).is_loopback for host in ("0.0.0.0", "::", "192.0.2.1", "server"))


@pytest.mark.parametrize(
    "words",
    [
        ["client", "localhost:99999", "--insecure", "--name", "a"],
        ["client", "localhost", "--insecure", "--name", "a"],
        ["probe", "localhost:", "--insecure"],
        ["relay", "--listen", "localhost:1", "--to", "there"],
        ["server", "fenchel/experiments/quickstart.yaml", "--listen", "7443", "--insecure"],
    ],
)
def test_no_command_begins_with_an_address_that_is_none(words: list[str]) -> None:
    app = application()
    result = CliRunner().invoke(app, words)
    assert isinstance(result.exception, SettingsError)
    assert "not of the form HOST:PORT" in str(result.exception)


@pytest.mark.parametrize(
    ("words", "listened_on", "warned"),
    [
        (["--insecure"], "127.0.0.1:7443", False),
        (["--insecure", "--listen", "127.0.0.2:7500"], "127.0.0.2:7500", False),
        (["--insecure", "--listen", "0.0.0.0:7500"], "0.0.0.0:7500", True),
        (["--certs", "server"], "0.0.0.0:7443", False),
        (["--certs", "server", "--listen", "127.0.0.1:0"], "127.0.0.1:0", False),
    ],
)
def test_a_server_without_tls_listens_on_this_machine_alone_unless_told_otherwise(
    words: list[str], listened_on: str, warned: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_all(tmp_path, ["localhost"], ["north"])
    tried: list[str] = []

    async def serve(coordinator: object, address: str, *_: object) -> None:
        tried.append(address)
        raise UnreachableError("it only notes the address")

    monkeypatch.setattr("fenchel.server.transport.service.serve", serve)
    experiment = str(Path("fenchel/experiments/fedavg-digits.yaml").resolve())
    monkeypatch.chdir(tmp_path)
    made = application()
    result = CliRunner().invoke(made, ["server", experiment, *words])
    assert isinstance(result.exception, UnreachableError), result.output
    assert tried == [listened_on]
    assert ("without TLS, anyone who reaches this address" in " ".join(result.output.split())) == warned
