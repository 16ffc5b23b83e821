"""Blinding factors: the random factors r^n mod n² that make every encryption look like noise.

A Paillier ciphertext of m is (1 + nm) r^n mod n², and the factor r^n is all of its cost. With p and q it is
computed modulo p² and modulo q² instead. There, the n-th residues form cyclic groups of p-1 and q-1 elements,
and r^n for a random unit r is a uniformly random element of both: h^e for a generator h of the group and a
full-length random exponent e in 0 .. p-2, from a table of powers of h (fixed-base windows; Handbook of Applied
Cryptography, 14.6.3). No short exponents, so no assumption beyond Paillier's own. Where the
factors of p-1 are not known, no generator can be found: there it is u^p for a random unit u modulo p, of the same
distribution.

A blinding factor that is used twice reveals the difference of two plaintexts: each is made when it is asked for,
handed out once, and never kept.
"""

from __future__ import annotations

import secrets

import gmpy2

from fenchel.client.paillier.key import PrimePower, PrivateKey


class Powers:
    """All powers of a generator of the n-th residues modulo p², by a table with fixed windows.

    Row i holds h^(d 2^(window i)) for the digits d = 0 .. 2^window - 1, so a power is a product of one
    entry a row. The digit 0 has an entry, too: each power takes the same number of multiplications.

    window: bits of a digit. At 3072 bits the tables of both primes take 38 MB with 8 and 220 MB with 11.
    """

    def __init__(self, modulo: PrimePower, window: int) -> None:
        self._square = modulo.square
        self._order = int(modulo.order)
        self._window = window
        self._table: list[list[gmpy2.mpz]] = []
        base = modulo.generator()
        for _ in range(0, self._order.bit_length(), window):
            row = [gmpy2.mpz(1)]
            for _ in range((1 << window) - 1):
                row.append(row[-1] * base % self._square)
            self._table.append(row)
            base = row[-1] * base % self._square

    def random(self) -> gmpy2.mpz:
        """Return a uniformly random element of the group."""
        return self.power(secrets.randbelow(self._order))

    def power(self, exponent: int) -> gmpy2.mpz:
        """Return h^exponent modulo p² for an exponent in 0 .. p-2."""
        mask, window, square = (1 << self._window) - 1, self._window, self._square
        product = gmpy2.mpz(1)
        for row in self._table:
            product = product * row[exponent & mask] % square
            exponent >>= window
        return product

    @property
    def bytes(self) -> int:
        """Memory of the table's numbers, without Python's own."""
        return len(self._table) * len(self._table[0]) * (int(self._square).bit_length() // 8)


class RandomPowers:
    """Random n-th residues modulo p² by an exponentiation each."""

    bytes = 0

    def __init__(self, modulo: PrimePower) -> None:
        self._modulo = modulo

    def random(self) -> gmpy2.mpz:
        """Return a uniformly random element of the group."""
        prime, square = self._modulo.prime, self._modulo.square
        # x -> x^p maps the units modulo p one to one onto the n-th residues modulo p²; see PrimePower.generator.
        return gmpy2.powmod(1 + secrets.randbelow(int(prime) - 1), prime, square)


class BlindingFactors:
    """A source of blinding factors of one key, for any number of clients and threads of one process.

    Make one for a key in a process: the tables are large.
    """

    def __init__(self, key: PrivateKey, *, window: int = 8) -> None:
        self.key = key
        self._powers = tuple(
            Powers(modulo, window) if modulo.factors else RandomPowers(modulo)
            for modulo in (key.modulo_p, key.modulo_q)
        )

    def take(self, count: int) -> list[gmpy2.mpz]:
        """Return so many fresh blinding factors, numbers modulo n²."""
        powers_p, powers_q = self._powers
        return [self.key.ciphertext(powers_p.random(), powers_q.random()) for _ in range(count)]

    @property
    def table_bytes(self) -> int:
        """Memory of the tables."""
        return sum(powers.bytes for powers in self._powers)
