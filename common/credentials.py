"""Certificates and keys, as files that each side is given."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import grpc

from common.errors import CredentialError

AUTHORITY = "authority.pem"
CERTIFICATE = "certificate.pem"
KEY = "key.pem"
CLAIMS = "claims"
"""In a pool of identities: the folder that says who has taken which (:mod:`deploy.claims`)."""


@dataclass(frozen=True)
class Credentials:
    """One side's certificate and key, and the authority that it trusts.

    A folder holds them as ``authority.pem``, ``certificate.pem`` and ``key.pem``; ``fenchel certs`` makes
    such folders.
    """

    authority: bytes
    certificate: bytes
    key: bytes

    @classmethod
    def load(cls, folder: Path) -> Credentials:
        """Read a folder.

        Raises
        ------
        CredentialError
            A file is missing, unreadable, or not what its name says.
        """
        found = {}
        for name, marker in ((AUTHORITY, "CERTIFICATE"), (CERTIFICATE, "CERTIFICATE"), (KEY, "PRIVATE KEY")):
            path = folder / name
            try:
                found[name] = path.read_bytes()
            except OSError as error:
                raise CredentialError(
                    f"{path}: cannot be read ({error.strerror}); make certificates with fenchel certs, "
                    "and give this folder with --certs"
                ) from None
            if f"{marker}-----".encode() not in found[name]:
                raise CredentialError(f"{path}: not a {marker.lower()} in PEM form")
        return cls(found[AUTHORITY], found[CERTIFICATE], found[KEY])

    def for_server(self) -> grpc.ServerCredentials:
        """Return what a server listens with: it shows its certificate and demands one of each client."""
        return grpc.ssl_server_credentials(
            [(self.key, self.certificate)], root_certificates=self.authority, require_client_auth=True
        )

    def for_channel(self) -> grpc.ChannelCredentials:
        """Return what a client dials with."""
        return grpc.ssl_channel_credentials(self.authority, self.key, self.certificate)
