"""Powers modulo p² of eight numbers at a time."""

from __future__ import annotations

import secrets

from gmpy2 import mpz

from fenchel.client.paillier.key import PrimePower
from fenchel.common.crypto.residues.ifma import SquareModulus


class IfmaPrime:
    """Arithmetic modulo p², in constant time.

    Parameters
    ----------
    modulo
        The prime.
    """

    def __init__(self, modulo: PrimePower) -> None:
        self._modulo = modulo
        self._squares = SquareModulus(modulo.prime)
        bits = int(modulo.order).bit_length()
        self._table = self._squares.table(modulo.generator(), bits) if modulo.factors else b""

    @property
    def table_bytes(self) -> int:
        """Memory of the table: 16 MB for both primes at 3072 bits."""
        return len(self._table)

    def powers(self, numbers: list[mpz]) -> list[mpz]:
        """Return the powers x^(p-1)."""
        row = self._squares.of([number % self._modulo.square for number in numbers])
        return self._squares.numbers(self._squares.powers(row, int(self._modulo.order)), len(numbers))

    def random_residues(self, count: int) -> list[mpz]:
        """Return fresh n-th residues."""
        order = int(self._modulo.order)
        drawn = [secrets.randbelow(order) for _ in range(count)]
        if self._table:
            found = self._squares.fixed_powers(self._table, drawn)
        else:
            found = self._squares.powers(self._squares.of([mpz(1 + each) for each in drawn]), int(self._modulo.prime))
        return self._squares.numbers(found, count)
