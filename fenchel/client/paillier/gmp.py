"""Fenchel's own implementation.

With c = (1 + nm) r^n mod n² and L(x) = (x-1)/p, decryption is m = L(c^(p-1) mod p²) L((1+n)^(p-1) mod p²)^-1
modulo p, the same modulo q, and m from both (Paillier 1999, section 7).
"""

from __future__ import annotations

from collections.abc import Sequence

from gmpy2 import mpz

from fenchel.client.paillier.blinding import BlindingFactors
from fenchel.client.paillier.key import PrivateKey
from fenchel.common.crypto.public_key import PublicKey
from fenchel.common.crypto.residues.gmp import GmpResidues
from fenchel.common.crypto.residues.interface import Residues


class GmpOwner:
    """Encrypts by tables of blinding factors, and decrypts modulo p² and q².

    Parameters
    ----------
    key
        The private key.
    window
        Bits of a digit of the tables; see :class:`~fenchel.client.paillier.blinding.Powers`.
    """

    def __init__(self, key: PrivateKey, window: int = 8) -> None:
        self.key = key
        self.blinding_factors = BlindingFactors(key, window=window)

    @property
    def public(self) -> PublicKey:
        """The key, and what computes on its ciphertexts."""
        return self.key.public

    def encrypt(self, plaintexts: Sequence[mpz]) -> GmpResidues:
        """Encrypt integers."""
        n, n_squared = self.public.modulus, self.public.n_squared
        factors = self.blinding_factors.take(len(plaintexts))
        numbers = [(1 + n * m) * r % n_squared for m, r in zip(plaintexts, factors, strict=True)]
        return GmpResidues.of(self.public, numbers)

    def decrypt(self, ciphertexts: Residues) -> list[mpz]:
        """Return the plaintexts, modulo ``n``."""
        numbers = list(ciphertexts)
        residues = zip(self.key.modulo_p.residues(numbers), self.key.modulo_q.residues(numbers), strict=True)
        return [self.key.plaintext(m_p, m_q) for m_p, m_q in residues]
