"""Authority's side of invitations: a service that signs the key of each invited client once."""

from __future__ import annotations

import asyncio
import hmac
import secrets
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, TypeAlias
from urllib.parse import unquote

import grpc
from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec

from fenchel.common.errors import CredentialError, UnreachableError
from fenchel.deploy.address import Address
from fenchel.deploy.certificates.authority import Authority, subject, unsigned
from fenchel.deploy.certificates.description import key_fingerprint
from fenchel.deploy.certificates.making import LEAF_DAYS, check_client_names, sign_client
from fenchel.deploy.certificates.pem import certificate_pem, key_pem, public_key
from fenchel.deploy.certificates.validity import CLOCK_SKEW, lifetime, now
from fenchel.deploy.invitations.invitation import HOST_NAME, SECRET_BYTES, Invitation
from fenchel.proto import fenchel_pb2 as pb
from fenchel.proto.fenchel_pb2_grpc import SigningServicer, add_SigningServicer_to_server

_MESSAGE_BYTES = 1 << 14
_CALL_SECONDS = 20
_SHOWN_REFUSALS = 20
_LISTENED = timedelta(days=365)
_Context: TypeAlias = grpc.aio.ServicerContext[Any, Any]


@dataclass
class _Guest:
    """Invited client and its certificate.

    Attributes
    ----------
    is_contested
        Whether the token was also used with another key.
    """

    invitation: Invitation
    key: bytes = b""
    certificate: bytes = b""
    is_contested: bool = False


@dataclass
class SigningService(SigningServicer):
    """Service that signs the keys of invited clients.

    Attributes
    ----------
    on_event
        Callback for progress messages to the operator.
    days
        Validity of certificates in days.
    """

    authority: Authority
    on_event: Callable[[str], None]
    days: int = LEAF_DAYS
    _guests: list[_Guest] = field(default_factory=list)
    _strangers: int = 0
    _all_came: asyncio.Event = field(default_factory=asyncio.Event)

    def invite(self, name: str, address: Address, fingerprint: bytes) -> Invitation:
        """Return a new invitation."""
        invitation = Invitation(name, address, fingerprint, secrets.token_bytes(SECRET_BYTES))
        self._guests.append(_Guest(invitation))
        return invitation

    @property
    def missing(self) -> list[str]:
        """Ids of the clients without a certificate."""
        return [guest.invitation.name for guest in self._guests if not guest.certificate]

    async def wait(self, seconds: float) -> None:
        """Wait until all clients have a certificate; raise a ``CredentialError`` after ``seconds``."""
        try:
            await asyncio.wait_for(self._all_came.wait(), seconds)
        except TimeoutError:
            missing = ", ".join(self.missing)
            raise CredentialError(
                f"no request arrived in time from {missing}, and their tokens are void now; invite them again"
            ) from None

    async def Sign(self, request: pb.SignRequest, context: _Context) -> pb.SignReply:
        """Sign the key in a request for the client whose secret the request has."""
        caller = unquote(context.peer().partition(":")[2])
        guest = self._guest(request.secret)
        if guest is None:
            self._report_stranger(caller)
            await context.abort(
                grpc.StatusCode.PERMISSION_DENIED,
                "the token is of no current invitation; ask the authority for a new token",
            )
        name = guest.invitation.name
        try:
            key = requested_key(request.request)
        except CredentialError as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        if guest.certificate and guest.key != public_key(key):
            if not guest.is_contested:
                guest.is_contested = True
                self.on_event(
                    f"refused: the token of {name} came again, from {caller}, with another key; ask {name} which key "
                    "is its own, and revoke the certificate if it is another"
                )
            await context.abort(
                grpc.StatusCode.PERMISSION_DENIED,
                f"the token of {name!r} has been used with another key; if that was not you, tell the authority to "
                "revoke that certificate, and to invite you again",
            )
        if not guest.certificate:
            try:
                certificate = sign_client(self.authority, name, key, days=self.days)
            except CredentialError as error:
                self.on_event(f"{name}: not signed: {error}")
                await context.abort(
                    grpc.StatusCode.INTERNAL,
                    "the authority could not sign the certificate; ask its operator for the reason, and use the same "
                    "token again",
                )
            guest.key, guest.certificate = public_key(key), certificate_pem(certificate)
            self.on_event(f"{name}: has its certificate, for the key {key_fingerprint(key)}, which came from {caller}")
            if not self.missing:
                self._all_came.set()
        return pb.SignReply(authority=certificate_pem(self.authority.certificate), certificate=guest.certificate)

    def _report_stranger(self, caller: str) -> None:
        """Report the first callers without a token, and ignore others, so that they do not fill the screen."""
        self._strangers += 1
        if self._strangers <= _SHOWN_REFUSALS:
            last = "; more are not shown" if self._strangers == _SHOWN_REFUSALS else ""
            self.on_event(f"refused: a caller at {caller}, without a token of a current invitation{last}")

    def _guest(self, secret: bytes) -> _Guest | None:
        """Return the guest with this secret, in a time that is independent of secrets."""
        found = [each for each in self._guests if hmac.compare_digest(each.invitation.secret, secret)]
        return found[0] if found else None


def requested_key(request: bytes) -> ec.EllipticCurvePublicKey:
    """Return the public key in a signing request; raise a ``CredentialError`` unless the sender has the private key."""
    try:
        found = x509.load_der_x509_csr(request)
        key, is_valid = found.public_key(), found.is_signature_valid
    except (ValueError, UnsupportedAlgorithm, InvalidSignature, x509.InvalidVersion):
        raise CredentialError("the certificate signing request cannot be read") from None
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
        raise CredentialError("the key of the certificate signing request is not on the curve P-256")
    if not is_valid:
        raise CredentialError("the certificate signing request is not signed by its own key")
    return key


@asynccontextmanager
async def inviting(
    authority: Authority,
    names: Sequence[str],
    at: Address,
    *,
    listen: Address,
    on_event: Callable[[str], None],
    days: int = LEAF_DAYS,
) -> AsyncIterator[tuple[SigningService, list[Invitation]]]:
    """Serve signing requests of the named clients for the duration of a ``with`` block.

    Parameters
    ----------
    authority
        Authority that signs.
    names
        Client ids.
    at
        Address that clients dial; port 0 for the port of ``listen``.
    listen
        Address on this machine; port 0 takes a free one.
    on_event
        Callback for progress messages to the operator.
    days
        Validity of certificates in days.

    Raises
    ------
    SettingsError
        If a name is not a valid client id, or is given twice, or the validity is invalid.
    UnreachableError
        If the address cannot be bound.
    """
    lifetime(days)  # refuse an invalid validity before any token is printed
    check_client_names(names)
    key = ec.generate_private_key(ec.SECP256R1())
    shown = _shown(key)
    server = grpc.aio.server(
        options=(
            ("grpc.max_receive_message_length", _MESSAGE_BYTES),
            ("grpc.max_allowed_incoming_connections", 64),
            ("grpc.max_concurrent_streams", 1),
            ("grpc.server_handshake_timeout_ms", 10_000),
            ("grpc.max_connection_idle_ms", 10_000),
            # This limit also terminates calls that stream messages without end.
            ("grpc.max_connection_age_ms", 1000 * _CALL_SECONDS),
            ("grpc.max_connection_age_grace_ms", 1000),
            ("grpc.so_reuseport", 0),
        ),
        maximum_concurrent_rpcs=64,
    )
    service = SigningService(authority, on_event, days)
    add_SigningServicer_to_server(service, server)
    try:
        port = server.add_secure_port(
            str(listen), grpc.ssl_server_credentials([(key_pem(key), certificate_pem(shown))])
        )
    except RuntimeError:
        raise UnreachableError(
            f"cannot listen on {listen}, because another program uses the port, or this machine has no such "
            "address; choose another with --listen"
        ) from None
    await server.start()
    try:
        dialled = Address(at.host, at.port or port)
        yield service, [service.invite(name, dialled, shown.fingerprint(hashes.SHA256())) for name in names]
    finally:
        await server.stop(grace=2.0)


def _shown(key: ec.EllipticCurvePrivateKey) -> x509.Certificate:
    """Return the self-signed certificate of the service, whose fingerprint is in the tokens."""
    name = subject(HOST_NAME)
    return (
        unsigned(name, name, key.public_key(), now() - CLOCK_SKEW, now() + _LISTENED)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(HOST_NAME)]), critical=False)
        .sign(key, hashes.SHA256())
    )
