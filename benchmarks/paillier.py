"""Values a second that are encrypted, decrypted and added, on one core, against phe with gmpy2.

A key of 3072 bits and slots of 40 bits, 76 values in a ciphertext; phe encrypts number by number, and once more with
packed plaintexts (``algorithm.encryption.implementation: phe``). All use the same key and take turns. Ratios are those
of the medians. Limits: encrypting 1000 times as fast as phe, decrypting 60 times, adding 80 times, and a message of at
most 1.3 times the bytes of float64. With ``--quick`` it may be a fifth as fast.
"""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import metadata

import gmpy2
import numpy as np
import phe.util
from phe.paillier import PaillierPrivateKey, PaillierPublicKey

from benchmarks.limits import Limits
from benchmarks.program import Figures, progress, run
from fenchel.client.paillier.cipher import Paillier
from fenchel.client.paillier.crt import CrtOwner
from fenchel.client.paillier.gmp import GmpPrime
from fenchel.client.paillier.key import generate
from fenchel.client.paillier.phe import PheOwner
from fenchel.common.crypto.packing import Layout
from fenchel.common.wire.payload import encode

_BITS = 3072
_LAYOUT = Layout(slot_bits=40, fraction_bits=24, slots=76, value_bits=36)
_PRECISION = 2.0**-24
_LIMITS = {"encrypt": 1000, "decrypt": 60, "add": 80}


@dataclass
class _Stopwatch:
    """Seconds a value, measured again and again."""

    seconds: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))

    def time(self, what: str, values: int, work: Callable[[], object]) -> None:
        started = time.perf_counter()
        work()
        self.seconds[what].append((time.perf_counter() - started) / values)

    def rate(self, what: str) -> float:
        return 1 / statistics.median(self.seconds[what])

    def row(self, what: str, peer: str, limit: str) -> dict[str, str]:
        return {
            "what": what,
            "phe values/s": f"{self.rate(peer):,.0f}",
            "phe, packed values/s": f"{self.rate(f'packed {what}'):,.0f}",
            "fenchel values/s": f"{self.rate(what):,.0f}",
            "ratio": f"{self.rate(what) / self.rate(peer):,.1f}",
            "limit": limit,
        }


def measure(quick: bool) -> Figures:
    """Measure both, in turn."""
    assert phe.util.HAVE_GMP, "phe without gmpy2 is eight times slower, and no peer"
    key = generate(_BITS)
    public = PaillierPublicKey(key.public.n)
    private = PaillierPrivateKey(public, key.p, key.q)
    started = time.perf_counter()
    owner = CrtOwner(key, "gmp", GmpPrime)
    table_seconds = time.perf_counter() - started
    ours = Paillier(owner)
    x = np.random.default_rng(0).uniform(-1000, 1000, 3_000 if quick else 10_000)
    vector = ours.encrypt(x, _LAYOUT)
    few = x[:10].tolist()
    numbers = [public.encrypt(value, precision=_PRECISION) for value in few]
    packed = Paillier(PheOwner(key))
    short = x[: 3 * _LAYOUT.slots]
    theirs = packed.encrypt(short, _LAYOUT)
    pairs = 1000 * list(zip(numbers, numbers, strict=True))
    watch = _Stopwatch()
    for turn in range(5 if quick else 15):
        progress(f"turn {turn + 1}")
        watch.time("phe encrypt", len(few), lambda: [public.encrypt(each, precision=_PRECISION) for each in few])
        watch.time("encrypt", len(x), lambda: ours.encrypt(x, _LAYOUT))
        watch.time("phe decrypt", len(few), lambda: [private.decrypt(each) for each in numbers])
        watch.time("decrypt", len(x), lambda: ours.decrypt(vector))
        watch.time("phe add", len(pairs), lambda: [a + b for a, b in pairs])
        watch.time("packed encrypt", len(short), lambda: packed.encrypt(short, _LAYOUT))
        watch.time("packed decrypt", len(short), lambda: packed.decrypt(theirs))
        watch.time("packed add", 200 * len(short), lambda: [theirs + theirs for _ in range(200)])
        watch.time("add", 20 * len(x), lambda: [vector + vector for _ in range(20)])
    np.testing.assert_allclose(ours.decrypt(vector + vector), 2 * x, rtol=0, atol=2 * _PRECISION)
    bytes_a_value = encode({"x": vector.to_wire()}).size / len(x)
    limits = Limits(quick=quick)
    for what, limit in _LIMITS.items():
        limits.at_least(f"{what}, times as fast", watch.rate(what) / watch.rate(f"phe {what}"), limit, timed=True)
    limits.at_most("bytes / bytes of float64", bytes_a_value / 8, 1.3)
    return {
        "rows": [watch.row(what, f"phe {what}", str(limit)) for what, limit in _LIMITS.items()],
        "limits": limits.verdicts,
        **{f"ratio_{what}": round(watch.rate(what) / watch.rate(f"phe {what}"), 1) for what in _LIMITS},
        "bytes_a_value": round(bytes_a_value, 2),
        "ratio_bytes_to_float64": round(bytes_a_value / 8, 3),
        "tables_mb": round(owner.table_bytes / 1e6),
        "tables_seconds": round(table_seconds, 2),
        "libraries": f"gmpy2 {gmpy2.version()} with {gmpy2.mp_version()}, phe {metadata.version('phe')}",
    }


if __name__ == "__main__":
    run(__doc__ or "", measure)
