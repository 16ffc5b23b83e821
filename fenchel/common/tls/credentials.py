"""Certificates and keys of server and clients, in files."""

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
"""Subfolder of a pool of identities that records their owners (:mod:`fenchel.deploy.certificates.claims`)."""


@dataclass(frozen=True)
class Credentials:
    """Certificate and key of a server or client, and the authority that it trusts.

    A folder has them as ``authority.pem``, ``certificate.pem`` and ``key.pem``, and ``fenchel certs`` makes such
    folders. Replaced files take effect from the next connection on (:meth:`renewed`).

    Attributes
    ----------
    authority, certificate, key
        Certificate of the authority, own certificate and private key, in PEM form.
    folder
        Folder of the files; ``None`` if they were not read from a folder, so that they are never renewed.
    """

    authority: bytes
    certificate: bytes
    key: bytes = field(repr=False)
    folder: Path | None = field(default=None, compare=False)

    @classmethod
    def load(cls, folder: Path) -> Credentials:
        """Read the credentials in a folder; raise ``CredentialError`` if a file is unreadable or not in PEM form."""
        found = {}
        for name, marker in ((AUTHORITY, "CERTIFICATE"), (CERTIFICATE, "CERTIFICATE"), (KEY, "PRIVATE KEY")):
            path = folder / name
            try:
                found[name] = path.read_bytes()
            except OSError as error:
                raise CredentialError(
                    f"the file cannot be read ({error.strerror}); make certificates with fenchel certs, and give "
                    "their folder with --certs",
                    source=path,
                ) from None
            if f"{marker}-----".encode() not in found[name]:
                raise CredentialError(
                    f"not a {marker.lower()} in PEM format, or cut off; use the file that fenchel certs made",
                    source=path,
                )
        return cls(found[AUTHORITY], found[CERTIFICATE], found[KEY], folder)

    @property
    def key_is_open(self) -> bool:
        """True if other users of this machine have access to the key; see :func:`open_to_others`."""
        return self.folder is not None and open_to_others((self.folder / KEY).stat(), os.geteuid())

    def renewed(self) -> Credentials:
        """Return the folder's current credentials if they have changed and are consistent, else these.

        Files are replaced one after the other, so they may be inconsistent for a moment.
        """
        if self.folder is None:
            return self
        try:
            found = Credentials.load(self.folder)
        except CredentialError:
            return self
        if found == self or not _fit(self.folder) or Credentials.load(self.folder) != found:
            return self
        log.info("%s: the certificate was replaced; new connections use the new one", self.folder)
        return found

    def for_server(self) -> grpc.ServerCredentials:
        """Return gRPC's credentials of a server, which requires a certificate of each client.

        Each connection uses the current files.
        """
        current = self

        def renewed() -> grpc.ServerCertificateConfiguration | None:
            """Return the configuration of the next connection, or ``None`` if it is unchanged."""
            nonlocal current
            before, current = current, current.renewed()
            return None if current is before else current._shown()

        return grpc.dynamic_ssl_server_credentials(
            self._shown(),
            renewed,  # type: ignore[arg-type]  # gRPC accepts None for an unchanged configuration
            require_client_authentication=True,
        )

    def _shown(self) -> grpc.ServerCertificateConfiguration:
        return grpc.ssl_server_certificate_configuration(
            [(self.key, self.certificate)], root_certificates=self.authority
        )

    def for_channel(self) -> grpc.ChannelCredentials:
        """Return gRPC's credentials of a client."""
        return grpc.ssl_channel_credentials(self.authority, self.key, self.certificate)


def open_to_others(key: os.stat_result, user: int) -> bool:
    """Return whether the mode of a key file gives permissions to its group or to other users.

    If root owns the key and ``user`` is not root, the group may read it, because Kubernetes provides keys in this way.
    """
    given_by_group = key.st_uid == 0 and user != 0
    return bool(key.st_mode & (0o037 if given_by_group else 0o077))


def _fit(folder: Path) -> bool:
    """Return whether a folder has a matching pair of certificate and key, and a valid authority."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(folder / CERTIFICATE, folder / KEY, password="")
        context.load_verify_locations(folder / AUTHORITY)
    except OSError:  # includes ssl.SSLError
        return False
    return True
