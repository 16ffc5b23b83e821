"""The invitation of a client, which travels to it as a token."""

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
"""In the certificate that the authority's service shows, which clients know by its fingerprint."""

_PREFIX = "fenchel_"
_TOKEN = re.compile(_PREFIX + r"[A-Za-z0-9_-]{1,1000}={0,2}")


@dataclass(frozen=True)
class Invitation:
    """Leave to get the certificate of one name, once, from one authority.

    Attributes
    ----------
    name
        The client's id.
    address
        Where the authority signs.
    fingerprint
        SHA-256 of the certificate that is shown there.
    """

    name: str
    address: Address
    fingerprint: bytes
    secret: bytes = field(repr=False)

    @property
    def token(self) -> str:
        """The invitation as a word to copy."""
        message = pb.Invitation(
            name=self.name, address=str(self.address), fingerprint=self.fingerprint, secret=self.secret
        )
        return _PREFIX + base64.urlsafe_b64encode(message.SerializeToString()).decode().rstrip("=")

    @classmethod
    def parse(cls, token: str) -> Self:
        """Read a token; SettingsError if it is none, or not a whole one."""
        wrong = SettingsError("not a token of fenchel certs invite, or not a whole one; copy it again", key="--token")
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
