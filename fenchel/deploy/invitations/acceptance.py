"""Client's side of an invitation: creation of a key, and the request for its certificate."""

from __future__ import annotations

import asyncio
import hashlib
import socket
import ssl
from pathlib import Path

import grpc
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from fenchel.common.errors import CredentialError, UnreachableError
from fenchel.common.tls.credentials import AUTHORITY, CERTIFICATE, KEY, Credentials
from fenchel.common.untrusted_text import sanitize
from fenchel.deploy.address import Address
from fenchel.deploy.certificates.authority import subject
from fenchel.deploy.certificates.description import common_name
from fenchel.deploy.certificates.files import read, write
from fenchel.deploy.certificates.pairs import check_pair
from fenchel.deploy.certificates.pem import key_pem, private_key
from fenchel.deploy.invitations.invitation import HOST_NAME, Invitation
from fenchel.proto import fenchel_pb2 as pb
from fenchel.proto.fenchel_pb2_grpc import SigningStub

_PATIENCE = 15.0  # deadline of a call to the signing service, in seconds
_REFUSALS = (grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.INTERNAL)


async def accept(invitation: Invitation, folder: Path) -> ec.EllipticCurvePublicKey:
    """Create a key in a folder, and write the certificate signed by the inviting authority and that of the authority.

    A key without a certificate, from an earlier call that was interrupted, is used again.

    Returns
    -------
    ec.EllipticCurvePublicKey
        Public key of the client.

    Raises
    ------
    UnreachableError
        If nothing answers at the invitation's address.
    CredentialError
        If another service answers, the invitation is no longer valid, or the folder cannot be written.
    """
    key = _key_in(folder)
    request = x509.CertificateSigningRequestBuilder().subject_name(subject(invitation.name)).sign(key, hashes.SHA256())
    reply = await _signed(invitation, request.public_bytes(serialization.Encoding.DER))
    made = Credentials(reply.authority, reply.certificate, key_pem(key))
    check_pair(made)
    if common_name(made) != invitation.name:
        raise CredentialError(
            f"the authority sent a certificate for {common_name(made)!r:.100}, expected {invitation.name!r}; ask for a "
            "new token"
        )
    # Write the certificate last: without a certificate, the next start of the client accepts the invitation again.
    write(folder, {AUTHORITY: reply.authority, CERTIFICATE: reply.certificate}, force=True)
    return key.public_key()


def _key_in(folder: Path) -> ec.EllipticCurvePrivateKey:
    """Return the key in a folder, which is created if there is none."""
    path = folder / KEY
    if not path.exists():
        write(folder, {KEY: key_pem(ec.generate_private_key(ec.SECP256R1()))}, force=False)
    key = private_key(read(path), path)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise CredentialError(
            "not an elliptic-curve key, which the certificate needs; give an empty folder with --certs", source=path
        )
    return key


async def _signed(invitation: Invitation, request: bytes) -> pb.SignReply:
    """Return the authority's reply, over a connection to the service with the invitation's fingerprint."""
    shown = await asyncio.to_thread(_certificate_at, invitation.address)
    if hashlib.sha256(shown).digest() != invitation.fingerprint:
        raise CredentialError(
            f"the certificate of {invitation.address} does not match the token: the invitation has ended, or a proxy "
            "intercepts TLS. Nothing was sent; ask for a new token"
        )
    channel = grpc.aio.secure_channel(
        str(invitation.address),
        grpc.ssl_channel_credentials(ssl.DER_cert_to_PEM_cert(shown).encode()),
        options=(("grpc.ssl_target_name_override", HOST_NAME), ("grpc.enable_http_proxy", 0)),
    )
    async with channel:
        try:
            answer: pb.SignReply = await SigningStub(channel).Sign(
                pb.SignRequest(secret=invitation.secret, request=request), timeout=_PATIENCE
            )
            return answer
        except grpc.aio.AioRpcError as error:
            details = sanitize(error.details() or "", 300)
            if error.code() in _REFUSALS:
                raise CredentialError(f"{invitation.address}: {details}") from None
            raise _unreachable(invitation.address, details) from None


def _certificate_at(address: Address) -> bytes:
    """Return the certificate of the service at an address, in DER, without trusting it."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    try:
        with (
            socket.create_connection((address.host, address.port), timeout=_PATIENCE) as connection,
            context.wrap_socket(connection) as secure,
        ):
            return secure.getpeercert(binary_form=True) or b""
    except OSError as error:
        raise _unreachable(address, error.strerror or str(error)) from None


def _unreachable(address: Address, reason: str) -> UnreachableError:
    return UnreachableError(
        f"the authority is unreachable at {address} ({reason}). Check that fenchel certs invite still runs there, "
        "and that firewalls admit this machine. If another machine has used the token, have that "
        "certificate revoked"
    )
