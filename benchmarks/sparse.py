"""A sparse vector to bytes and back, on one core: 10 million float32, of which a part is given.

Dense-equivalent speed is the 40 MB of the whole vector over the time that its sparse form takes. The limit is
1 GB/s each way, 40 ms. The peer is ``scipy.sparse.save_npz`` without compression, which is a zip file of
indices and values; both take turns. Times are processor time, and ratios those of the medians. For a seeded
support both sides look at every entry: the sender checks what the receiver will draw. Choosing the largest
entries (top-k) is timed against ``numpy.argpartition``, which leaves ties to chance. ``--quick`` takes fewer
turns, and a fifth of the speed.
"""

from __future__ import annotations

import io
import statistics
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import scipy.sparse as sp

from benchmarks.limits import Limits
from benchmarks.program import Figures, progress, run
from fenchel.common.compression.sparsification import kept, top_k
from fenchel.common.wire.index_sets import seeded_support
from fenchel.common.wire.outline import outline
from fenchel.common.wire.payload import encode
from fenchel.common.wire.values import SparseVector
from fenchel.proto import fenchel_pb2 as pb

_ENTRIES = 10_000_000
_LIMIT = 1.0  # GB/s
_SHARES = (0.001, 0.01, 0.1, 0.5)


@dataclass
class _Stopwatch:
    """Seconds of processor time, measured again and again."""

    seconds: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))

    def time(self, what: str, work: Callable[[], object]) -> None:
        started = time.thread_time()
        work()
        self.seconds[what].append(time.thread_time() - started)

    def median(self, what: str) -> float:
        return statistics.median(self.seconds[what])


@dataclass(frozen=True)
class _Case:
    """A sparse vector, and the two ways to write it."""

    name: str
    vector: SparseVector
    dense_bytes: int

    def row(self, turns: int, limits: Limits) -> dict[str, str]:
        watch = _Stopwatch()
        encoded = encode({"x": self.vector})
        body = encoded.joined()
        matrix = sp.csr_array(
            (self.vector.values, self.vector.indices, [0, len(self.vector.indices)]), shape=(1, self.vector.size)
        )
        stored = _stored(matrix)
        for _ in range(turns):
            watch.time("encode", lambda: encode({"x": self.vector}).joined())
            watch.time("decode", lambda: _received(encoded.descriptor, body))
            watch.time("save_npz", lambda: _stored(matrix))
            watch.time("load_npz", lambda: sp.load_npz(io.BytesIO(stored)))
        back = _received(encoded.descriptor, body)
        assert np.array_equal(back.indices, self.vector.indices)
        assert back.values.tobytes() == self.vector.values.tobytes()
        speeds = {what: self.dense_bytes / watch.median(what) / 1e9 for what in watch.seconds}
        for way in ("encode", "decode"):
            limits.at_least(f"{self.name}: {way}, GB/s", speeds[way], _LIMIT, timed=True)
        return {
            "given": self.name,
            "encoding": pb.SupportEncoding.Name(encoded.descriptor.arrays[0].sparse.encoding),
            "bytes": f"{len(body):,}",
            "of npz": f"{len(body) / len(stored):.2f}",
            "encode ms": f"{1e3 * watch.median('encode'):.1f}",
            "decode ms": f"{1e3 * watch.median('decode'):.1f}",
            "encode GB/s": f"{speeds['encode']:.2f}",
            "decode GB/s": f"{speeds['decode']:.2f}",
            "slower way to limit": f"{min(speeds['encode'], speeds['decode']) / _LIMIT:.2f}",
            "encode to save_npz": f"{speeds['encode'] / speeds['save_npz']:.1f}",
            "decode to load_npz": f"{speeds['decode'] / speeds['load_npz']:.1f}",
        }


def measure(quick: bool) -> Figures:
    """Measure each share of entries, as the largest and as seeded ones."""
    vector = np.random.default_rng(0).standard_normal(_ENTRIES).astype(np.float32)
    rows = []
    figures: Figures = {}
    watch = _Stopwatch()
    limits = Limits(quick=quick)
    turns = 5 if quick else 15
    for share in _SHARES:
        progress(f"{share:.1%}")
        k = kept(share, _ENTRIES)
        for _ in range(turns):
            watch.time(f"{k}", lambda k=k: top_k(vector, k))  # type: ignore[misc]
            watch.time(f"{k} peer", lambda k=k: np.argpartition(np.abs(vector), _ENTRIES - k))  # type: ignore[misc]
        figures[f"top_k_{share:.1%}_ms"] = round(1e3 * watch.median(f"{k}"), 1)
        figures[f"top_k_{share:.1%}_ratio_to_argpartition"] = round(watch.median(f"{k} peer") / watch.median(f"{k}"), 2)
        for name, indices, seed in (
            (f"{share:.1%}, largest", top_k(vector, k), None),
            (f"{share:.1%}, seeded", seeded_support(7, _ENTRIES, k), 7),
        ):
            thin = SparseVector(indices, vector[indices], _ENTRIES, seed)
            rows.append(_Case(name, thin, vector.nbytes).row(turns, limits))
    every = SparseVector(np.arange(_ENTRIES), vector, _ENTRIES)
    rows.append(_Case("all", every, vector.nbytes).row(turns, limits))
    return {"rows": rows, "limits": limits.verdicts, **figures}


def _received(descriptor: pb.Payload, body: bytes) -> SparseVector:
    """Return the vector as a receiver finds it, all checks done."""
    back = outline(descriptor, len(body)).decode(body)["x"]
    assert isinstance(back, SparseVector)
    return back


def _stored(matrix: sp.csr_array) -> bytes:
    file = io.BytesIO()
    sp.save_npz(file, matrix, compressed=False)
    return file.getvalue()


if __name__ == "__main__":
    run(__doc__ or "", measure)
