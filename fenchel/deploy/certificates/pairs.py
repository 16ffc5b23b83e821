"""Check that a certificate, its key and its authority belong together."""

from __future__ import annotations

from itertools import pairwise

from cryptography import x509
from cryptography.exceptions import InvalidSignature

from fenchel.common.errors import CredentialError
from fenchel.common.tls.credentials import AUTHORITY, CERTIFICATE, KEY, Credentials
from fenchel.deploy.certificates.description import subject_name
from fenchel.deploy.certificates.pem import certificates, private_key, public_key
from fenchel.deploy.certificates.validity import check_dates


def check_pair(credentials: Credentials) -> None:
    """Raise a ``CredentialError`` unless certificate, key and authority belong together and are valid now."""
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


def _signed_by(certificate: x509.Certificate, authority: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True
