"""Revocation check of certificates by a revocation list (X.509 CRL).

The authority signs the list, so it may be distributed over any channel. It is the file ``revoked.pem`` beside the
certificate of the server or client that checks others. A newer list takes effect without a restart.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TypeAlias

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.x509.oid import NameOID

from fenchel.common.errors import CredentialError, RevokedError
from fenchel.common.tls.credentials import AUTHORITY

log = logging.getLogger("fenchel.server")

REVOKED = "revoked.pem"
_BEGIN, _END = b"-----BEGIN X509 CRL-----", b"-----END X509 CRL-----"
_BLOCK = re.compile(_BEGIN + rb"[^-]++" + _END)
_UNREADABLE = (ValueError, UnsupportedAlgorithm, x509.InvalidVersion)

Revoked: TypeAlias = Mapping[tuple[bytes, int], datetime]
"""Times of revocation, by the issuer's name (DER) and the serial number of a certificate."""


def read_revoked(folder: Path) -> Revoked:
    """Read the revocation list in a folder of credentials. The result is empty if there is none.

    Parameters
    ----------
    folder
        Folder with ``authority.pem`` and, if certificates were revoked, ``revoked.pem``, which has one list or one for
        each authority.

    Raises
    ------
    CredentialError
        If a file is unreadable, or no authority of the folder has signed a list.
    """
    path = folder / REVOKED
    lists = _lists(path)
    if lists is None:
        return {}
    if not lists:
        raise CredentialError(
            "not a revocation list in PEM format; use the one that fenchel certs revoke wrote", source=path
        )
    try:
        authorities = x509.load_pem_x509_certificates((folder / AUTHORITY).read_bytes())
    except (OSError, ValueError) as error:
        raise CredentialError(
            f"the revocation list cannot be read ({error}); copy it again", source=folder / AUTHORITY
        ) from None
    found: dict[tuple[bytes, int], datetime] = {}
    for revoked in lists.values():
        try:
            issuer = revoked.issuer
            found |= {(issuer.public_bytes(), each.serial_number): each.revocation_date_utc for each in revoked}
        except _UNREADABLE:
            raise _damaged(path) from None
        if not any(_signed(revoked, authority) for authority in authorities):
            raise CredentialError(
                f"the revocation list of {issuer.rfc4514_string()!r} is not signed by an authority in {AUTHORITY} of "
                "the same folder; copy the list again from the folder to which fenchel certs revoke wrote it",
                source=path,
            )
    return found


def lists_signed_by(authorities: Sequence[x509.Certificate], folder: Path) -> list[bytes]:
    """Return those lists in a folder's ``revoked.pem`` that one of the authorities has signed, in PEM form.

    Raise ``CredentialError`` if the file cannot be read, or one of its lists is damaged.
    """
    lists = (_lists(folder / REVOKED) if authorities else None) or {}
    return [block for block, revoked in lists.items() if any(_signed(revoked, each) for each in authorities)]


def _lists(path: Path) -> dict[bytes, x509.CertificateRevocationList] | None:
    """Return the lists in a file by their PEM form, or ``None`` if there is no file.

    Raise ``CredentialError`` if the file cannot be read, or one of its lists is damaged or cut off.
    """
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise CredentialError(
            f"the revocation list cannot be read ({error.strerror}); check its permissions", source=path
        ) from None
    blocks = _BLOCK.findall(text)
    if blocks and max(text.count(_BEGIN), text.count(_END)) > len(blocks):
        raise _damaged(path)
    try:
        return {block: x509.load_pem_x509_crl(block) for block in blocks}
    except _UNREADABLE:
        raise _damaged(path) from None


def _damaged(path: Path) -> CredentialError:
    return CredentialError(
        "the revocation list is damaged; copy it again from the folder to which fenchel certs revoke wrote it",
        source=path,
    )


def _signed(revoked: x509.CertificateRevocationList, authority: x509.Certificate) -> bool:
    try:
        return revoked.issuer == authority.subject and revoked.is_signature_valid(authority.public_key())  # type: ignore[arg-type]
    except (TypeError, ValueError, UnsupportedAlgorithm):
        return False


def check_not_revoked(certificate: bytes, folder: Path | None) -> None:
    """Reject a certificate (PEM) that the current list in a folder of credentials has revoked.

    Raises
    ------
    RevokedError
        If the certificate was revoked, or cannot be read.
    CredentialError
        If the list is invalid, as for :func:`read_revoked`.
    """
    if folder is not None:
        Revocations(folder).check(certificate)


@dataclass
class Revocations:
    """Current revocation list of a running server.

    Attributes
    ----------
    folder
        Folder of credentials with the list, as for :func:`read_revoked`.
    """

    folder: Path
    _revoked: Revoked = field(default_factory=dict)
    _stamp: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        self._stamp = self._look()
        self._revoked = read_revoked(self.folder)

    def _look(self) -> tuple[int, ...]:
        try:
            found = (self.folder / REVOKED).stat()
        except OSError:
            return ()
        return found.st_mtime_ns, found.st_size, found.st_ino

    def refresh(self) -> bool:
        """Read the list again if the file has changed, and return whether its certificates have changed."""
        stamp = self._look()
        if stamp == self._stamp:
            return False
        self._stamp = stamp
        if not stamp:
            log.error(
                "the revocation list %s is missing; the certificates that it listed stay revoked until this server "
                "ends",
                self.folder / REVOKED,
            )
            return False
        try:
            revoked = read_revoked(self.folder)
        except CredentialError as error:
            log.error("%s. Certificates that were already revoked stay revoked", error)
            return False
        changed = revoked.keys() != self._revoked.keys()
        self._revoked = revoked
        return changed

    def check(self, certificate: bytes) -> None:
        """Raise ``RevokedError`` if a certificate (PEM) was revoked or cannot be read."""
        if not self._revoked:
            return
        try:
            leaf = x509.load_pem_x509_certificate(certificate)
            place = leaf.issuer.public_bytes(), leaf.serial_number
        except (ValueError, UnsupportedAlgorithm, x509.InvalidVersion):
            raise RevokedError("the certificate cannot be read, so it is unknown whether it was revoked") from None
        since = self._revoked.get(place)
        if since is None:
            return
        names = leaf.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
        who = str(names[0].value) if names else leaf.subject.rfc4514_string()
        raise RevokedError(
            f"the certificate of {who!r} with serial number {leaf.serial_number:x} was revoked on "
            f"{since:%Y-%m-%d %H:%M} UTC by the operators of the federation; ask them, and if it was replaced, use "
            "the new one",
            owner=who,
            serial=f"{leaf.serial_number:x}",
        )
