"""Keys, encryption and decryption by the library phe, number by number."""

from __future__ import annotations

from collections.abc import Sequence

from gmpy2 import mpz
from phe.paillier import PaillierPrivateKey, PaillierPublicKey, generate_paillier_keypair

from fenchel.common.crypto.public_key import PublicKey
from fenchel.common.crypto.residues.interface import Residues, without_inverse
from fenchel.common.crypto.residues.phe import PheResidues
from fenchel.keys.paillier.key import PrivateKey, no_ciphertext


class PheOwner:
    """Encryption and decryption by phe.

    Parameters
    ----------
    key
        Private key of either implementation.
    """

    def __init__(self, key: PrivateKey) -> None:
        self.public = PublicKey(key.public.n, "phe")
        self._encrypting = PaillierPublicKey(key.public.n)
        self._decrypting = PaillierPrivateKey(self._encrypting, key.p, key.q)

    def encrypt(self, plaintexts: Sequence[mpz]) -> PheResidues:
        """Return the ciphertexts of integers."""
        n = self.public.n
        return PheResidues.of(self.public, [mpz(self._encrypting.raw_encrypt(int(m) % n)) for m in plaintexts])

    def decrypt(self, ciphertexts: Residues) -> list[mpz]:
        """Return the plaintexts, modulo ``n``."""
        numbers = list(ciphertexts)
        if without_inverse(numbers, self.public) is not None:
            raise no_ciphertext(len(numbers))
        return [mpz(self._decrypting.raw_decrypt(int(number))) for number in numbers]


def generate(bits: int) -> PrivateKey:
    """Make a key of ``bits`` bits by phe."""
    _, private = generate_paillier_keypair(n_length=bits)
    return PrivateKey(int(private.p), int(private.q))
