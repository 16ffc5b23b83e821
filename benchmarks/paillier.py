"""Paillier for vectors, on one core: phe, pypaillier, sf-heu and Fenchel with each of its backends.

A key of 3072 bits. Packed plaintexts have slots of 40 bits, 76 values in a ciphertext; times include packing. All take
turns, each decrypts correctly before it is timed, and figures are those of the medians. Peers that are not installed
are left out. pypaillier and sf-heu make keys of their own. All but Fenchel encrypt without the private key.

The second table holds what the processor can do: GMP against the kernel of the backend ifma, which computes eight
numbers at a time (time of one of them). ``powmod_sec`` takes constant time, and the backend gmp decrypts with it. The
third table holds gains. That of ifma over gmp has a limit, which is the kernel's ratio in the second table: to
``powmod_sec`` for decryption, to products modulo n² for addition, and 3/4 of that to products modulo p² for encryption:
there gmp uses windows of 8 bits, with lookups that do not take constant time, and ifma windows of 6 bits in constant
time, so a third more products.

Limits: 1000 times as many values a second encrypted as phe does number by number, 60 times as many decrypted (45 times
by gmp, as constant time costs), 80 times as many added; 0.7 of what ifma can gain; a message of at most 1.3 times the
bytes of float64. With ``--quick`` it may be a fifth as fast, and pypaillier is left out.
"""

from __future__ import annotations

import os
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import metadata
from typing import Any

import gmpy2
import numpy as np
import phe.util
from gmpy2 import mpz

from benchmarks.limits import Limits
from benchmarks.paillier_schemes import BITS, LAYOUT, PRECISION, Packed, PheNumbers, Scheme, peers
from benchmarks.program import Figures, progress, run
from fenchel.common.arrays import Vector
from fenchel.common.crypto.public_key import Backend
from fenchel.common.crypto.residues.ifma import SquareModuli, is_available
from fenchel.keys.paillier.crt import CrtOwner
from fenchel.keys.paillier.gmp import GmpArithmetic
from fenchel.keys.paillier.key import PrivateKey, generate
from fenchel.keys.paillier.owner import key_owner

_STEPS = ("encrypt", "decrypt", "add")
_TIMES_PHE = {"encrypt": 1000, "decrypt": 60, "add": 80}
_DECRYPT_GMP = 45  # powmod_sec takes about 1.4 times as long as the powmod that phe uses
_SHARE = 0.7
_PRODUCTS = 6 / 8  # of gmp for a power of a generator, for one of ifma: windows of 8 bits and of 6
_SUMS = 2000  # ciphertexts that are added at a time: one addition takes microseconds


@dataclass
class _Stopwatch:
    """Seconds a number, measured again and again."""

    seconds: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))

    def time(self, what: str, numbers: int, work: Callable[[], object]) -> None:
        started = time.perf_counter()
        work()
        self.seconds[what].append((time.perf_counter() - started) / numbers)

    def median(self, what: str) -> float:
        return statistics.median(self.seconds[what])

    def rate(self, what: str) -> float:
        return 1 / self.median(what)

    def gain(self, slow: str, fast: str) -> float:
        return self.median(slow) / self.median(fast)


class _VariableTime(GmpArithmetic):
    """Powers by ``powmod``, whose time depends on the exponent."""

    def powers(self, numbers: list[mpz]) -> list[list[mpz]]:
        return [[gmpy2.powmod(x % half.square, half.order, half.square) for x in numbers] for half in self._halves]


@dataclass
class _Timed:
    """A scheme with vectors to work on."""

    scheme: Scheme
    values: Vector
    vector: Any

    @classmethod
    def checked(cls, scheme: Scheme, values: Vector) -> _Timed:
        """Encrypt a vector; check its decryption and that of a sum."""
        few = values[: scheme.ciphertexts * scheme.slots]
        vector = scheme.encrypt(few)
        np.testing.assert_allclose(scheme.decrypt(vector), few, rtol=0, atol=PRECISION, err_msg=scheme.name)
        total = scheme.decrypt(scheme.add(vector, vector))
        np.testing.assert_allclose(total, 2 * few, rtol=0, atol=2 * PRECISION, err_msg=scheme.name)
        return cls(scheme, few, vector)

    def turn(self, watch: _Stopwatch, steps: tuple[str, ...] = _STEPS) -> None:
        """Time each step once."""
        scheme, count = self.scheme, self.scheme.ciphertexts
        sums = -(-_SUMS // count)
        work: dict[str, tuple[int, Callable[[], object]]] = {
            "encrypt": (count, lambda: scheme.encrypt(self.values)),
            "decrypt": (count, lambda: scheme.decrypt(self.vector)),
            "add": (count * sums, lambda: [scheme.add(self.vector, self.vector) for _ in range(sums)]),
        }
        for step in steps:
            watch.time(f"{scheme.name} {step}", *work[step])

    def row(self, watch: _Stopwatch) -> dict[str, str]:
        """Return the row of the first table."""
        row = {"library": self.scheme.name, "values a ciphertext": str(self.scheme.slots)}
        for step in _STEPS:
            rate = watch.rate(f"{self.scheme.name} {step}")
            row |= {f"{step} ciphertexts/s": f"{rate:,.0f}", f"{step} values/s": f"{rate * self.scheme.slots:,.0f}"}
        return row


class _Processor:
    """Single powers and products, by GMP and by the kernel where it works."""

    def __init__(self, key: PrivateKey, count: int) -> None:
        self._order, self._p_squared, self._n_squared = key.modulo_p.order, key.modulo_p.square, key.public.n_squared
        state = gmpy2.random_state(0)
        self._small = [gmpy2.mpz_random(state, self._p_squared) for _ in range(count)]
        self._large = [gmpy2.mpz_random(state, self._n_squared) for _ in range(count)]
        self._kernels: tuple[SquareModuli, SquareModuli] | None = None
        if is_available():
            self._kernels = modulo_p, modulo_n = SquareModuli(key.modulo_p.prime), SquareModuli(mpz(key.public.n))
            self._row, self._large_row = modulo_p.of(self._small), modulo_n.of(self._large)
            (found,) = modulo_p.numbers(modulo_p.powers(self._row, int(self._order)), count)
            assert found == [gmpy2.powmod(number, self._order, self._p_squared) for number in self._small]

    def turn(self, watch: _Stopwatch) -> None:
        """Time each operation once."""
        order, square, n_squared = self._order, self._p_squared, self._n_squared
        small, large = self._small, self._large
        few = small[:8]  # a power takes milliseconds
        many, repeats = 20 * len(small), range(20)
        watch.time("powmod", len(few), lambda: [gmpy2.powmod(a, order, square) for a in few])
        watch.time("powmod_sec", len(few), lambda: [gmpy2.powmod_sec(a, order, square) for a in few])
        pairs, large_pairs = list(zip(small, small[::-1], strict=True)), list(zip(large, large[::-1], strict=True))
        watch.time("p product", many, lambda: [[a * b % square for a, b in pairs] for _ in repeats])
        watch.time("n product", many, lambda: [[a * b % n_squared for a, b in large_pairs] for _ in repeats])
        if self._kernels is not None:
            modulo_p, modulo_n = self._kernels
            row, large_row = self._row, self._large_row
            watch.time("kernel power", len(small), lambda: modulo_p.powers(row, int(order)))
            watch.time("kernel p product", many, lambda: [modulo_p.products(row, row) for _ in repeats])
            watch.time("kernel n product", many, lambda: [modulo_n.products(large_row, large_row) for _ in repeats])

    def rows(self, watch: _Stopwatch) -> list[dict[str, str]]:
        """Return the second table."""
        rows = []
        for what, gmp, kernel in (
            ("power modulo p², powmod", "powmod", "kernel power"),
            ("power modulo p², powmod_sec", "powmod_sec", "kernel power"),
            ("product modulo p²", "p product", "kernel p product"),
            ("product modulo n²", "n product", "kernel n product"),
        ):
            row = {"operation": what, "GMP µs": f"{watch.median(gmp) * 1e6:,.2f}", "kernel µs": "–", "ratio": "–"}
            if self._kernels is not None:
                row |= {"kernel µs": f"{watch.median(kernel) * 1e6:,.2f}", "ratio": f"{watch.gain(gmp, kernel):.2f}"}
            rows.append(row)
        return rows


@contextmanager
def _cores(cores: set[int]) -> Iterator[None]:
    """Restrict this thread, and those that it starts, to some cores."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def _gain(watch: _Stopwatch, step: str, slow: str, fast: str, limit: float | None = None) -> dict[str, str]:
    """Return a row of the third table."""
    slow_key, fast_key = f"{slow} {step}", f"{fast} {step}"
    gain = watch.gain(slow_key, fast_key)
    return {
        "step": step,
        "slow": slow,
        "slow ciphertexts/s": f"{watch.rate(slow_key):,.0f}",
        "fast": fast,
        "fast ciphertexts/s": f"{watch.rate(fast_key):,.0f}",
        "gain": f"{gain:.2f}",
        "limit": "–" if limit is None else f"{limit:.2f}",
        "share of limit": "–" if limit is None else f"{gain / limit:.2f}",
    }


def _gains_of_ifma(watch: _Stopwatch, limits: Limits) -> list[dict[str, str]]:
    """Judge the gains of ifma over gmp by what the processor allows; return their rows."""
    bounds = {
        "encrypt": watch.gain("p product", "kernel p product") * _PRODUCTS,
        "decrypt": watch.gain("powmod_sec", "kernel power"),
        "add": watch.gain("n product", "kernel n product"),
    }
    for step, bound in bounds.items():
        share = watch.gain(f"Fenchel, gmp {step}", f"Fenchel, ifma {step}") / bound
        limits.at_least(f"{step}, share of what ifma can gain", share, _SHARE, timed=True)
    return [_gain(watch, step, "Fenchel, gmp", "Fenchel, ifma", bound) for step, bound in bounds.items()]


def measure(quick: bool) -> Figures:
    """Measure all of them, in turn."""
    assert phe.util.HAVE_GMP, "phe without gmpy2 is eight times slower, and no peer"
    cores = sorted(os.sched_getaffinity(0))
    key = generate(BITS)
    best: Backend = "ifma" if is_available() else "gmp"
    x = np.random.default_rng(0).uniform(-1000, 1000, (24 if quick else 128) * LAYOUT.slots)
    count = len(x) // LAYOUT.slots
    wide_name = f"Fenchel, {best}, 2 cores"
    wide = _Timed.checked(Packed(wide_name, key_owner(key, best), count), x)  # with two threads
    with _cores({cores[0]}):
        started = time.perf_counter()
        owner = key_owner(key, best)
        table_seconds = time.perf_counter() - started
        others, lines = peers(quick=quick)
        backends: list[Scheme] = [Packed("Fenchel, gmp", owner if best == "gmp" else key_owner(key, "gmp"), count)]
        if best == "ifma":
            backends.append(Packed("Fenchel, ifma", owner, count))
        packed_phe = Packed("phe, packed as here", key_owner(key, "phe"), 4)
        timed = [_Timed.checked(each, x) for each in (PheNumbers(key), packed_phe, *others, *backends)]
        # Its key has no factors of p-1, so no tables: it only decrypts.
        variable = CrtOwner(key, "gmp", _VariableTime(PrivateKey(key.p, key.q)))
        fickle = _Timed.checked(Packed("Fenchel, gmp by powmod", variable, count), x)
        processor = _Processor(key, count)
    watch = _Stopwatch()
    for turn in range(3 if quick else 15):
        progress(f"turn {turn + 1}")
        with _cores({cores[0]}):
            for each in timed:
                each.turn(watch)
            fickle.turn(watch, ("decrypt",))
            processor.turn(watch)
        if len(cores) > 1:
            with _cores(set(cores[:2])):
                wide.turn(watch, ("encrypt", "decrypt"))
    best_name = f"Fenchel, {best}"
    gains = [_gain(watch, "decrypt", "Fenchel, gmp", "Fenchel, gmp by powmod")]
    limits = Limits(quick=quick)
    times_phe = {
        step: LAYOUT.slots * watch.gain(f"phe, number by number {step}", f"{best_name} {step}") for step in _STEPS
    }
    for step, times in times_phe.items():
        bound = _DECRYPT_GMP if (step, best) == ("decrypt", "gmp") else _TIMES_PHE[step]
        limits.at_least(f"{step}, times as fast as phe, {best}", times, bound, timed=True)
    if best == "ifma":
        gains = [*_gains_of_ifma(watch, limits), *gains]
    if len(cores) > 1:
        gains += [_gain(watch, step, best_name, wide_name) for step in ("encrypt", "decrypt")]
    bytes_a_value = len(wide.vector.to_wire().data) / len(x)
    limits.at_most("bytes / bytes of float64", bytes_a_value / 8, 1.3)
    return {
        "rows": [each.row(watch) for each in timed],
        "processor": processor.rows(watch),
        "gains": gains,
        "limits": limits.verdicts,
        **lines,
        **{f"ratio_{step}": round(times, 1) for step, times in times_phe.items()},
        "bytes_a_value": round(bytes_a_value, 2),
        "ratio_bytes_to_float64": round(bytes_a_value / 8, 3),
        "tables_mb": round(owner.arithmetic.table_bytes / 1e6) if isinstance(owner, CrtOwner) else 0,
        "tables_seconds": round(table_seconds, 2),
        "backend": best,
        "libraries": f"gmpy2 {gmpy2.version()} with {gmpy2.mp_version()}, phe {metadata.version('phe')}",
    }


if __name__ == "__main__":
    run(__doc__ or "", measure)
