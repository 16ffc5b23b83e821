"""Descriptions of certificates: subject, role, hosts, validity."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fenchel.common.errors import CredentialError
from fenchel.common.tls.credentials import AUTHORITY, CERTIFICATE, Credentials
from fenchel.common.tls.roles import is_monitor
from fenchel.deploy.certificates.files import read
from fenchel.deploy.certificates.pem import certificates, public_key


def common_name(credentials: Credentials) -> str:
    """Return the common name in the certificate of credentials, which is the client id in runs with TLS."""
    return subject_name(certificates(credentials.certificate, CERTIFICATE)[0])


def describe(folder: Path) -> dict[str, Any]:
    """Describe the certificate in a folder, which is that of a participant or of the authority.

    Returns
    -------
    dict[str, Any]
        - ``subject``: common name
        - ``role``: ``authority``, or as in :func:`role_of`
        - ``serial``: serial number in hexadecimal digits
        - ``hosts``: as in :func:`hosts_of`
        - ``starts``, ``expires``: validity (ISO 8601)
        - ``authority``: common name of the authority, or of both during a rotation
        - ``authority_sha256``: fingerprint of the authority's certificate, or of both, of which one must be equal on
          both sides of a connection

    Raises
    ------
    CredentialError
        If a file cannot be read, or is not a certificate with a common name.
    """
    authorities = certificates(read(folder / AUTHORITY), folder / AUTHORITY)
    path = folder / CERTIFICATE
    certificate = certificates(read(path), path)[0] if path.exists() else authorities[0]
    return {
        "subject": subject_name(certificate),
        "role": "authority" if certificate is authorities[0] else role_of(certificate),
        "serial": f"{certificate.serial_number:x}",
        "hosts": hosts_of(certificate),
        "starts": certificate.not_valid_before_utc.isoformat(),
        "expires": certificate.not_valid_after_utc.isoformat(),
        "authority": ", ".join(map(subject_name, authorities)),
        "authority_sha256": ", ".join(each.fingerprint(hashes.SHA256()).hex(" ", 2) for each in authorities),
    }


def key_fingerprint(key: ec.EllipticCurvePublicKey) -> str:
    """Return a fingerprint of a key for comparison by people: the first half of its SHA-256, in hexadecimal digits."""
    return hashlib.sha256(public_key(key)).digest()[:16].hex(" ", 2)


def subject_name(certificate: x509.Certificate) -> str:
    """Return the common name in a certificate. Raise ``CredentialError`` if there is none."""
    names = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    if not names:
        raise CredentialError(
            f"the certificate of {certificate.subject.rfc4514_string()!r} has no common name; make one with "
            "fenchel certs"
        )
    return str(names[0].value)


def role_of(certificate: x509.Certificate) -> str:
    """Return the role of a certificate: ``server``, ``client``, ``monitor``, or ``any`` without extended key usage."""
    try:
        usage = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    except x509.ExtensionNotFound:
        return "any"
    if ExtendedKeyUsageOID.SERVER_AUTH in usage:
        return "server"
    return "monitor" if is_monitor(certificate) else "client"


def hosts_of(certificate: x509.Certificate) -> list[str]:
    """Return the host names and addresses in a server's certificate."""
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return []
    return [str(name.value) for name in names if isinstance(name, x509.DNSName | x509.IPAddress)]
