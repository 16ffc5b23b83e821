"""Certificates and keys in PEM format."""

from __future__ import annotations

from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes

from fenchel.common.errors import CredentialError


def certificates(pem: bytes, where: Path | str) -> list[x509.Certificate]:
    """Return the certificates in a PEM file's bytes, at least one. Raise ``CredentialError`` if one is invalid."""
    try:
        found = x509.load_pem_x509_certificates(pem)
        for certificate in found:  # access every lazily parsed part, so that a malformed certificate fails here
            void = certificate.subject, certificate.extensions, public_key(certificate)
            del void
        return found
    except (
        ValueError,
        UnsupportedAlgorithm,
        x509.InvalidVersion,
        x509.DuplicateExtension,
        x509.UnsupportedGeneralNameType,
    ):
        raise CredentialError(
            "not a certificate in PEM format, or a damaged one; copy it again", source=where
        ) from None


def private_key(pem: bytes, where: Path | str) -> PrivateKeyTypes:
    """Return the private key in a PEM file's bytes. Raise ``CredentialError`` if it is invalid or encrypted."""
    try:
        return serialization.load_pem_private_key(pem, password=None)
    except TypeError:
        raise CredentialError(
            "the key is encrypted with a passphrase, which gRPC cannot use; decrypt it with openssl pkey", source=where
        ) from None
    except (ValueError, UnsupportedAlgorithm):
        raise CredentialError(
            "not a private key in PEM format, or of an unknown type; use one that fenchel certs made", source=where
        ) from None


def public_key(holder: x509.Certificate | PrivateKeyTypes | ec.EllipticCurvePublicKey) -> bytes:
    """Return the public key of a certificate or of a key as bytes, for comparison."""
    key = holder if isinstance(holder, ec.EllipticCurvePublicKey) else holder.public_key()
    return key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)


def certificate_pem(certificate: x509.Certificate) -> bytes:
    """Encode a certificate in PEM format."""
    return certificate.public_bytes(serialization.Encoding.PEM)


def key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    """Encode a private key in PEM format, without a passphrase, as gRPC requires."""
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
