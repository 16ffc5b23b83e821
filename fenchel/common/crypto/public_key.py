"""Public key of Paillier encryption, which the server may know, and its file format."""

from __future__ import annotations

import hashlib
import json
import operator
import re
from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, TypeAlias

import gmpy2
from gmpy2 import mpz

from fenchel.common.errors import CredentialError

PUBLIC_KIND = "fenchel paillier public key"
PRIVATE_KIND = "fenchel paillier private key"
SECRETS_KIND = "fenchel client secrets"
FORMAT_VERSION = 1

SMALLEST_BITS = 128
"""Shortest key that is accepted, in bits."""
SAFE_BITS = 2048
"""Shortest key that protects data, in bits. Only tests use shorter ones."""
LARGEST_BITS = 16_384

Security: TypeAlias = Literal[112, 128, 192]
"""Security in bits: length of a symmetric key that is equally hard to break."""
BITS_OF_SECURITY: Mapping[Security, int] = {112: 2048, 128: 3072, 192: 7680}
"""Length of ``n`` by security (NIST SP 800-57, part 1, table 2)."""
DEFAULT_BITS = BITS_OF_SECURITY[128]

Implementation: TypeAlias = Literal["fenchel", "phe"]
"""Implementation of Paillier: Fenchel's own, or the library phe."""
Backend: TypeAlias = Literal["gmp", "ifma", "phe"]
"""Arithmetic of an implementation: GMP, AVX-512 IFMA for eight numbers at a time, or the library phe."""
BackendChoice: TypeAlias = Literal["auto", "gmp", "ifma"]
"""Choice of the backend of Fenchel's own implementation. ``auto`` is the fastest that this machine supports."""

_ID_BYTES = 16
_ID_PREFIX = b"fenchel paillier public key\x00"
_LONGEST_TEXT = 1 << 16
_SMALL_PRIMES = gmpy2.primorial(1000)  # product of all primes up to 1000


@dataclass(frozen=True)
class PublicKey:
    """A Paillier public key with the generator ``n + 1`` (Paillier 1999, scheme 1).

    Attributes
    ----------
    n
        Product of two primes of about the same length.
    backend
        Arithmetic for ciphertexts of this key in this process. All backends give the same numbers.

    Raises
    ------
    CredentialError
        If the length of ``n`` is out of range, or ``n`` has a small factor, is prime, or is a power.
    """

    n: int
    backend: Backend = field(default="gmp", compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "n", int(operator.index(self.n)))
        bits = self.n.bit_length() if self.n > 0 else 0
        if not SMALLEST_BITS <= bits <= LARGEST_BITS:
            raise CredentialError(
                f"a Paillier key of {bits} bits cannot be used; make one of {SMALLEST_BITS} to {LARGEST_BITS} bits "
                "with fenchel keys"
            )
        if gmpy2.gcd(self.modulus, _SMALL_PRIMES) != 1:
            raise CredentialError(
                "this Paillier key is invalid, because its n is even or has a small factor; make new keys with "
                "fenchel keys"
            )
        if gmpy2.is_power(self.modulus) or gmpy2.is_prime(self.modulus):
            raise CredentialError(
                "this Paillier key is invalid, because its n is not a product of two different primes; make new keys "
                "with fenchel keys"
            )

    @cached_property
    def modulus(self) -> mpz:
        """Modulus ``n`` of plaintexts, as a number of GMP."""
        return mpz(self.n)

    @cached_property
    def n_squared(self) -> mpz:
        """Modulus ``n^2`` of ciphertexts."""
        return self.modulus * self.modulus

    @property
    def bits(self) -> int:
        """Length of ``n`` in bits."""
        return self.n.bit_length()

    @property
    def ciphertext_bytes(self) -> int:
        """Length of one ciphertext in bytes, enough for any number below ``n^2``."""
        return (2 * self.bits + 7) // 8

    @cached_property
    def id(self) -> bytes:
        """Id of the key in messages, 16 bytes."""
        content = self.n.to_bytes((self.bits + 7) // 8, "big")
        return hashlib.sha256(_ID_PREFIX + content).digest()[:_ID_BYTES]

    @property
    def fingerprint(self) -> str:
        """Id of the key for people, 32 hexadecimal digits."""
        return self.id.hex()

    def to_text(self) -> str:
        """Return the content of a key file: JSON that :meth:`from_text` reads."""
        content = {"kind": PUBLIC_KIND, "version": FORMAT_VERSION, "fingerprint": self.fingerprint, "n": hex(self.n)}
        return json.dumps(content, indent=1) + "\n"

    @classmethod
    def from_text(cls, text: str, source: str, *, smallest_bits: int = SAFE_BITS) -> PublicKey:
        """Read a key that :meth:`to_text` wrote.

        Parameters
        ----------
        source
            Path of the file, for errors.
        smallest_bits
            Shortest length of ``n`` to accept, in bits.

        Raises
        ------
        CredentialError
            If the text is not a public key, is damaged, or has a key that is too short.
        """
        try:
            return cls._parsed(text, smallest_bits)
        except CredentialError as error:
            raise error.at(source=source) from None

    @classmethod
    def _parsed(cls, text: str, smallest_bits: int) -> PublicKey:
        if looks_private(text):
            raise CredentialError(
                "the file has a private key, which can decrypt the clients' values, but a public key is needed. "
                "Use the file with the public key. If the private key has reached a machine that must not have "
                "it, make new keys"
            )
        content = parse_fields(text, PUBLIC_KIND, {"kind", "version", "fingerprint", "n"})
        digits = content["n"]
        if not isinstance(digits, str) or not re.fullmatch("0x[1-9a-f][0-9a-f]*", digits):
            raise CredentialError(
                "'n' is not a hexadecimal number, such as '0x1f', so the file is damaged; copy it again, or make new "
                "keys with fenchel keys"
            )
        key = cls(int(digits, 16))
        if content["fingerprint"] != key.fingerprint:
            raise CredentialError(
                f"the fingerprint does not match the key ({key.fingerprint}), so the file is damaged or was "
                "edited; copy it again"
            )
        if key.bits < smallest_bits:
            raise CredentialError(
                f"the key has {key.bits} bits, which is too short; make one of at least {smallest_bits} bits with "
                "fenchel keys"
            )
        return key


def parse_fields(text: str, kind: str, names: Set[str]) -> dict[str, Any]:
    """Return the fields of a key file; raise ``CredentialError`` if the file is invalid.

    The text may be secret, so errors quote only its kind and its format version.
    """

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        fields = dict(pairs)
        if len(fields) != len(pairs):
            raise CredentialError(
                "the file has two entries of the same name; copy it again, or make new keys with fenchel keys"
            )
        return fields

    try:
        content = json.loads(text, object_pairs_hook=unique) if len(text) <= _LONGEST_TEXT else None
    except (ValueError, RecursionError):
        raise CredentialError(
            f"not a {kind}: the file is not JSON, is cut off, or is nested too deeply; copy it again"
        ) from None
    return check_fields(content, kind, names)


def check_fields(content: object, kind: str, names: Set[str]) -> dict[str, Any]:
    """Return the fields of a key; raise ``CredentialError`` for another kind, format version or set of names."""
    if not isinstance(content, dict):
        raise CredentialError(f"not a {kind}: expected a JSON object with {sorted(names)}")
    if content.get("kind") != kind:
        raise CredentialError(
            f"the file is of kind {content.get('kind')!r:.80}; expected a {kind}. fenchel keys makes secrets for "
            "the clients and a public key for the server"
        )
    version = content.get("version")
    if version != FORMAT_VERSION or isinstance(version, bool):
        raise CredentialError(
            f"the file has format version {version!r:.20}, but this version of Fenchel reads {FORMAT_VERSION}; "
            "make it again with fenchel keys"
        )
    if content.keys() != names:
        raise CredentialError(
            f"the entries of the file are not those of a {kind}; expected {sorted(names)}. Copy the file again"
        )
    return content


def looks_private(text: str) -> bool:
    """Return whether a text seems to contain a private key or the clients' secrets, which no server may have."""
    return PRIVATE_KIND in text or SECRETS_KIND in text
