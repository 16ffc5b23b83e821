"""Obfuscators: the random factors r^n mod n² that make every encryption look like noise.

A Paillier ciphertext of m is (1 + nm) r^n mod n², and the factor r^n is all of its cost. Whoever knows p
and q computes it modulo p² and modulo q² instead. There, the n-th residues form cyclic groups of p-1 and
q-1 elements, and r^n for a random unit r is a uniformly random element of both. Two ways to draw one:

* with known factors of p-1 and q-1: h^e for a generator h of the group and a full-length random exponent
  e in 0 .. p-2, from a table of powers of h (fixed-base windows; Handbook of Applied Cryptography, 14.6.3).
  No short exponents, so no assumption beyond Paillier's own;
* for any other key: u^p modulo p² for a random unit u.

Both give exactly the distribution of r^n. An obfuscator that is used twice reveals the difference of
two plaintexts: each is handed out once, never written anywhere, and a forked child starts with none.
"""

from __future__ import annotations

import os
import secrets
import threading
import weakref
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import gmpy2

from fenchel.client.paillier.key import PrimePower, PrivateKey
from fenchel.common.errors import SettingsError

DEFAULT_WINDOW = 8
LARGEST_WINDOW = 14  # two gigabytes at 3072 bits


class Powers:
    """All powers of a generator of the n-th residues modulo p², by a table with fixed windows.

    Row i holds h^(d 2^(window i)) for the digits d = 0 .. 2^window - 1, so a power is a product of one
    entry a row. The digit 0 has an entry, too: each power takes the same number of multiplications.

    modulo: the prime and its square; the factors of p-1 must be known.
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


@dataclass
class _Pool:
    """Ready obfuscators and the thread that makes them. Each process has a pool of its own."""

    ready: deque[gmpy2.mpz] = field(default_factory=deque)
    changed: threading.Condition = field(default_factory=threading.Condition)
    filler: threading.Thread | None = None
    pauses: int = 0
    stopping: bool = False


class BlindingFactors:
    """A source of obfuscators of one key, for any number of clients and threads of one process.

    Make one for a key in a process and hand it to every :class:`~fenchel.client.paillier.cipher.Paillier` of it:
    the tables are large.

    window: bits of a digit of the tables. A larger window is faster and takes more memory: at 3072 bits 38 MB with 8,
        220 MB with 11. It has no meaning for a key whose factors are not known.
    pool: how many obfuscators a background thread keeps ready once :meth:`start` was called.
    """

    def __init__(self, key: PrivateKey, *, window: int = DEFAULT_WINDOW, pool: int = 0) -> None:
        if not 1 <= window <= LARGEST_WINDOW:
            raise SettingsError(f"tables of powers with windows of {window} bits: expected 1 to {LARGEST_WINDOW} bits")
        if pool < 0:
            raise SettingsError(f"a pool of {pool} obfuscators: expected 0 or more")
        self.key = key
        self._powers = (Powers(key.modulo_p, window), Powers(key.modulo_q, window)) if key.factors_known else None
        self._room = pool
        self._pool = _Pool()
        _empty_in_forked_children(self)

    def take(self, count: int) -> list[gmpy2.mpz]:
        """Return so many obfuscators, numbers modulo n², that nobody else was or will be given.

        Ready ones come from the pool, the others are computed now.
        """
        pool = self._pool
        with pool.changed:
            taken = [pool.ready.popleft() for _ in range(min(count, len(pool.ready)))]
            pool.changed.notify_all()
        return taken + self._fresh(count - len(taken))

    @property
    def ready(self) -> int:
        """How many the pool holds."""
        return len(self._pool.ready)

    @property
    def table_bytes(self) -> int:
        """Memory of the tables; 0 for a key whose factors are not known."""
        return sum(powers.bytes for powers in self._powers) if self._powers else 0

    def start(self) -> None:
        """Let a background thread fill the pool. Does nothing if it runs already or the pool has no room.

        What it computes is used later, so on a busy machine nothing is lost. It takes the interpreter's
        lock for milliseconds; :meth:`paused` holds it off where that would be felt. A forked child has no
        such thread until it calls this itself.

        Fenchel's clients do not call it. Encryption is a sixth of what HyFDCA's clients spend on cryptography; the
        rest is decryption, which cannot be prepared. And where clients share a machine, the thread takes from
        others the processor that they need: 9 clients on two cores gained nothing.
        """
        pool = self._pool
        with pool.changed:
            if pool.filler is None and self._room:
                pool.filler = threading.Thread(target=self._fill, args=[pool], name="obfuscators", daemon=True)
                pool.filler.start()

    def stop(self) -> None:
        """End the background thread and forget what is in the pool."""
        pool, self._pool = self._pool, _Pool()
        with pool.changed:
            pool.stopping = True
            pool.changed.notify_all()
        if pool.filler is not None:
            pool.filler.join()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Hold the background thread off meanwhile."""
        pool = self._pool
        with pool.changed:
            pool.pauses += 1
        try:
            yield
        finally:
            if pool is self._pool:  # not so in a child forked meanwhile, nor after stop()
                with pool.changed:
                    pool.pauses -= 1
                    pool.changed.notify_all()

    def _fresh(self, count: int) -> list[gmpy2.mpz]:
        key = self.key
        if self._powers is not None:
            powers_p, powers_q = self._powers
            return [key.ciphertext(powers_p.random(), powers_q.random()) for _ in range(count)]
        residues = zip(_residues(key.modulo_p, count), _residues(key.modulo_q, count), strict=True)
        return [key.ciphertext(modulo_p, modulo_q) for modulo_p, modulo_q in residues]

    def _fill(self, pool: _Pool) -> None:
        while True:
            with pool.changed:
                pool.changed.wait_for(lambda: pool.stopping or (not pool.pauses and len(pool.ready) < self._room))
                if pool.stopping:
                    return
            fresh = self._fresh(1)
            with pool.changed:
                pool.ready += fresh

    def _forget(self) -> None:
        self._pool = _Pool()  # the old one's lock may be held by a thread that only the parent has


def _residues(modulo: PrimePower, count: int) -> list[gmpy2.mpz]:
    """Return u^p modulo p² for random units u: uniformly random n-th residues. The GIL is released."""
    units = [gmpy2.mpz(1 + secrets.randbelow(int(modulo.order))) for _ in range(count)]
    return list(gmpy2.powmod_base_list(units, modulo.prime, modulo.square))


def _empty_in_forked_children(blinding_factors: BlindingFactors) -> None:
    reference = weakref.ref(blinding_factors)  # what is registered stays so for ever, and the tables must not

    def after_fork() -> None:
        found = reference()
        if found is not None:
            found._forget()

    os.register_at_fork(after_in_child=after_fork)
