"""Signing: keys are made where they are used, each token counts for one key, and only for its own authority."""

from __future__ import annotations

import asyncio
import ssl
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import grpc
import pytest
import typer
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from fenchel.common.errors import CredentialError, FenchelError, SettingsError, UnreachableError
from fenchel.common.tls.credentials import CERTIFICATE, KEY, Credentials
from fenchel.deploy.address import Address
from fenchel.deploy.certificates.authority import Authority, make_authority, subject
from fenchel.deploy.certificates.description import describe, key_fingerprint
from fenchel.deploy.certificates.issued import issued
from fenchel.deploy.certificates.making import make_all
from fenchel.deploy.certificates.pairs import check_pair
from fenchel.deploy.cli.main import application
from fenchel.deploy.invitations import signing
from fenchel.deploy.invitations.acceptance import accept
from fenchel.deploy.invitations.invitation import HOST_NAME, Invitation
from fenchel.deploy.invitations.signing import SigningService, inviting
from fenchel.proto import fenchel_pb2 as pb
from fenchel.proto.fenchel_pb2_grpc import SigningStub
from tests.messages import raises

HERE = Address("127.0.0.1", 0)


@dataclass
class Running:
    """A service that invites, and what it said."""

    service: SigningService
    invitations: list[Invitation]
    authority: Path
    said: list[str]


@asynccontextmanager
async def authority_of(folder: Path, *names: str) -> AsyncIterator[Running]:
    """Invite clients, by an authority that is made if there is none."""
    authority, said = folder / "authority", list[str]()
    if not authority.exists():
        make_authority(authority, "A study")
    signer = Authority.load(authority)
    async with inviting(signer, names, HERE, listen=HERE, on_event=said.append) as (service, invitations):
        yield Running(service, invitations, authority, said)


def request(key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey) -> bytes:
    made = x509.CertificateSigningRequestBuilder().subject_name(subject("another")).sign(key, hashes.SHA256())
    return made.public_bytes(serialization.Encoding.DER)


async def status_of(running: Running, secret: bytes, asked: bytes) -> grpc.StatusCode:
    """Ask the service for a signature over its own connection; return what it answers."""
    invitation = running.invitations[0]
    pem = await asyncio.to_thread(certificate_at, invitation.address)
    options = (("grpc.ssl_target_name_override", HOST_NAME),)
    async with grpc.aio.secure_channel(str(invitation.address), grpc.ssl_channel_credentials(pem), options) as channel:
        try:
            await SigningStub(channel).Sign(pb.SignRequest(secret=secret, request=asked), timeout=20)
        except grpc.aio.AioRpcError as error:
            return error.code()
    return grpc.StatusCode.OK


def certificate_at(address: Address) -> bytes:
    return ssl.get_server_certificate((address.host, address.port), timeout=20).encode()


async def test_a_client_gets_the_certificate_of_the_key_that_it_made(tmp_path: Path) -> None:
    own = tmp_path / "hospital" / "certs"
    async with authority_of(tmp_path, "north") as running:
        (invitation,) = running.invitations
        key = await accept(Invitation.parse(invitation.token), own)
        await running.service.wait(20)
    check_pair(Credentials.load(own))
    about = describe(own)
    assert (about["subject"], about["role"], about["authority"]) == ("north", "client", "A study")
    assert [each.name for each in issued(running.authority)] == ["north"]
    assert f"{issued(running.authority)[0].serial:x}" == about["serial"]
    assert key_fingerprint(key) in "".join(running.said)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in own.iterdir()}
    assert modes == dict.fromkeys(("authority.pem", "certificate.pem", "key.pem"), 0o600)
    private = (own / KEY).read_bytes()
    assert not [path for path in running.authority.iterdir() if private in path.read_bytes()]


async def test_a_token_counts_for_one_key(tmp_path: Path) -> None:
    async with authority_of(tmp_path, "north", "south") as running:
        north, south = running.invitations
        await accept(north, tmp_path / "north")
        assert running.service.missing == ["south"]
        again = tmp_path / "again"  # whose first reply was lost on its way
        again.mkdir()
        (again / KEY).write_bytes((tmp_path / "north" / KEY).read_bytes())
        await accept(north, again)
        assert (again / CERTIFICATE).read_bytes() == (tmp_path / "north" / CERTIFICATE).read_bytes()
        with raises(CredentialError):
            await accept(north, tmp_path / "thief")
        assert not (tmp_path / "thief" / CERTIFICATE).exists()
        await accept(south, tmp_path / "south")
        await running.service.wait(20)
    assert [each.name for each in issued(running.authority)] == ["north", "south"]
    with raises(UnreachableError):
        await accept(south, tmp_path / "late")


async def test_a_call_that_did_not_end_is_done_again_with_the_same_key(tmp_path: Path) -> None:
    own = tmp_path / "own"
    async with authority_of(tmp_path, "north") as running:
        (invitation,) = running.invitations
    with raises(UnreachableError):
        await accept(invitation, own)
    key = (own / KEY).read_bytes()
    async with authority_of(tmp_path, "north") as running:
        await accept(running.invitations[0], own)
    assert (own / KEY).read_bytes() == key
    check_pair(Credentials.load(own))


async def test_nothing_is_sent_to_another_machine_than_the_token_names(tmp_path: Path) -> None:
    async with authority_of(tmp_path / "one", "north") as one, authority_of(tmp_path / "other", "north") as other:
        redirected = replace(one.invitations[0], address=other.invitations[0].address)
        with raises(CredentialError):
            await accept(redirected, tmp_path / "own")
    assert other.said == []  # it was not even asked
    assert other.service.missing == ["north"]


async def test_what_cannot_be_signed_is_refused(tmp_path: Path) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    good = request(key)
    wrong = bytearray(good)
    wrong[-1] ^= 1  # of the signature
    async with authority_of(tmp_path, "north") as running:
        secret = running.invitations[0].secret
        for asked in (
            b"",
            b"nonsense",
            good[:-1],
            bytes(wrong),
            request(ec.generate_private_key(ec.SECP384R1())),
            request(rsa.generate_private_key(65537, 2048)),
        ):
            assert await status_of(running, secret, asked) == grpc.StatusCode.INVALID_ARGUMENT
        assert await status_of(running, secret, bytes(1 << 15)) == grpc.StatusCode.RESOURCE_EXHAUSTED
        for unknown in (b"", secret[:-1], bytes(16), secret + b"\0"):
            assert await status_of(running, unknown, good) == grpc.StatusCode.PERMISSION_DENIED
        assert issued(running.authority) == []
        assert await status_of(running, secret, good) == grpc.StatusCode.OK
    assert len(issued(running.authority)) == 1


async def test_strangers_do_not_fill_the_screen_and_hide_nothing(tmp_path: Path) -> None:
    async with authority_of(tmp_path, "north") as running:
        for _ in range(25):
            await status_of(running, bytes(16), b"")
        assert len(running.said) == 20
        await accept(running.invitations[0], tmp_path / "north")
        for _ in range(2):
            other = request(ec.generate_private_key(ec.SECP256R1()))
            await status_of(running, running.invitations[0].secret, other)
    assert len(running.said) == 22
    assert "another key" in running.said[-1]


async def test_a_call_whose_message_never_ends_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signing, "_CALL_SECONDS", 1)
    async with authority_of(tmp_path, "north") as running:
        address = running.invitations[0].address
        pem = await asyncio.to_thread(certificate_at, address)
        options = (("grpc.ssl_target_name_override", HOST_NAME),)
        async with grpc.aio.secure_channel(str(address), grpc.ssl_channel_credentials(pem), options) as channel:
            call: Any = channel.stream_unary("/fenchel.v1.Signing/Sign")()
            assert await call.code() != grpc.StatusCode.OK
        await accept(running.invitations[0], tmp_path / "north")


async def test_an_authority_that_cannot_sign_sees_why_and_the_token_still_counts(tmp_path: Path) -> None:
    async with authority_of(tmp_path, "north") as running:
        notes = running.authority / "issued.jsonl"
        notes.mkdir()
        with raises(CredentialError) as caught:
            await accept(running.invitations[0], tmp_path / "north")
        assert str(running.authority) not in str(caught.value), "paths of the authority are its own"
        assert "not signed" in running.said[-1]
        notes.rmdir()
        await accept(running.invitations[0], tmp_path / "north")


async def test_an_authoritys_certificate_that_is_there_already_does_no_harm(tmp_path: Path) -> None:
    own = tmp_path / "north"
    own.mkdir()
    async with authority_of(tmp_path, "north") as running:
        (own / "authority.pem").write_text("that of another study")
        await accept(running.invitations[0], own)
    check_pair(Credentials.load(own))


async def test_a_port_that_another_service_has_and_an_address_of_another_machine_are_refused(tmp_path: Path) -> None:
    async with authority_of(tmp_path, "north") as running:
        signer = Authority.load(running.authority)
        for listen in (Address("127.0.0.1", running.invitations[0].address.port), Address("192.0.2.1", 7444)):
            with raises(UnreachableError):
                async with inviting(signer, ["south"], HERE, listen=listen, on_event=print):
                    pass


def client(*words: str) -> str:
    """Run ``fenchel client`` as far as it refuses; return its last words."""
    with pytest.raises(FenchelError) as caught:
        application()(["client", "localhost:1", "--retry-for", "0.1", *words], standalone_mode=False)
    return str(caught.value)


def test_a_token_beside_other_identities_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    make_all(tmp_path / "made", ["localhost"], ["north"])
    token = Invitation("south", Address("localhost", 1), bytes(32), bytes(16)).token
    assert "--token" in client("--token", token, "--insecure", "--name", "south")
    assert "--sessions" in client("--token", token, "--sessions", "2")
    assert "another folder" in client("--token", token, "--certs", str(tmp_path / "made" / "north"))
    assert "fenchel certs invite" in client("--token", token)
    monkeypatch.setenv("FENCHEL_TOKEN", token)
    assert "fenchel certs invite" in client()
    assert "could not reach" in client("--insecure", "--name", "south"), "the variable is for clients with certificates"


async def test_tokens_end_with_their_time(tmp_path: Path) -> None:
    async with authority_of(tmp_path, "north") as running:
        with raises(CredentialError):
            await running.service.wait(0.05)


@pytest.mark.parametrize("names", [("north", "north"), ("no name",), ("../north",)])
async def test_names_that_no_client_can_have_are_refused(tmp_path: Path, names: tuple[str, ...]) -> None:
    with raises(SettingsError):
        async with authority_of(tmp_path, *names):
            pass


async def test_a_validity_that_no_certificate_can_have_is_refused_before_the_invitation(tmp_path: Path) -> None:
    make_authority(tmp_path / "authority", "A study")
    signer = Authority.load(tmp_path / "authority")
    with raises(SettingsError):
        async with inviting(signer, ["north"], HERE, listen=HERE, on_event=print, days=40_000):
            pass


def test_tokens_cannot_count_for_longer_than_their_service_has_a_certificate(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_authority(tmp_path / "authority", "A study")
    words = ["certs", "invite", "--authority", str(tmp_path / "authority"), "--name", "north", "--at", "localhost:0"]
    with pytest.raises(typer.BadParameter):
        application()([*words, "--minutes", str(10**12)], standalone_mode=False)
    assert not capsys.readouterr().out


async def test_a_key_of_another_kind_is_left_alone(tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.mkdir()
    key = rsa.generate_private_key(65537, 2048)
    pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    (own / KEY).write_bytes(pem)
    async with authority_of(tmp_path, "north") as running:
        with raises(CredentialError, file="key.pem"):
            await accept(running.invitations[0], own)
    assert (own / KEY).read_bytes() == pem


def test_a_token_is_read_whole_or_not_at_all() -> None:
    invitation = Invitation("north", Address("authority.example.org", 7444), bytes(range(32)), bytes(range(16)))
    token = invitation.token
    assert Invitation.parse(token) == invitation
    assert repr(invitation.secret) not in repr(invitation)
    pieces = [token[:length] for length in range(len(token))]
    for wrong in (*pieces, f"{token}A", token[8:], f"{token} ", token.replace("_", "-", 1), "fenchel_" + "A" * 2000):
        with raises(SettingsError, key="--token"):
            Invitation.parse(wrong)
