"""Revocation list, signed by the authority."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization

from fenchel.common.errors import SettingsError
from fenchel.common.storage.store import write_text
from fenchel.common.tls.credentials import AUTHORITY
from fenchel.common.tls.revocation import REVOKED, lists_signed_by, read_revoked
from fenchel.deploy.certificates.authority import Authority
from fenchel.deploy.certificates.files import locked, read, write
from fenchel.deploy.certificates.issued import ISSUED, issued
from fenchel.deploy.certificates.pem import certificates, public_key
from fenchel.deploy.certificates.validity import now


def revoke(authority_folder: Path, *, names: Sequence[str] = (), serials: Sequence[int] = ()) -> list[int]:
    """Add certificates to the authority's revocation list, ``revoked.pem`` in its folder.

    Parameters
    ----------
    authority_folder
        Folder of the authority.
    names
        Common names. All certificates issued so far for these names are revoked.
    serials
        Serial numbers of further certificates.

    Returns
    -------
    list[int]
        Serial numbers of the newly revoked certificates.

    Raises
    ------
    SettingsError
        If no certificate was issued for a name.
    CredentialError
        If a file of the authority cannot be used.
    """
    authority = Authority.load(authority_folder)
    with locked(authority_folder):  # another command may be extending the same list
        return _extend(authority, names, serials)


def _extend(authority: Authority, names: Sequence[str], serials: Sequence[int]) -> list[int]:
    authority_folder, issuer = authority.folder, authority.certificate.subject
    before = {serial: since for (_, serial), since in read_revoked(authority_folder).items()}
    wanted = list(serials)
    for name in names:
        found = [each.serial for each in issued(authority_folder) if each.name == name]
        if not found:
            raise SettingsError(
                f"no issued certificate has the name {name!r}; check the name, or give the certificate's serial "
                "number (--serial), which fenchel certs show prints",
                source=authority_folder / ISSUED,
            )
        wanted += found
    new = [serial for serial in dict.fromkeys(wanted) if serial not in before]
    time = now()
    builder = (
        x509.CertificateRevocationListBuilder()
        .issuer_name(issuer)
        .last_update(time)
        .next_update(authority.certificate.not_valid_after_utc)
        .add_extension(x509.CRLNumber(len(before) + len(new)), critical=False)
    )
    for serial, since in (before | dict.fromkeys(new, time)).items():
        entry = x509.RevokedCertificateBuilder().serial_number(serial).revocation_date(since)
        builder = builder.add_revoked_certificate(entry.build())
    signed = builder.sign(authority.key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
    write(authority_folder, {REVOKED: signed}, force=True)
    return new


def check_trust(authority_folder: Path, folder: Path) -> None:
    """Raise a ``SettingsError`` unless a folder of credentials trusts the authority, as it else rejects the list.

    Raises
    ------
    CredentialError
        If a file cannot be read.
    """
    _, others = _authorities(authority_folder, folder)
    if len(others) == len(_certificates(folder)):
        raise SettingsError(
            f"the folder does not trust the authority in {authority_folder}, and would reject its list; give a folder "
            "with a certificate of this authority",
            source=folder / AUTHORITY,
        )


def copy_list(authority_folder: Path, folder: Path) -> None:
    """Copy an authority's revocation list into a folder of credentials, and keep the lists of other authorities there.

    Raises
    ------
    CredentialError
        If a file cannot be read.
    StorageError
        If the list cannot be written.
    """
    own, others = _authorities(authority_folder, folder)
    lists = [*lists_signed_by(others, folder), *lists_signed_by([own], authority_folder)]
    write_text(folder / REVOKED, "".join(f"{each.decode()}\n" for each in lists), sync=True)


def _authorities(authority_folder: Path, folder: Path) -> tuple[x509.Certificate, list[x509.Certificate]]:
    """Return the authority's certificate, and those of the other authorities that a folder trusts."""
    own = _certificates(authority_folder)[0]
    return own, [each for each in _certificates(folder) if public_key(each) != public_key(own)]


def _certificates(folder: Path) -> list[x509.Certificate]:
    return certificates(read(folder / AUTHORITY), folder / AUTHORITY)
