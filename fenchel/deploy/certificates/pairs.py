"""Check that a certificate, its key and its authority belong together."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Literal, TypeAlias

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.x509.oid import ExtendedKeyUsageOID

from fenchel.common.errors import CredentialError
from fenchel.common.tls.credentials import AUTHORITY, CERTIFICATE, KEY, Credentials
from fenchel.deploy.certificates.description import role_of, subject_name
from fenchel.deploy.certificates.pem import certificates, private_key, public_key
from fenchel.deploy.certificates.validity import check_dates

Purpose: TypeAlias = Literal["server", "client"]

_USAGES: Mapping[Purpose, x509.ObjectIdentifier] = {
    "server": ExtendedKeyUsageOID.SERVER_AUTH,
    "client": ExtendedKeyUsageOID.CLIENT_AUTH,
}


def check_pair(credentials: Credentials, purpose: Purpose | None = None) -> None:
    """Raise a ``CredentialError`` unless certificate, key and authority belong together and are valid now.

    Parameters
    ----------
    credentials
        Certificate, key and authority.
    purpose
        Side of a connection for which the certificate must be made; ``None``: either.
    """
    chain = certificates(credentials.certificate, CERTIFICATE)
    authorities = certificates(credentials.authority, AUTHORITY)
    leaf = chain[0]
    who = f"the certificate of {subject_name(leaf)!r}"
    if public_key(private_key(credentials.key, KEY)) != public_key(leaf):
        raise CredentialError(
            f"{who} and the key beside it ({KEY}) do not belong together; copy both from the same folder"
        )
    signed = all(_signed_by(below, above) for below, above in pairwise(chain)) and (
        chain[-1] in authorities or any(_signed_by(chain[-1], authority) for authority in authorities)
    )
    if not signed:
        raise CredentialError(
            f"{who} is not signed by the authority beside it, {subject_name(authorities[0])!r}; copy {CERTIFICATE} "
            f"and {AUTHORITY} from the same folder"
        )
    for certificate in (leaf, *authorities):
        check_dates(certificate, f"the certificate of {subject_name(certificate)!r}")
    if purpose is not None and not _serves(leaf, purpose):
        raise CredentialError(
            f"{who} is not for a {purpose} but for a {role_of(leaf)}; give a folder that fenchel certs {purpose} has "
            "made"
        )


def _serves(certificate: x509.Certificate, purpose: Purpose) -> bool:
    """Return True if the extended key usage of a certificate, if any, allows one side of a connection."""
    try:
        usage = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    except x509.ExtensionNotFound:
        return True
    return _USAGES[purpose] in usage or ExtendedKeyUsageOID.ANY_EXTENDED_KEY_USAGE in usage


def _signed_by(certificate: x509.Certificate, authority: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True
