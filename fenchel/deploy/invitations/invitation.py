"""Invitation of a client, and its token."""

from __future__ import annotations

import base64
import binascii
import re
from dataclasses import dataclass, field
from typing import Self

from google.protobuf.message import DecodeError

from fenchel.common.errors import SettingsError
from fenchel.deploy.address import Address
from fenchel.deploy.certificates.making import check_client_name
from fenchel.proto import fenchel_pb2 as pb

SECRET_BYTES = 16
FINGERPRINT_BYTES = 32

HOST_NAME = "fenchel-signing"
"""Name in the certificate of the authority's service, which clients verify by its fingerprint."""

_PREFIX = "fenchel_"
_TOKEN = re.compile(_PREFIX + r"[A-Za-z0-9_-]{1,1000}={0,2}")


@dataclass(frozen=True)
class Invitation:
    """Permission to get one certificate for one client id from an authority.

    Attributes
    ----------
    name
        Client id.
    address
        Address of the authority's signing service.
    fingerprint
        SHA-256 of the certificate of that service.
    """

    name: str
    address: Address
    fingerprint: bytes
    secret: bytes = field(repr=False)

    @property
    def token(self) -> str:
        """Invitation as a text without spaces."""
        message = pb.Invitation(
            name=self.name, address=str(self.address), fingerprint=self.fingerprint, secret=self.secret
        )
        return _PREFIX + base64.urlsafe_b64encode(message.SerializeToString()).decode().rstrip("=")

    @classmethod
    def parse(cls, token: str) -> Self:
        """Parse a token; raise a ``SettingsError`` if it is invalid or incomplete."""
        wrong = SettingsError("not a complete token of fenchel certs invite; copy it again", key="--token")
        if not _TOKEN.fullmatch(token):
            raise wrong
        encoded = token.removeprefix(_PREFIX).rstrip("=")
        try:
            message = pb.Invitation.FromString(base64.urlsafe_b64decode(encoded + "=" * (-len(encoded) % 4)))
            check_client_name(message.name)
            address = Address.parse(message.address, "--token")
        except (binascii.Error, DecodeError, SettingsError):
            raise wrong from None
        if len(message.fingerprint) != FINGERPRINT_BYTES or len(message.secret) != SECRET_BYTES:
            raise wrong
        return cls(message.name, address, message.fingerprint, message.secret)
