"""Secrets that all clients of a federation share and the server must not have.

The secrets are the Paillier key and the alignment key for pseudonyms of samples. They are in one file, which operators
copy to every client after ``fenchel keys`` has made it, or which the clients write in the secret exchange of a run
(:mod:`fenchel.keys.secret_exchange`). With this file, everything that clients encrypt can be decrypted.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
import stat
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from threading import Lock

from fenchel.common.crypto.public_key import (
    DEFAULT_BITS,
    FORMAT_VERSION,
    SECRETS_KIND,
    Backend,
    Implementation,
    parse_fields,
)
from fenchel.common.errors import CredentialError
from fenchel.keys.paillier.cipher import Paillier
from fenchel.keys.paillier.key import PrivateKey
from fenchel.keys.paillier.owner import KeyOwner, generate, key_owner

ALIGNMENT_KEY_BYTES = 32

_FIELDS = frozenset({"kind", "version", "paillier", "alignment_key"})
_FINGERPRINT_PREFIX = b"fenchel client secrets\x00"


@dataclass(frozen=True)
class Secrets:
    """Secrets of one federation.

    Attributes
    ----------
    private_key
        Paillier key.
    alignment_key
        Key of the samples' pseudonyms, 32 random bytes. Clients send identifiers only as HMACs under this key.
    """

    private_key: PrivateKey
    alignment_key: bytes = field(repr=False)
    _owners: dict[Backend, KeyOwner] = field(default_factory=dict, init=False, repr=False, compare=False)
    _making: Lock = field(default_factory=Lock, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if len(self.alignment_key) != ALIGNMENT_KEY_BYTES:
            raise CredentialError(
                f"the alignment key has {len(self.alignment_key)} bytes, expected {ALIGNMENT_KEY_BYTES}; make new "
                "secrets with fenchel keys",
                key="secrets",
            )

    @cached_property
    def fingerprint(self) -> str:
        """Fingerprint of 32 hexadecimal digits, which is equal for equal secrets and does not reveal them."""
        public = self.private_key.public
        return hashlib.sha256(_FINGERPRINT_PREFIX + public.id + self.alignment_key).hexdigest()[:32]

    def owner(self, backend: Backend = "gmp") -> KeyOwner:
        """Return the object that encrypts and decrypts on a backend. All clients of a process share its tables."""
        with self._making:  # the lock prevents several threads from each building tables of 38 MB
            if backend not in self._owners:
                self._owners[backend] = key_owner(self.private_key, backend)
            return self._owners[backend]

    def cipher(self, backend: Backend = "gmp") -> Paillier:
        """Return the encryption and decryption of one client on a backend, with a meter of its own."""
        return Paillier(self.owner(backend))

    @classmethod
    def generate(
        cls, bits: int = DEFAULT_BITS, implementation: Implementation = "fenchel", *, for_tests: bool = False
    ) -> Secrets:
        """Make new secrets, with a Paillier key of ``bits`` bits; raise the errors of :func:`generate`."""
        key = generate(bits, implementation, for_tests=for_tests)
        return cls(key, secrets.token_bytes(ALIGNMENT_KEY_BYTES))

    def to_text(self) -> str:
        """Return the secrets as the text of their file."""
        fields = {
            "kind": SECRETS_KIND,
            "version": FORMAT_VERSION,
            "paillier": self.private_key.to_fields(),
            "alignment_key": self.alignment_key.hex(),
        }
        return json.dumps(fields, indent=2) + "\n"

    @classmethod
    def from_text(cls, text: str | bytes, source: str = "secrets") -> Secrets:
        """Read secrets that :meth:`to_text` wrote, as text or as its bytes.

        Parameters
        ----------
        source
            Origin of the text, for errors.

        Raises
        ------
        CredentialError
            If the text is invalid.
        """
        try:
            # an invalid byte becomes a character that no valid field has
            whole = text if isinstance(text, str) else text.decode("ascii", errors="replace")
            fields = parse_fields(whole, SECRETS_KIND, _FIELDS)
            digits = fields["alignment_key"]
            if not isinstance(digits, str) or not re.fullmatch(f"[0-9a-f]{{{2 * ALIGNMENT_KEY_BYTES}}}", digits):
                raise CredentialError(
                    f"alignment_key is not {2 * ALIGNMENT_KEY_BYTES} lower-case hexadecimal digits; copy the file that "
                    "fenchel keys wrote"
                )
            return cls(PrivateKey.from_fields(fields["paillier"]), bytes.fromhex(digits))
        except CredentialError as error:
            raise error.at(source=source) from None

    @classmethod
    def load(cls, path: Path) -> Secrets:
        """Read a file of secrets; raise ``CredentialError`` if it is invalid, or open to other users."""
        try:
            with path.open("rb") as file:
                mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
                data = file.read()
        except OSError as error:
            raise CredentialError(
                f"the file cannot be read ({error.strerror}); make one with fenchel keys, and give every client of "
                "the federation a copy",
                source=path,
            ) from None
        if mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise CredentialError(
                f"other users of this machine may read or change the file (mode {mode:04o}), and anyone who reads "
                f"it can decrypt everything; run chmod 600 {path}",
                source=path,
            )
        return cls.from_text(data, str(path))
