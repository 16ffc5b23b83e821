"""Clients believe what another client signed, and nobody else's word."""

from __future__ import annotations

import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from hypothesis import given
from hypothesis import strategies as st

from fenchel.common.errors import CredentialError
from fenchel.common.tls.credentials import Credentials
from fenchel.common.tls.revocation import REVOKED
from fenchel.deploy.certificates.authority import make_authority
from fenchel.deploy.certificates.making import make_client, make_monitor
from fenchel.deploy.certificates.revocation import revoke
from fenchel.keys.identity import Identity, statement
from tests.messages import raises
from tests.unit.client.identities import identities

SIGNED = statement("test", "run-1", b"content")


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Identity]:
    return identities(tmp_path_factory.mktemp("certs") / "ours", ["north", "south"])


def test_a_signature_of_another_client_is_believed(known: dict[str, Identity]) -> None:
    north, south = known["north"], known["south"]
    south.check("north", north.certificate, SIGNED, north.sign(SIGNED))


def test_no_other_signature_counts_as_that_of_a_client(known: dict[str, Identity], tmp_path: Path) -> None:
    north, south, server = known["north"], known["south"], known["server"]
    stranger = identities(tmp_path / "theirs", ["north"])["north"]
    own, broken = north.certificate, "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----"
    for name, certificate, signature in (
        ("north", own, north.sign(statement("test", "run-2", b"content"))),
        ("north", own, south.sign(SIGNED)),
        *(("north", own, nonsense) for nonsense in (b"", b"nonsense", bytes(72))),
        ("north", south.certificate, south.sign(SIGNED)),
        *((claimed, server.certificate, server.sign(SIGNED)) for claimed in ("fenchel server", "north")),
        ("north", stranger.certificate, stranger.sign(SIGNED)),
        *(("north", nonsense, north.sign(SIGNED)) for nonsense in ("", "nonsense", broken)),
    ):
        with raises(CredentialError):
            south.check(name, certificate, SIGNED, signature)


def test_a_monitor_cannot_sign_as_a_client(known: dict[str, Identity], tmp_path: Path) -> None:
    authority = known["north"].credentials.folder
    assert authority is not None
    make_monitor(authority.parent / "authority", tmp_path / "north", "north")
    monitor = Identity("north", Credentials.load(tmp_path / "north"))
    with raises(CredentialError):
        known["south"].check("north", monitor.certificate, SIGNED, monitor.sign(SIGNED))


def test_a_revoked_client_is_not_believed_by_those_who_have_the_list(tmp_path: Path) -> None:
    known = identities(tmp_path / "ours", ["east", "north", "south"])
    north, authority = known["north"], tmp_path / "ours" / "authority"
    revoke(authority, names=["north"])
    shutil.copy(authority / REVOKED, tmp_path / "ours" / "south")
    signature = north.sign(SIGNED)
    with raises(CredentialError):
        known["south"].check("north", north.certificate, SIGNED, signature)
    known["south"].check("east", known["east"].certificate, SIGNED, known["east"].sign(SIGNED))
    known["east"].check("north", north.certificate, SIGNED, signature)
    (tmp_path / "ours" / "south" / REVOKED).write_text("damaged")
    with raises(CredentialError, file="revoked.pem"):
        known["south"].check("east", known["east"].certificate, SIGNED, known["east"].sign(SIGNED))


def certified(
    authority: Path,
    key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey | ed25519.Ed25519PrivateKey,
    usages: list[x509.ObjectIdentifier] | None,
    days: tuple[int, int] = (-1, 30),
) -> Identity:
    """A certificate of north such as another program might make."""
    issuer = x509.load_pem_x509_certificate((authority / "authority.pem").read_bytes())
    signing = serialization.load_pem_private_key((authority / "authority-key.pem").read_bytes(), None)
    assert isinstance(signing, ec.EllipticCurvePrivateKey)
    now = datetime.now(UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "north")]))
        .issuer_name(issuer.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now + timedelta(days=days[0]))
        .not_valid_after(now + timedelta(days=days[1]))
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("north.example.org")]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signing.public_key()), critical=False)
    )
    if usages is not None:
        builder = builder.add_extension(x509.ExtendedKeyUsage(usages), critical=False)
    certificate = builder.sign(signing, hashes.SHA256())
    pem = certificate.public_bytes(serialization.Encoding.PEM)
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return Identity("north", Credentials((authority / "authority.pem").read_bytes(), pem, private))


@pytest.fixture
def authority(tmp_path: Path) -> Path:
    make_authority(tmp_path / "authority", "Ours")
    make_client(tmp_path / "authority", tmp_path / "south", "south")
    return tmp_path / "authority"


def south_of(authority: Path) -> Identity:
    return Identity("south", Credentials.load(authority.parent / "south"))


CLIENT, SERVER = ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH


def test_a_certificate_with_an_rsa_key_is_believed(authority: Path) -> None:
    north = certified(authority, rsa.generate_private_key(65537, 2048), [CLIENT])
    south_of(authority).check("north", north.certificate, SIGNED, north.sign(SIGNED))
    with raises(CredentialError):
        south_of(authority).check("north", north.certificate, SIGNED + b"!", north.sign(SIGNED))


@pytest.mark.parametrize(
    ("usages", "days"), [(None, (-1, 30)), ([CLIENT, SERVER], (-1, 30)), ([CLIENT], (-30, -1)), ([CLIENT], (2, 30))]
)
def test_a_certificate_that_the_server_might_have_or_that_is_not_valid_now_is_refused(
    authority: Path, usages: list[x509.ObjectIdentifier] | None, days: tuple[int, int]
) -> None:
    north = certified(authority, ec.generate_private_key(ec.SECP256R1()), usages, days)
    with raises(CredentialError):
        south_of(authority).check("north", north.certificate, SIGNED, north.sign(SIGNED))


def test_a_key_that_cannot_sign_here_is_named(authority: Path) -> None:
    north = certified(authority, ed25519.Ed25519PrivateKey.generate(), [CLIENT])
    with raises(CredentialError):
        north.sign(SIGNED)


@given(st.lists(st.binary(max_size=20), max_size=5), st.lists(st.binary(max_size=20), max_size=5))
def test_a_statement_has_one_reading(one: list[bytes], other: list[bytes]) -> None:
    assert (statement("test", *one) == statement("test", *other)) == (one == other)
