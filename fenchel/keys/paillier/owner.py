"""Interface of implementations of Paillier for owners of the private key, and the choice of an implementation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from gmpy2 import mpz

from fenchel.common.crypto.public_key import Backend, Implementation, PublicKey
from fenchel.common.crypto.residues.choice import backend_of, residues
from fenchel.common.crypto.residues.interface import Residues
from fenchel.keys.paillier import key as own
from fenchel.keys.paillier.crt import CrtOwner
from fenchel.keys.paillier.gmp import GmpArithmetic
from fenchel.keys.paillier.ifma import IfmaArithmetic
from fenchel.keys.paillier.key import PrivateKey


class KeyOwner(Protocol):
    """Interface for encryption and decryption of packed plaintexts, for any number of clients of one process."""

    @property
    def public(self) -> PublicKey:
        """Public key, with the backend for its ciphertexts."""

    def encrypt(self, plaintexts: Sequence[mpz]) -> Residues:
        """Return the ciphertexts of integers between ``-n/2`` and ``n/2``."""

    def decrypt(self, ciphertexts: Residues) -> list[mpz]:
        """Return the plaintexts, modulo ``n``.

        Raises
        ------
        EncryptionError
            If a number shares a factor with ``n``. Then nothing is decrypted.
        """


def generate(bits: int, implementation: Implementation, *, for_tests: bool = False) -> PrivateKey:
    """Make a private key of ``bits`` bits by an implementation.

    Raises
    ------
    SettingsError
        If the key would be too short, ``bits`` is odd, or the library of the implementation is not installed.
    """
    if implementation == "fenchel":
        return own.generate(bits, for_tests=for_tests)
    own.check_length(bits, for_tests=for_tests)
    backend_of(implementation)
    from fenchel.keys.paillier import phe

    return phe.generate(bits)


def key_owner(key: PrivateKey, backend: Backend) -> KeyOwner:
    """Create the owner of a key on a backend, with the tables that encryption needs.

    Raises
    ------
    SettingsError
        If the library of the backend is not installed.
    """
    if backend == "phe":
        residues(backend)
        from fenchel.keys.paillier.phe import PheOwner

        return PheOwner(key)
    return CrtOwner(key, backend, IfmaArithmetic(key) if backend == "ifma" else GmpArithmetic(key))
