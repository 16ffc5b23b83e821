"""Identity of a client towards other clients: its certificate and its signatures.

Clients do not communicate directly. A message to another client passes through the server, which could change or forge
it. Such messages are therefore signed, and the receiver checks signature and certificate against the authority that it
trusts.
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
from fenchel.common.tls.revocation import Revocations
from fenchel.common.tls.roles import check_participant
from fenchel.keys.sealing import BEGIN_ANEW

_PSS = padding.PSS(mgf=padding.MGF1(SHA256()), salt_length=padding.PSS.DIGEST_LENGTH)


def statement(purpose: str, *parts: str | bytes) -> bytes:
    """Return the bytes of a statement to sign. Each part follows its length, so the encoding is unambiguous."""
    encoded = [part.encode() if isinstance(part, str) else part for part in ("fenchel", purpose, *parts)]
    return b"".join(len(part).to_bytes(8, "big") + part for part in encoded)


@dataclass(frozen=True)
class Identity:
    """Identity of a client towards others.

    Attributes
    ----------
    name
        Id of the client, which is the common name of its certificate.
    credentials
        Certificate and key of the client, and the authority that it trusts.
    """

    name: str
    credentials: Credentials

    @property
    def certificate(self) -> str:
        """Certificate with the intermediate certificates up to the authority, in PEM form."""
        # PEM blocks may have text around them, in any encoding
        return self.credentials.certificate.decode(errors="replace")

    def sign(self, signed: bytes) -> bytes:
        """Sign a statement with SHA-256, by ECDSA with an elliptic-curve key or by RSA-PSS with an RSA key.

        Raise ``CredentialError`` if the key is of another type.
        """
        key = serialization.load_pem_private_key(self.credentials.key, password=None)
        if isinstance(key, ec.EllipticCurvePrivateKey):
            return key.sign(signed, ec.ECDSA(SHA256()))
        if isinstance(key, rsa.RSAPrivateKey):
            return key.sign(signed, _PSS, SHA256())
        raise _unsupported(self.name, key)

    def check(self, name: str, certificate: str, signed: bytes, signature: bytes) -> None:
        """Raise ``CredentialError`` unless client ``name`` signed a statement with the key of a trusted certificate."""
        leaf = self._trusted(name, certificate)
        key = leaf.public_key()
        try:
            if isinstance(key, ec.EllipticCurvePublicKey):
                key.verify(signature, signed, ec.ECDSA(SHA256()))
            elif isinstance(key, rsa.RSAPublicKey):
                key.verify(signature, signed, _PSS, SHA256())
            else:
                raise _unsupported(name, key)
        except InvalidSignature:
            raise CredentialError(
                f"a message in the name of {name} has no valid signature of {name} for this run, so it was changed "
                f"or forged on the way{BEGIN_ANEW}"
            ) from None

    def _trusted(self, name: str, certificate: str) -> x509.Certificate:
        """Return the certificate of client ``name``; raise ``CredentialError`` if this client does not trust it."""
        try:
            leaf, *between = x509.load_pem_x509_certificates(certificate.encode())
            store = Store(x509.load_pem_x509_certificates(self.credentials.authority))
            PolicyBuilder().store(store).build_client_verifier().verify(leaf, between)
        except (ValueError, x509.InvalidVersion):
            raise CredentialError(f"the certificate in the name of {name} is not in PEM format{BEGIN_ANEW}") from None
        except VerificationError as error:
            raise CredentialError(
                f"the certificate in the name of {name} is not a client's certificate from the authority that "
                f"{self.name} trusts: {error}"
            ) from None
        if not _is_for_clients(leaf):
            raise CredentialError(
                f"the certificate in the name of {name} is not restricted to clients (extended key usage), so the "
                "server could have one like it; make clients' certificates with fenchel certs"
            )
        alone = leaf.public_bytes(serialization.Encoding.PEM)
        folder = self.credentials.folder
        revocations = None if folder is None else Revocations(folder)
        try:
            check_participant(alone)
            if revocations is not None:
                revocations.check(alone)
        except CredentialError as error:
            raise CredentialError(f"the certificate in the name of {name} is not accepted: {error}") from None
        names = [each.value for each in leaf.subject.get_attributes_for_oid(NameOID.COMMON_NAME)]
        if names != [name]:
            raise CredentialError(
                f"the certificate in the name of {name} is for another name: {', '.join(map(str, names)) or 'none'}"
            )
        return leaf


def _unsupported(client: str, key: object) -> CredentialError:
    return CredentialError(
        f"the key of client {client}'s certificate is of type {type(key).__name__}, which is not supported; make "
        f"{client} a certificate with an elliptic-curve or RSA key (fenchel certs makes one)"
    )


def _is_for_clients(certificate: x509.Certificate) -> bool:
    try:
        usage = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    except x509.ExtensionNotFound:
        return False
    return ExtendedKeyUsageOID.CLIENT_AUTH in usage and ExtendedKeyUsageOID.SERVER_AUTH not in usage
