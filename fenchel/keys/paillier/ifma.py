"""Powers modulo p² and q² on the backend ifma, eight at a time."""

from __future__ import annotations

import secrets

from gmpy2 import mpz

from fenchel.common.crypto.residues.ifma import SquareModuli
from fenchel.keys.paillier.key import PrivateKey


class IfmaArithmetic:
    """Powers on the backend ifma, modulo p² in four lanes and modulo q² in four lanes.

    No branch and no memory address of a power depends on secrets.

    Parameters
    ----------
    key
        Private key.
    """

    def __init__(self, key: PrivateKey) -> None:
        self._key = key
        self._moduli = SquareModuli(key.modulo_p.prime, key.modulo_q.prime)
        self._table = b""
        if key.p_factors and key.q_factors:
            bits = max(key.p, key.q).bit_length()
            self._table = self._moduli.table(key.modulo_p.generator(), key.modulo_q.generator(), bits)

    @property
    def table_bytes(self) -> int:
        """Memory of the table in bytes, 16 MB at 3072 bits."""
        return len(self._table)

    def powers(self, numbers: list[mpz]) -> list[list[mpz]]:
        """Return x^(p-1) modulo p² and x^(q-1) modulo q² for each number x."""
        row = self._moduli.of(numbers, numbers, width=self._key.public.ciphertext_bytes)
        return self._moduli.numbers(self._moduli.powers(row, self._key.p - 1, self._key.q - 1), len(numbers))

    def random_residues(self, count: int) -> list[list[mpz]]:
        """Return fresh n-th residues modulo p² and modulo q²."""
        p, q = self._key.p, self._key.q
        drawn = [[secrets.randbelow(prime - 1) for _ in range(count)] for prime in (p, q)]
        if self._table:
            found = self._moduli.fixed_powers(self._table, *drawn)
        else:
            units = self._moduli.of(*([mpz(1 + each) for each in those] for those in drawn))
            found = self._moduli.powers(units, p, q)
        return self._moduli.numbers(found, count)
