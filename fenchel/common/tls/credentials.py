"""Certificates and keys, as files that each side is given."""

from __future__ import annotations

import logging
import os
import ssl
from dataclasses import dataclass, field
from pathlib import Path

import grpc

from fenchel.common.errors import CredentialError

log = logging.getLogger("fenchel.credentials")

AUTHORITY = "authority.pem"
CERTIFICATE = "certificate.pem"
KEY = "key.pem"
CLAIMS = "claims"
"""In a pool of identities: the folder that says who has taken which (:mod:`fenchel.deploy.certificates.claims`)."""


@dataclass(frozen=True)
class Credentials:
    """One side's certificate and key, and the authority that it trusts.

    A folder holds them as ``authority.pem``, ``certificate.pem`` and ``key.pem``; ``fenchel certs`` makes
    such folders. What is put there in their place counts from the next connection on (:meth:`renewed`).

    Attributes
    ----------
    authority, certificate, key
        In PEM form.
    folder
        Where they were read; ``None``: nowhere, so that they are never renewed.
    """

    authority: bytes
    certificate: bytes
    key: bytes = field(repr=False)
    folder: Path | None = field(default=None, compare=False)

    @classmethod
    def load(cls, folder: Path) -> Credentials:
        """Read a folder."""
        found = {}
        for name, marker in ((AUTHORITY, "CERTIFICATE"), (CERTIFICATE, "CERTIFICATE"), (KEY, "PRIVATE KEY")):
            path = folder / name
            try:
                found[name] = path.read_bytes()
            except OSError as error:
                raise CredentialError(
                    f"cannot be read ({error.strerror}); make certificates with fenchel certs, "
                    "and give this folder with --certs",
                    source=path,
                ) from None
            if f"{marker}-----".encode() not in found[name]:
                raise CredentialError(
                    f"not a {marker.lower()} in PEM form; is it the file that fenchel certs made, and whole?",
                    source=path,
                )
        return cls(found[AUTHORITY], found[CERTIFICATE], found[KEY], folder)

    @property
    def key_is_open(self) -> bool:
        """Whether other users of this machine can read the key."""
        return self.folder is not None and open_to_others((self.folder / KEY).stat(), os.geteuid())

    def renewed(self) -> Credentials:
        """Return what is in the folder now, if it has changed and fits together; else these.

        Files are replaced one after the other, so for a moment they may not fit.
        """
        if self.folder is None:
            return self
        try:
            found = Credentials.load(self.folder)
        except CredentialError:
            return self
        if found == self or not _fit(self.folder) or Credentials.load(self.folder) != found:
            return self
        log.info("%s: the certificate was replaced; the new one counts from now on", self.folder)
        return found

    def for_server(self) -> grpc.ServerCredentials:
        """Return what a server listens with: it shows its certificate and demands one of each client.

        Each connection is made with the files as they are then.
        """
        current = self

        def renewed() -> grpc.ServerCertificateConfiguration | None:
            """Return what the next connection is made with; ``None``: the same as the last."""
            nonlocal current
            before, current = current, current.renewed()
            return None if current is before else current._shown()

        return grpc.dynamic_ssl_server_credentials(
            self._shown(),
            renewed,  # type: ignore[arg-type]  # gRPC takes None for: as before
            require_client_authentication=True,
        )

    def _shown(self) -> grpc.ServerCertificateConfiguration:
        return grpc.ssl_server_certificate_configuration(
            [(self.key, self.certificate)], root_certificates=self.authority
        )

    def for_channel(self) -> grpc.ChannelCredentials:
        """Return what a client dials with."""
        return grpc.ssl_channel_credentials(self.authority, self.key, self.certificate)


def open_to_others(key: os.stat_result, user: int) -> bool:
    """Return whether other users than this one can read a key, or its group can change it.

    A group that may read a key of root's is how Kubernetes gives the key to this user.
    """
    given_by_group = key.st_uid == 0 and user != 0
    return bool(key.st_mode & (0o037 if given_by_group else 0o077))


def _fit(folder: Path) -> bool:
    """Whether certificate and key in a folder are a pair, and the authority is one."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(folder / CERTIFICATE, folder / KEY, password="")
        context.load_verify_locations(folder / AUTHORITY)
    except OSError:  # ssl.SSLError is one, too
        return False
    return True
