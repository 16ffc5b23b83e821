"""Certificate authority of a federation: the certificate that all parties trust, and the key that signs all others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from fenchel.common.errors import CredentialError, SettingsError
from fenchel.common.tls.credentials import AUTHORITY
from fenchel.common.tls.revocation import REVOKED
from fenchel.deploy.certificates.files import WRITABLE, explained, read, write
from fenchel.deploy.certificates.issued import ISSUED, note
from fenchel.deploy.certificates.pem import certificate_pem, certificates, key_pem, private_key, public_key
from fenchel.deploy.certificates.validity import CLOCK_SKEW, check_dates, lifetime, now

AUTHORITY_KEY = "authority-key.pem"
AUTHORITY_DAYS = 3650

_USAGES = (
    "digital_signature",
    "content_commitment",
    "key_encipherment",
    "data_encipherment",
    "key_agreement",
    "key_cert_sign",
    "crl_sign",
    "encipher_only",
    "decipher_only",
)


def make_authority(folder: Path, name: str, *, days: int = AUTHORITY_DAYS, force: bool = False) -> None:
    """Create a certificate authority.

    Parameters
    ----------
    folder
        Folder for ``authority.pem`` and ``authority-key.pem``.
    name
        Name of the authority.
    days
        Validity in days.
    force
        Whether to replace an existing authority, whose certificates are then no longer accepted.

    Raises
    ------
    SettingsError
        If the name or validity is invalid, or there is an authority already and ``force`` is false.
    CredentialError
        If the folder cannot be written.
    """
    if not 1 <= len(name) <= 64 or not name.isprintable():
        raise SettingsError(f"{name!r} cannot be the name of an authority; use 1 to 64 printable characters")
    key = ec.generate_private_key(ec.SECP256R1())
    start = now() - CLOCK_SKEW
    certificate = (
        unsigned(subject(name), subject(name), key.public_key(), start, start + lifetime(days))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage("key_cert_sign", "crl_sign"), critical=True)
        .sign(key, hashes.SHA256())
    )
    write(folder, {AUTHORITY: certificate_pem(certificate), AUTHORITY_KEY: key_pem(key)}, force)
    with explained(folder, "cannot be written", WRITABLE):
        for old in (ISSUED, REVOKED):  # files of the replaced authority
            (folder / old).unlink(missing_ok=True)


@dataclass(frozen=True)
class Authority:
    """Certificate authority with its private key.

    Attributes
    ----------
    certificate, key
        Certificate and private key.
    folder
        Folder of the files.
    """

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey
    folder: Path

    @classmethod
    def load(cls, folder: Path) -> Authority:
        """Read the authority in a folder.

        Raises
        ------
        CredentialError
            If a file cannot be used, the key is not that of the certificate, or the certificate is not valid now.
        """
        certificate = certificates(read(folder / AUTHORITY), folder / AUTHORITY)[0]
        key = private_key(read(folder / AUTHORITY_KEY), folder / AUTHORITY_KEY)
        if not isinstance(key, ec.EllipticCurvePrivateKey) or public_key(key) != public_key(certificate):
            raise CredentialError(
                f"{AUTHORITY_KEY} is not the key of {AUTHORITY}; restore the two files that were made together",
                source=folder,
            )
        check_dates(certificate, f"{folder / AUTHORITY}: the authority")
        return cls(certificate, key, folder)

    def sign(
        self, name: x509.Name, key: ec.EllipticCurvePublicKey, extensions: Sequence[x509.ExtensionType], days: int
    ) -> x509.Certificate:
        """Sign a certificate for a public key, and add it to the list of issued certificates.

        Parameters
        ----------
        name
            Subject of the certificate.
        key
            Public key of the subject.
        extensions
            Extensions of the certificate.
        days
            Validity in days, which ends at the latest with that of the authority.
        """
        issuer = self.certificate
        start = max(now() - CLOCK_SKEW, issuer.not_valid_before_utc)
        end = min(start + lifetime(days), issuer.not_valid_after_utc)
        identifier = issuer.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
        builder = (
            unsigned(name, issuer.subject, key, start, end)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_key_usage("digital_signature"), critical=True)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier), critical=False)
        )
        for extension in extensions:
            builder = builder.add_extension(extension, critical=False)
        certificate = builder.sign(self.key, hashes.SHA256())
        note(self.folder, certificate)  # only recorded certificates can be revoked by name
        return certificate


def subject(name: str) -> x509.Name:
    """Return the X.509 name with a common name."""
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def unsigned(
    owner: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, start: datetime, end: datetime
) -> x509.CertificateBuilder:
    """Return the builder of an unsigned certificate with the parts that all certificates have."""
    return (
        x509.CertificateBuilder()
        .subject_name(owner)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(start)
        .not_valid_after(end)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _key_usage(*usages: str) -> x509.KeyUsage:
    return x509.KeyUsage(**{usage: usage in usages for usage in _USAGES})
