"""Roles of certificates: a client of the federation, or a monitor, which may only check a server's health.

The role is the alternative name of a certificate, a URI: ``fenchel:NAME`` for a client, ``fenchel-monitor:NAME`` for a
monitor. Certificates of other authorities without such a name are those of clients.
"""

from __future__ import annotations

from enum import Enum, auto
from functools import lru_cache

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm

from fenchel.common.errors import CredentialError

CLIENT_SCHEME = "fenchel"
MONITOR_SCHEME = "fenchel-monitor"

_REMEMBERED = 4096  # largest number of cached certificates


def is_monitor(certificate: x509.Certificate) -> bool:
    """Return whether a certificate belongs to a monitor."""
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return False
    found = names.get_values_for_type(x509.UniformResourceIdentifier)
    return any(uri.partition(":")[0] == MONITOR_SCHEME for uri in found)


class Role(Enum):
    """Role of a certificate's owner."""

    PARTICIPANT = auto()
    MONITOR = auto()
    UNKNOWN = auto()
    """The certificate cannot be read."""


@lru_cache(_REMEMBERED)
def role_of(certificate: bytes) -> Role:
    """Return the role of the owner of a certificate (PEM)."""
    try:
        return Role.MONITOR if is_monitor(x509.load_pem_x509_certificate(certificate)) else Role.PARTICIPANT
    except (ValueError, UnsupportedAlgorithm, x509.InvalidVersion, x509.DuplicateExtension):
        return Role.UNKNOWN


def check_participant(certificate: bytes) -> None:
    """Raise ``CredentialError`` if the owner of a certificate (PEM) cannot take part in a run."""
    role = role_of(certificate)
    if role is Role.UNKNOWN:
        raise CredentialError(
            "the certificate cannot be read, so its role is unknown; make one with fenchel certs client"
        )
    if role is Role.MONITOR:
        raise CredentialError(
            "the certificate is a monitor's (fenchel certs monitor), which may check the server's health and take no "
            "part in a run; use one of fenchel certs client"
        )
