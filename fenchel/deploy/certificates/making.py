"""Creation and renewal of certificates for server, clients and monitors."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Sequence
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID

from fenchel.common.errors import CredentialError, SettingsError
from fenchel.common.tls.credentials import AUTHORITY, CERTIFICATE, CLAIMS, KEY
from fenchel.common.tls.roles import CLIENT_SCHEME, MONITOR_SCHEME
from fenchel.deploy.certificates.authority import Authority, make_authority, subject
from fenchel.deploy.certificates.description import hosts_of, role_of, subject_name
from fenchel.deploy.certificates.files import read, write
from fenchel.deploy.certificates.pem import certificate_pem, certificates, key_pem

LEAF_DAYS = 397

_ALWAYS = ("localhost", "127.0.0.1", "::1")
# X.509 allows at most 64 characters, and each name must be valid as a folder's name.
_CLIENT_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_HOST_NAME = re.compile(r"(\*\.)?([A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?\.)*[A-Za-z0-9_-]{1,63}")


def make_server(
    authority_folder: Path, folder: Path, hosts: Sequence[str], *, days: int = LEAF_DAYS, force: bool = False
) -> None:
    """Create the server's certificate and key.

    Parameters
    ----------
    authority_folder
        Folder of the authority.
    folder
        Folder for ``authority.pem``, ``certificate.pem`` and ``key.pem``.
    hosts
        Host names and IP addresses that clients dial, without a port. ``localhost`` and the loopback addresses are
        always added.
    days
        Validity in days, at most that of the authority.
    force
        Whether to replace existing files.

    Raises
    ------
    SettingsError
        If a host or the validity is invalid, or a file exists and ``force`` is false.
    CredentialError
        If the authority cannot be used, or the folder cannot be written.
    """
    names = list(dict.fromkeys(_general_name(host) for host in (*hosts, *_ALWAYS)))
    extensions = [x509.SubjectAlternativeName(names), x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH])]
    _make_leaf(authority_folder, folder, "fenchel server", extensions, days, force)


def make_client(authority_folder: Path, folder: Path, name: str, *, days: int = LEAF_DAYS, force: bool = False) -> None:
    """Create a client's certificate and key.

    Parameters
    ----------
    authority_folder
        Folder of the authority.
    folder
        Folder for ``authority.pem``, ``certificate.pem`` and ``key.pem``.
    name
        Client id.
    days
        Validity in days, at most that of the authority.
    force
        Whether to replace existing files.

    Raises
    ------
    SettingsError
        If the name or validity is invalid, or a file exists and ``force`` is false.
    CredentialError
        If the authority cannot be used, or the folder cannot be written.
    """
    _make_participant(authority_folder, folder, name, CLIENT_SCHEME, days, force)


def sign_client(
    authority: Authority, name: str, key: ec.EllipticCurvePublicKey, *, days: int = LEAF_DAYS
) -> x509.Certificate:
    """Return a certificate for a key made by the client. Raise ``SettingsError`` if the name or validity is invalid."""
    check_client_name(name)
    return authority.sign(subject(name), key, _of_participant(name, CLIENT_SCHEME), days)


def make_monitor(
    authority_folder: Path, folder: Path, name: str, *, days: int = LEAF_DAYS, force: bool = False
) -> None:
    """Create the certificate and key of a monitor, which may check a server's health but not take part in runs.

    Parameters and errors are those of :func:`make_client`. The name appears in the server's log.
    """
    _make_participant(authority_folder, folder, name, MONITOR_SCHEME, days, force)


def make_all(folder: Path, hosts: Sequence[str], clients: Sequence[str], *, force: bool = False) -> None:
    """Create an authority, and certificates and keys for the server and all clients.

    Parameters
    ----------
    folder
        Parent of the folders ``authority``, ``server``, and one for each client.
    hosts
        Host names and IP addresses that clients dial.
    clients
        Client ids.
    force
        Whether to replace existing files.

    Raises
    ------
    SettingsError
        If a client id is invalid, reserved or duplicate, a host is invalid, or a file exists and ``force`` is false.
    CredentialError
        If a folder cannot be written.
    """
    check_client_names(clients)
    for client in clients:
        if client in ("authority", "server", CLAIMS):
            raise SettingsError(
                f"{client!r} cannot be a client's name, because the folder {client} has another use; choose another one"
            )
    authority = folder / "authority"
    make_authority(authority, "Fenchel authority", force=force)
    make_server(authority, folder / "server", hosts, force=force)
    for client in clients:
        make_client(authority, folder / client, client, force=force)


def renew(authority_folder: Path, folder: Path, *, days: int = LEAF_DAYS) -> None:
    """Replace the certificate and key in a folder by new ones, for the same name or hosts.

    Running processes that use the folder reload them. The old certificate is valid until it expires, unless it is
    revoked (:func:`fenchel.deploy.certificates.revocation.revoke`).

    Parameters
    ----------
    authority_folder
        Folder of the authority.
    folder
        Folder written by :func:`make_server`, :func:`make_client` or :func:`make_monitor`. Only the old certificate is
        needed.
    days
        Validity of the new certificate in days, at most that of the authority.

    Raises
    ------
    CredentialError
        If the authority or the old certificate cannot be used, or the folder cannot be written.
    """
    path = folder / CERTIFICATE
    old = certificates(read(path), path)[0]
    role, schemes = role_of(old), {"client": CLIENT_SCHEME, "monitor": MONITOR_SCHEME}
    if role == "server":
        names = [host for host in hosts_of(old) if host not in _ALWAYS]
        make_server(authority_folder, folder, names, days=days, force=True)
    elif role in schemes:
        _make_participant(authority_folder, folder, subject_name(old), schemes[role], days, force=True)
    else:
        raise CredentialError(
            "not a certificate of a server, client or monitor, so it cannot be renewed; make one with fenchel certs",
            source=path,
        )


def _make_participant(authority_folder: Path, folder: Path, name: str, scheme: str, days: int, force: bool) -> None:
    check_client_name(name)
    _make_leaf(authority_folder, folder, name, _of_participant(name, scheme), days, force)


def _of_participant(name: str, scheme: str) -> list[x509.ExtensionType]:
    return [
        # Strict verifiers require a subject alternative name. Clients have no host name, so they get a URI.
        x509.SubjectAlternativeName([x509.UniformResourceIdentifier(f"{scheme}:{name}")]),
        x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH]),
    ]


def _make_leaf(
    authority_folder: Path, folder: Path, name: str, extensions: Sequence[x509.ExtensionType], days: int, force: bool
) -> None:
    authority, key = Authority.load(authority_folder), ec.generate_private_key(ec.SECP256R1())
    certificate = authority.sign(subject(name), key.public_key(), extensions, days)
    files = {
        AUTHORITY: certificate_pem(authority.certificate),
        CERTIFICATE: certificate_pem(certificate),
        KEY: key_pem(key),
    }
    write(folder, files, force)


def _general_name(host: str) -> x509.GeneralName:
    with contextlib.suppress(ValueError):  # a host name is not an IP address
        return x509.IPAddress(ip_address(host))
    try:
        ascii_name = host.encode("idna").decode()
    except UnicodeError:
        ascii_name = ""
    if not _HOST_NAME.fullmatch(ascii_name) or len(ascii_name) > 253:
        raise SettingsError(f"{host!r} is neither a host name nor an IP address; give it without scheme and port")
    return x509.DNSName(ascii_name)


def check_client_name(name: str) -> None:
    """Raise a ``SettingsError`` if a name is not a valid client id."""
    if not _CLIENT_NAME.fullmatch(name):
        raise SettingsError(
            f"{name!r} cannot be a client's name; use 1 to 64 letters, digits, dots, hyphens or underscores, and "
            "begin with a letter or digit"
        )


def check_client_names(names: Sequence[str]) -> None:
    """Raise a ``SettingsError`` if a name is not a valid client id, or is given twice."""
    for name in names:
        check_client_name(name)
    if len(set(names)) < len(names):
        repeated = next(name for name in names if names.count(name) > 1)
        raise SettingsError(f"the name {repeated!r} is given twice; give each client its own")
