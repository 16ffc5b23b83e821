"""List of the certificates that an authority has issued, which revocation uses."""

from __future__ import annotations

import fcntl
import json
import os
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509

from fenchel.common.errors import CredentialError
from fenchel.common.storage.store import owner_only, settle
from fenchel.deploy.certificates.description import subject_name
from fenchel.deploy.certificates.files import WRITABLE, explained, read

ISSUED = "issued.jsonl"


@dataclass(frozen=True)
class Issued:
    """Issued certificate: serial number, subject, and expiry (ISO 8601)."""

    serial: int
    name: str
    expires: str


def issued(authority_folder: Path) -> list[Issued]:
    """Return the certificates that an authority has issued, in order.

    Raises
    ------
    CredentialError
        If the list cannot be read, or is damaged.
    """
    path = authority_folder / ISSUED
    if not path.exists():
        return []
    try:
        lines = [json.loads(line) for line in _whole_lines(read(path)).splitlines()]
        return [Issued(int(line["serial"], 16), line["name"], line["expires"]) for line in lines]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise CredentialError(
            "the list of issued certificates is damaged, because a line is not a JSON object; restore a copy. "
            "Until then revoke certificates by serial number (--serial), which fenchel certs show prints",
            source=path,
        ) from None


def note(authority_folder: Path, certificate: x509.Certificate) -> None:
    """Add a certificate to the list of an authority."""
    line = {
        "serial": f"{certificate.serial_number:x}",
        "name": subject_name(certificate),
        "expires": certificate.not_valid_after_utc.isoformat(),
    }
    path = authority_folder / ISSUED
    with explained(path, "cannot be written", WRITABLE):
        is_new = not path.exists()
        with open(path, "a+b", opener=owner_only) as file:
            fcntl.flock(file, fcntl.LOCK_EX)  # another command may be adding a certificate, which would be cut off
            file.seek(0)
            file.truncate(len(_whole_lines(file.read())))
            file.write(json.dumps(line).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
        if is_new:
            settle(authority_folder)


def _whole_lines(text: bytes) -> bytes:
    """Remove an incomplete last line, which a crash left before the certificate was written."""
    return text[: text.rfind(b"\n") + 1]
