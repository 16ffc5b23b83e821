"""Who a client is to other clients: its certificate, and what it signs with the key of it.

Clients never speak to each other directly. What one has for another goes through the server, which could
change it or make it up; so it is signed, and the signature is checked against the authority that the
receiving client trusts.
"""

from __future__ import annotations

from dataclasses import dataclass

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from cryptography.x509.verification import PolicyBuilder, Store, VerificationError

from fenchel.common.errors import CredentialError
from fenchel.common.tls.credentials import Credentials
from fenchel.common.tls.revocation import refusal_of
from fenchel.common.tls.roles import no_participant
from fenchel.keys.sealing import BEGIN_ANEW

_PSS = padding.PSS(mgf=padding.MGF1(SHA256()), salt_length=padding.PSS.DIGEST_LENGTH)


def statement(purpose: str, *parts: str | bytes) -> bytes:
    """Return what is signed, in a form that has one reading: each part follows its length."""
    encoded = [part.encode() if isinstance(part, str) else part for part in ("fenchel", purpose, *parts)]
    return b"".join(len(part).to_bytes(8, "big") + part for part in encoded)


@dataclass(frozen=True)
class Identity:
    """A client among others.

    Attributes
    ----------
    name
        Its id, the common name of its certificate.
    credentials
        Its certificate, the key of it, and the authority that it trusts.
    """

    name: str
    credentials: Credentials

    @property
    def certificate(self) -> str:
        """The certificate, with those between it and the authority, in PEM form."""
        return self.credentials.certificate.decode(errors="replace")  # there may be words around the PEM blocks

    def sign(self, signed: bytes) -> bytes:
        """Sign a statement: ECDSA, or RSA-PSS where the key is one of RSA, with SHA-256."""
        key = serialization.load_pem_private_key(self.credentials.key, password=None)
        if isinstance(key, ec.EllipticCurvePrivateKey):
            return key.sign(signed, ec.ECDSA(SHA256()))
        if isinstance(key, rsa.RSAPrivateKey):
            return key.sign(signed, _PSS, SHA256())
        raise CredentialError(
            f"the key of client {self.name}'s certificate is a {type(key).__name__}, which cannot sign here; "
            "use a certificate with an elliptic-curve or RSA key (fenchel certs makes one)"
        )

    def check(self, name: str, certificate: str, signed: bytes, signature: bytes) -> None:
        """Check that a statement is from another client."""
        leaf = self._trusted(name, certificate)
        key = leaf.public_key()
        try:
            if isinstance(key, ec.EllipticCurvePublicKey):
                key.verify(signature, signed, ec.ECDSA(SHA256()))
            elif isinstance(key, rsa.RSAPublicKey):
                key.verify(signature, signed, _PSS, SHA256())
            else:
                raise CredentialError(
                    f"the certificate of {name} has a {type(key).__name__}, which is not known here; make {name} "
                    "another, with an elliptic-curve or RSA key, as fenchel certs does"
                )
        except InvalidSignature:
            raise CredentialError(
                f"what came in the name of {name} is not signed by {name} for this run: somebody changed it or made "
                f"it up on the way{BEGIN_ANEW}"
            ) from None

    def _trusted(self, name: str, certificate: str) -> x509.Certificate:
        """Return the certificate if it is that client's, from the authority that this client trusts."""
        try:
            leaf, *between = x509.load_pem_x509_certificates(certificate.encode())
            store = Store(x509.load_pem_x509_certificates(self.credentials.authority))
            PolicyBuilder().store(store).build_client_verifier().verify(leaf, between)
        except (ValueError, x509.InvalidVersion):
            raise CredentialError(
                f"what came as the certificate of {name} is not one in PEM form{BEGIN_ANEW}"
            ) from None
        except VerificationError as error:
            raise CredentialError(
                f"the certificate that came in the name of {name} is not a client's from the authority that "
                f"{self.name} trusts: {error}"
            ) from None
        if not _is_for_clients(leaf):
            raise CredentialError(
                f"the certificate that came in the name of {name} is not for clients alone (extended key usage), "
                "so the server could have one like it; make clients' certificates with fenchel certs"
            )
        alone = leaf.public_bytes(serialization.Encoding.PEM)
        if problem := no_participant(alone) or refusal_of(alone, self.credentials.folder):
            raise CredentialError(f"what came in the name of {name} is not accepted: {problem}")
        names = [each.value for each in leaf.subject.get_attributes_for_oid(NameOID.COMMON_NAME)]
        if names != [name]:
            raise CredentialError(
                f"the certificate that came in the name of {name} is that of {', '.join(map(str, names)) or 'nobody'}"
            )
        return leaf


def _is_for_clients(certificate: x509.Certificate) -> bool:
    try:
        usage = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    except x509.ExtensionNotFound:
        return False
    return ExtendedKeyUsageOID.CLIENT_AUTH in usage and ExtendedKeyUsageOID.SERVER_AUTH not in usage
