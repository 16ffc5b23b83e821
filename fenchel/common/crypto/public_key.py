"""The public key: what everybody may know, the server included."""

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
"""Below this no key is accepted at all."""
SAFE_BITS = 2048
"""Below this a key protects nothing; only tests use one."""
LARGEST_BITS = 16_384

Security: TypeAlias = Literal[112, 128, 192]
"""Length of a symmetric key that is as hard to guess, in bits."""
BITS_OF_SECURITY: Mapping[Security, int] = {112: 2048, 128: 3072, 192: 7680}
"""Length of ``n`` by security (NIST SP 800-57, part 1, table 2)."""
DEFAULT_BITS = BITS_OF_SECURITY[128]

Implementation: TypeAlias = Literal["fenchel", "phe"]
"""Code that makes keys and computes: Fenchel's own, or the library phe."""
Backend: TypeAlias = Literal["gmp", "ifma", "phe"]
"""Code that computes on numbers: by GMP, eight at a time by AVX-512 IFMA, or the library phe."""
BackendChoice: TypeAlias = Literal["auto", "gmp", "ifma"]
"""The backend of Fenchel's own implementation; auto: the fastest that this machine supports."""

_ID_BYTES = 16
_ID_PREFIX = b"fenchel paillier public key\x00"
_LONGEST_TEXT = 1 << 16
_SMALL_PRIMES = gmpy2.primorial(1000)  # the product of all primes up to 1000


@dataclass(frozen=True)
class PublicKey:
    """A Paillier public key with the generator ``n + 1`` (Paillier 1999, scheme 1).

    Attributes
    ----------
    n
        The product of two primes of about the same length.
    backend
        Code that computes on ciphertexts of this key here. All give the same numbers.
    """

    n: int
    backend: Backend = field(default="gmp", compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "n", int(operator.index(self.n)))
        bits = self.n.bit_length() if self.n > 0 else 0
        if not SMALLEST_BITS <= bits <= LARGEST_BITS:
            raise CredentialError(
                f"a Paillier key of {bits} bits cannot be used; it must have {SMALLEST_BITS} to {LARGEST_BITS}"
            )
        if gmpy2.gcd(self.modulus, _SMALL_PRIMES) != 1:
            raise CredentialError("this Paillier key is broken: its n is even or has a small factor")
        if gmpy2.is_power(self.modulus) or gmpy2.is_prime(self.modulus):
            raise CredentialError("this Paillier key is broken: its n is not a product of two different primes")

    @cached_property
    def modulus(self) -> mpz:
        """The modulus ``n`` of plaintexts, as the arithmetic wants it."""
        return mpz(self.n)

    @cached_property
    def n_squared(self) -> mpz:
        """The modulus ``n^2`` of ciphertexts."""
        return self.modulus * self.modulus

    @property
    def bits(self) -> int:
        """Length of ``n``."""
        return self.n.bit_length()

    @property
    def ciphertext_bytes(self) -> int:
        """Bytes of one ciphertext: any number below ``n^2`` fits."""
        return (2 * self.bits + 7) // 8

    @cached_property
    def id(self) -> bytes:
        """16 bytes that name this key wherever it is used."""
        content = self.n.to_bytes((self.bits + 7) // 8, "big")
        return hashlib.sha256(_ID_PREFIX + content).digest()[:_ID_BYTES]

    @property
    def fingerprint(self) -> str:
        """The key's id as people read it: 32 hexadecimal digits."""
        return self.id.hex()

    def to_text(self) -> str:
        """Return the key as a file holds it: JSON that :meth:`from_text` reads."""
        content = {"kind": PUBLIC_KIND, "version": FORMAT_VERSION, "fingerprint": self.fingerprint, "n": hex(self.n)}
        return json.dumps(content, indent=1) + "\n"

    @classmethod
    def from_text(cls, text: str, source: str, *, smallest_bits: int = SAFE_BITS) -> PublicKey:
        """Read a key that :meth:`to_text` wrote.

        Parameters
        ----------
        source
            Where it comes from, for errors: the file's path.
        """
        if looks_private(text):
            raise CredentialError(
                "holds a private key, and a public key is wanted here. Whoever has the private key can read "
                "what the clients hide: give this place the file with the public key, and if the private one has "
                "reached a machine that should not have it, make new keys",
                source=source,
            )
        content = parse_fields(text, PUBLIC_KIND, {"kind", "version", "fingerprint", "n"}, source)
        digits = content["n"]
        if not isinstance(digits, str) or not re.fullmatch("0x[1-9a-f][0-9a-f]*", digits):
            raise CredentialError("'n' is not a number in hexadecimal digits, as in '0x1f'", source=source)
        try:
            key = cls(int(digits, 16))
        except CredentialError as error:
            raise CredentialError(f"{error}", source=source) from None
        if content["fingerprint"] != key.fingerprint:
            raise CredentialError(
                f"the fingerprint is not that of the key ({key.fingerprint}); the file is damaged or was edited",
                source=source,
            )
        if key.bits < smallest_bits:
            raise CredentialError(f"a key of {key.bits} bits is too short; use {smallest_bits} or more", source=source)
        return key


def parse_fields(text: str, kind: str, names: Set[str], source: str) -> dict[str, Any]:
    """Return the fields of a key file. No error quotes the text, which may be secret."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        fields = dict(pairs)
        if len(fields) != len(pairs):
            raise CredentialError("a name appears twice in it", source=source)
        return fields

    try:
        content = json.loads(text, object_pairs_hook=unique) if len(text) <= _LONGEST_TEXT else None
    except (ValueError, RecursionError):
        raise CredentialError(f"not a {kind}: it is not JSON, cut off, or nested too deeply", source=source) from None
    return check_fields(content, kind, names, source)


def check_fields(content: object, kind: str, names: Set[str], source: str) -> dict[str, Any]:
    """Return the fields of a key if they are those of its kind and of this version of the format."""
    if not isinstance(content, dict):
        raise CredentialError(f"not a {kind}: expected an object with {sorted(names)}", source=source)
    if content.get("kind") != kind:
        raise CredentialError(
            f"expected a {kind}, found {content.get('kind')!r:.80}; fenchel keys makes the secrets that clients are "
            "given, and the public key for the server",
            source=source,
        )
    version = content.get("version")
    if version != FORMAT_VERSION or isinstance(version, bool):
        raise CredentialError(
            f"written in version {version!r:.20} of the format; this Fenchel reads version {FORMAT_VERSION}",
            source=source,
        )
    if content.keys() != names:
        raise CredentialError(f"a {kind} holds {sorted(names)}, each once, and nothing else", source=source)
    return content


def looks_private(text: str) -> bool:
    """Whether a text seems to hold what the server must never have: a private key, or the clients' secrets."""
    return PRIVATE_KIND in text or SECRETS_KIND in text
