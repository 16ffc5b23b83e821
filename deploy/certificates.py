"""Certificates: an authority of one's own, and what it signs for the server and for each client.

Keys are on the curve P-256 and signatures use SHA-256. The layout that :func:`make_all` writes::

    folder/authority/   authority.pem  authority-key.pem            stays where it was made
                        issued.jsonl: what it signed; revoked.pem: what of that counts no more
    folder/server/      authority.pem  certificate.pem  key.pem     goes to the server
    folder/<client>/    authority.pem  certificate.pem  key.pem     goes to that client

Whoever has ``authority-key.pem`` can make a certificate of any name, so it is in no other folder.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from itertools import pairwise
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from common.credentials import AUTHORITY, CERTIFICATE, CLAIMS, KEY, Credentials
from common.errors import CredentialError, SettingsError
from common.revocation import REVOKED, read_revoked
from common.store import settle

AUTHORITY_KEY = "authority-key.pem"
ISSUED = "issued.jsonl"
AUTHORITY_DAYS = 3650
LEAF_DAYS = 397

_ALWAYS = ("localhost", "127.0.0.1", "::1")
_CLOCK_SKEW = timedelta(hours=1)  # machines whose clocks are a little behind accept a new certificate
_CLIENT_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")  # 64: the limit of X.509; also a folder's name
_HOST_NAME = re.compile(r"(\*\.)?([A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?\.)*[A-Za-z0-9_-]{1,63}")
_USAGES = (
    "digital_signature",
    "content_commitment",
    "key_encipherment",
    "data_encipherment",
    "key_agreement",
    "key_cert_sign",
    "crl_sign",
    "encipher_only",
    "decipher_only",
)


# Making


def make_authority(folder: Path, name: str, *, days: int = AUTHORITY_DAYS, force: bool = False) -> None:
    """Make an authority: the certificate that everybody trusts, and the key that signs all others.

    Parameters
    ----------
    folder
        Where ``authority.pem`` and ``authority-key.pem`` are written.
    name
        For people: who runs it.
    days
        How long it is valid.
    force
        Replace an authority that is there. Nothing that it signed is accepted any more.

    Raises
    ------
    SettingsError
        The name or the number of days cannot be accepted, or files are there already.
    CredentialError
        The folder cannot be written.
    """
    if not 1 <= len(name) <= 64 or not name.isprintable():
        raise SettingsError(f"an authority's name has 1 to 64 printable characters, not {name!r}")
    key = ec.generate_private_key(ec.SECP256R1())
    start = _now() - _CLOCK_SKEW
    certificate = (
        _builder(_subject(name), _subject(name), key.public_key(), start, start + _lifetime(days))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage("key_cert_sign", "crl_sign"), critical=True)
        .sign(key, hashes.SHA256())
    )
    _write(folder, {AUTHORITY: _pem(certificate), AUTHORITY_KEY: _key_pem(key)}, force)
    with _explained(folder, "cannot be written"):
        for old in (ISSUED, REVOKED):  # of the authority that was replaced
            (folder / old).unlink(missing_ok=True)


def make_server(
    authority_folder: Path, folder: Path, hosts: Sequence[str], *, days: int = LEAF_DAYS, force: bool = False
) -> None:
    """Make the server's certificate and key.

    Parameters
    ----------
    authority_folder
        Of :func:`make_authority`.
    folder
        Where ``authority.pem``, ``certificate.pem`` and ``key.pem`` are written.
    hosts
        Names and IP addresses that clients dial, without a port; ``localhost`` is always among them.
    days
        How long it is valid; not longer than its authority.
    force
        Replace what is there.

    Raises
    ------
    SettingsError
        A host or the number of days cannot be accepted, or files are there already.
    CredentialError
        The authority cannot be read or has expired, or the folder cannot be written.
    """
    names = list(dict.fromkeys(_general_name(host) for host in (*hosts, *_ALWAYS)))
    _make_leaf(
        _Authority.load(authority_folder),
        folder,
        _subject("fenchel server"),
        [
            x509.SubjectAlternativeName(names),
            x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]),
        ],
        days,
        force,
    )


def make_client(
    authority_folder: Path, folder: Path, name: str, *, days: int = LEAF_DAYS, force: bool = False
) -> None:
    """Make one client's certificate and key.

    Parameters
    ----------
    authority_folder, folder, days, force
        As for :func:`make_server`.
    name
        The client's id, by which the server knows it.

    Raises
    ------
    SettingsError
        The name or the number of days cannot be accepted, or files are there already.
    CredentialError
        The authority cannot be read or has expired, or the folder cannot be written.
    """
    _check_client_name(name)
    _make_leaf(
        _Authority.load(authority_folder),
        folder,
        _subject(name),
        [
            # Strict verifiers want an alternative name in each certificate; a client has no host, so a URI.
            x509.SubjectAlternativeName([x509.UniformResourceIdentifier(f"fenchel:{name}")]),
            x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH]),
        ],
        days,
        force,
    )


def make_all(
    folder: Path,
    hosts: Sequence[str],
    clients: Sequence[str],
    *,
    name: str = "Fenchel authority",
    days: int = LEAF_DAYS,
    force: bool = False,
    keep: bool = False,
) -> None:
    """Make an authority, and certificates and keys for the server and all clients.

    Parameters
    ----------
    folder
        Below it each of them gets a folder: ``authority``, ``server``, and one of each client's name.
    hosts, days
        As for :func:`make_server`.
    clients
        Names of the clients.
    name
        Of the authority.
    force
        Replace what is there.
    keep
        Leave what is there as it is and make what is missing.

    Raises
    ------
    SettingsError
        A host, a name or the number of days cannot be accepted, or files are there already.
    CredentialError
        The folder cannot be written, or the authority that is there cannot be used.
    """
    if force and keep:
        raise SettingsError("existing certificates can be replaced or kept, not both")
    if len(set(clients)) < len(clients):
        raise SettingsError("each client needs a name of its own, but some names are given twice")
    for client in clients:
        _check_client_name(client)
        if client in ("authority", "server", CLAIMS):
            raise SettingsError(f"a client cannot be called {client!r}: that folder has another use")
    authority = folder / "authority"
    if not (keep and (authority / AUTHORITY_KEY).exists()):
        make_authority(authority, name, force=force)
    if not (keep and (folder / "server" / KEY).exists()):
        make_server(authority, folder / "server", hosts, days=days, force=force)
    for client in clients:
        if not (keep and (folder / client / KEY).exists()):
            make_client(authority, folder / client, client, days=days, force=force)


# Replacing and revoking


def renew(authority_folder: Path, folder: Path, *, days: int = LEAF_DAYS) -> None:
    """Make a certificate and key in place of those in a folder, for the same name or the same hosts.

    Whoever uses the folder takes them up by itself. The old certificate is valid until it expires; see :func:`revoke`.

    Parameters
    ----------
    authority_folder
        Of :func:`make_authority`.
    folder
        Of :func:`make_server` or :func:`make_client`; of the old files only the certificate is needed.
    days
        How long the new one is valid; not longer than its authority.

    Raises
    ------
    SettingsError
        The number of days cannot be accepted.
    CredentialError
        A file cannot be read, or is no certificate of a server or a client.
    """
    path = folder / CERTIFICATE
    old = _certificates(_read(path), path)[0]
    if _role(old) == "server":
        hosts = [host for host in _hosts(old) if host not in _ALWAYS]
        make_server(authority_folder, folder, hosts, days=days, force=True)
    elif _role(old) == "client":
        make_client(authority_folder, folder, _common_name(old), days=days, force=True)
    else:
        raise CredentialError(
            f"{path}: neither a server's nor a client's certificate, so it cannot be renewed"
        )


def revoke(authority_folder: Path, *, names: Sequence[str] = (), serials: Sequence[int] = ()) -> list[int]:
    """Add certificates to the authority's revocation list, ``revoked.pem`` in its folder.

    Parameters
    ----------
    authority_folder
        Of :func:`make_authority`.
    names
        Clients, all of whose certificates up to now are revoked.
    serials
        Of single certificates.

    Returns
    -------
    list of int
        Serial numbers of the certificates that are revoked now and were not before.

    Raises
    ------
    SettingsError
        The authority knows of no certificate of that name.
    CredentialError
        A file cannot be read or written.
    """
    authority = _Authority.load(authority_folder)
    issuer = authority.certificate.subject
    before = {serial: since for (_, serial), since in read_revoked(authority_folder).items()}
    wanted = list(serials)
    for name in names:
        found = [each.serial for each in issued(authority_folder) if each.name == name]
        if not found:
            raise SettingsError(
                f"{authority_folder / ISSUED}: has no certificate of {name!r}; is the name right? One that was made "
                "before this list was kept is revoked by its number: --serial, which fenchel certs show tells"
            )
        wanted += found
    new = [serial for serial in dict.fromkeys(wanted) if serial not in before]
    now = _now()
    builder = (
        x509.CertificateRevocationListBuilder()
        .issuer_name(issuer)
        .last_update(now)
        .next_update(authority.certificate.not_valid_after_utc)
        .add_extension(x509.CRLNumber(len(before) + len(new)), critical=False)
    )
    for serial, since in (before | dict.fromkeys(new, now)).items():
        entry = x509.RevokedCertificateBuilder().serial_number(serial).revocation_date(since)
        builder = builder.add_revoked_certificate(entry.build())
    signed = builder.sign(authority.key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
    _write(authority_folder, {REVOKED: signed}, force=True)
    return new


@dataclass(frozen=True)
class Issued:
    """A certificate that an authority signed: its serial number, whose it is, until when (ISO 8601)."""

    serial: int
    name: str
    expires: str


def issued(authority_folder: Path) -> list[Issued]:
    """Return what an authority has signed, in order.

    Raises
    ------
    CredentialError
        The list is damaged.
    """
    path = authority_folder / ISSUED
    if not path.exists():
        return []
    try:
        lines = [json.loads(line) for line in _whole_lines(_read(path)).splitlines()]
        return [Issued(int(line["serial"], 16), line["name"], line["expires"]) for line in lines]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise CredentialError(f"{path}: damaged; each line is a JSON object") from None


def _note_issued(authority_folder: Path, certificate: x509.Certificate) -> None:
    line = {
        "serial": f"{certificate.serial_number:x}",
        "name": _common_name(certificate),
        "expires": certificate.not_valid_after_utc.isoformat(),
    }
    path = authority_folder / ISSUED
    with _explained(path, "cannot be written"):
        is_new = not path.exists()
        with open(path, "a+b", opener=_private) as file:
            file.seek(0)
            file.truncate(len(_whole_lines(file.read())))
            file.write(json.dumps(line).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
        if is_new:
            settle(authority_folder)


def _whole_lines(text: bytes) -> bytes:
    """Leave out a last line without its end: a crash has cut it off, before there was such a certificate."""
    return text[: text.rfind(b"\n") + 1]


# Reading and checking


def common_name(credentials: Credentials) -> str:
    """Return the name in a certificate: with TLS, the id of the client that shows it.

    Raises
    ------
    CredentialError
        The certificate cannot be read or has no name.
    """
    return _common_name(_certificates(credentials.certificate, CERTIFICATE)[0])


def check_pair(credentials: Credentials) -> None:
    """Check that certificate, key and authority belong together and are valid now.

    Raises
    ------
    CredentialError
        Saying what does not fit.
    """
    chain = _certificates(credentials.certificate, CERTIFICATE)
    authorities = _certificates(credentials.authority, AUTHORITY)
    leaf = chain[0]
    who = f"the certificate of {_common_name(leaf)!r}"
    if _public(_private_key(credentials.key, KEY)) != _public(leaf):
        raise CredentialError(
            f"{who} and the key beside it ({KEY}) are not a pair; copy both from the same folder"
        )
    signed = all(_signed_by(below, above) for below, above in pairwise(chain)) and (
        chain[-1] in authorities or any(_signed_by(chain[-1], authority) for authority in authorities)
    )
    if not signed:
        raise CredentialError(
            f"{who} is not signed by the authority beside it, {_common_name(authorities[0])!r}: "
            f"{CERTIFICATE} and {AUTHORITY} come from different authorities; take both from one"
        )
    for certificate in (leaf, *authorities):
        _check_dates(certificate, f"the certificate of {_common_name(certificate)!r}")


def describe(folder: Path) -> dict[str, Any]:
    """Describe the certificate in a folder: a leaf's, or else the authority's.

    Returns
    -------
    dict
        ``subject``; ``role``: ``authority``, ``server`` or ``client``; ``serial``: its number, in hexadecimal
        digits; ``hosts``: what a server's certificate is valid for; ``starts`` and ``expires`` (ISO 8601);
        ``authority``: its name; ``authority_sha256``: fingerprint of the authority's certificate, the same on both
        sides of a connection that works.

    Raises
    ------
    CredentialError
        A file cannot be read.
    """
    authority = _certificates(_read(folder / AUTHORITY), folder / AUTHORITY)[0]
    path = folder / CERTIFICATE
    certificate = _certificates(_read(path), path)[0] if path.exists() else authority
    return {
        "subject": _common_name(certificate),
        "role": "authority" if certificate is authority else _role(certificate),
        "serial": f"{certificate.serial_number:x}",
        "hosts": _hosts(certificate),
        "starts": certificate.not_valid_before_utc.isoformat(),
        "expires": certificate.not_valid_after_utc.isoformat(),
        "authority": _common_name(authority),
        "authority_sha256": authority.fingerprint(hashes.SHA256()).hex(" ", 2),
    }


# X.509


@dataclass(frozen=True)
class _Authority:
    """What signs."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey
    folder: Path

    @classmethod
    def load(cls, folder: Path) -> _Authority:
        certificate = _certificates(_read(folder / AUTHORITY), folder / AUTHORITY)[0]
        key = _private_key(_read(folder / AUTHORITY_KEY), folder / AUTHORITY_KEY)
        if not isinstance(key, ec.EllipticCurvePrivateKey) or _public(key) != _public(certificate):
            raise CredentialError(f"{folder}: {AUTHORITY_KEY} is not the key of {AUTHORITY}")
        _check_dates(certificate, f"{folder / AUTHORITY}: the authority")
        return cls(certificate, key, folder)


def _make_leaf(
    authority: _Authority,
    folder: Path,
    subject: x509.Name,
    extensions: Sequence[x509.ExtensionType],
    days: int,
    force: bool,
) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    issuer = authority.certificate
    start = max(_now() - _CLOCK_SKEW, issuer.not_valid_before_utc)
    end = min(start + _lifetime(days), issuer.not_valid_after_utc)
    identifier = issuer.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    builder = (
        _builder(subject, issuer.subject, key.public_key(), start, end)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage("digital_signature"), critical=True)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier), critical=False
        )
    )
    for extension in extensions:
        builder = builder.add_extension(extension, critical=False)
    certificate = builder.sign(authority.key, hashes.SHA256())
    _note_issued(authority.folder, certificate)  # first: what is not listed cannot be revoked by its name
    files = {AUTHORITY: _pem(issuer), CERTIFICATE: _pem(certificate), KEY: _key_pem(key)}
    _write(folder, files, force)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, start: datetime, end: datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(start)
        .not_valid_after(end)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _subject(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _key_usage(*usages: str) -> x509.KeyUsage:
    return x509.KeyUsage(**{usage: usage in usages for usage in _USAGES})


def _general_name(host: str) -> x509.GeneralName:
    with contextlib.suppress(ValueError):  # a name, then
        return x509.IPAddress(ip_address(host))
    try:
        ascii_name = host.encode("idna").decode()
    except UnicodeError:
        ascii_name = ""
    if not _HOST_NAME.fullmatch(ascii_name) or len(ascii_name) > 253:
        raise SettingsError(
            f"{host!r} is neither a host name nor an IP address; give it without scheme and port"
        )
    return x509.DNSName(ascii_name)


def _check_client_name(name: str) -> None:
    if not _CLIENT_NAME.fullmatch(name):
        raise SettingsError(
            f"{name!r} cannot be a client's name, which has 1 to 64 letters, digits, dots, hyphens or "
            "underscores and starts with a letter or digit"
        )


def _now() -> datetime:
    return datetime.now(UTC).replace(microsecond=0)


def _lifetime(days: int) -> timedelta:
    if not 1 <= days <= 36500:
        raise SettingsError(f"a certificate is valid for 1 to 36500 days, not {days}")
    return timedelta(days=days)


def _check_dates(certificate: x509.Certificate, who: str) -> None:
    now, start, end = _now(), certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if now > end:
        raise CredentialError(f"{who} expired on {end:%Y-%m-%d}; replace it with fenchel certs renew")
    if now < start:
        raise CredentialError(
            f"{who} is not valid before {start:%Y-%m-%d %H:%M} UTC, and here it is {now:%Y-%m-%d %H:%M}; "
            "is this machine's clock right?"
        )


def _signed_by(certificate: x509.Certificate, authority: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def _common_name(certificate: x509.Certificate) -> str:
    names = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    if not names:
        raise CredentialError(
            f"the certificate of {certificate.subject.rfc4514_string()!r} has no common name; "
            "make one with fenchel certs"
        )
    return str(names[0].value)


def _role(certificate: x509.Certificate) -> str:
    try:
        usage = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    except x509.ExtensionNotFound:
        return "any"
    return "server" if ExtendedKeyUsageOID.SERVER_AUTH in usage else "client"


def _hosts(certificate: x509.Certificate) -> list[str]:
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return []
    return [str(name.value) for name in names if isinstance(name, x509.DNSName | x509.IPAddress)]


# Files


def _certificates(pem: bytes, where: Path | str) -> list[x509.Certificate]:
    try:
        certificates = x509.load_pem_x509_certificates(pem)
        for certificate in certificates:  # the library reads these parts only when they are asked for
            void = certificate.subject, certificate.extensions, _public(certificate)
            del void
        return certificates
    except (
        ValueError,
        UnsupportedAlgorithm,
        x509.InvalidVersion,
        x509.DuplicateExtension,
        x509.UnsupportedGeneralNameType,
    ):
        raise CredentialError(f"{where}: not a certificate in PEM form, or a damaged one") from None


def _private_key(pem: bytes, where: Path | str) -> PrivateKeyTypes:
    try:
        return serialization.load_pem_private_key(pem, password=None)
    except TypeError:
        raise CredentialError(
            f"{where}: the key is locked with a passphrase; gRPC needs it unlocked"
        ) from None
    except (ValueError, UnsupportedAlgorithm):
        raise CredentialError(f"{where}: not a private key in PEM form, or of an unknown kind") from None


def _public(holder: x509.Certificate | PrivateKeyTypes) -> bytes:
    return holder.public_key().public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _read(path: Path) -> bytes:
    with _explained(path, "cannot be read"):
        return path.read_bytes()


def _write(folder: Path, files: Mapping[str, bytes], force: bool) -> None:
    """Write files that only their owner can read; check first that none is there.

    With ``force`` each takes the place of the old one at once: somebody may be using them. The disk has them on
    return: the loss of power must not bring back what was replaced, such as a list of what was revoked.
    """
    with _explained(folder, "cannot be written"):
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
        for name in files:
            path = folder / name
            if path.exists() and not force:
                raise SettingsError(f"{path}: is there already; --force replaces it")
        for name, content in files.items():
            temporary = folder / f"{name}.new"
            temporary.unlink(missing_ok=True)
            with open(temporary, "xb", opener=_private) as file:
                file.write(content)
                if force:
                    file.flush()
                    os.fsync(file.fileno())
            temporary.replace(folder / name)
        if force:
            settle(folder)


def _private(path: str, flags: int) -> int:
    # Created with its mode: a key is at no moment readable by others.
    return os.open(path, flags, 0o600)


@contextmanager
def _explained(path: Path, what: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise CredentialError(f"{path}: {what} ({error.strerror})") from None
