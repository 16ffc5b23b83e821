"""HyFDCA on MNIST at full size: seconds, bytes and memory of an encrypted round, beside plain phe.

60,000 images of 784 pixels, even against odd, 4 quadrants by 5 sample groups: 20 clients. All dual variables in
every round, a key of 3072 bits. Limit: 60 s a round on two cores. What phe would take is measured on a few numbers
and scaled. Writes the tables and the figure of ``docs/results/hyfdca.md``; ``--quick`` takes 3,000 images and
two rounds, and writes nothing. Needs MNIST (``fenchel data fetch mnist``, or ``FENCHEL_DATA``).
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import phe.util
from phe.paillier import generate_paillier_keypair

from benchmarks.limits import Limits
from benchmarks.page import made_by, put
from benchmarks.processes import Watched, up
from benchmarks.program import Figures, markdown, progress, run
from fenchel.report.render.figure import draw

_SETTINGS = "fenchel/experiments/hyfdca/mnist-encrypted.yaml"
_PAGE = Path("docs/results/hyfdca.md")
_PICTURE = _PAGE.with_name("hyfdca-mnist.png")
_PROCESSES = 2
_QUADRANTS = 4
_BITS = 3072
_CIPHERTEXT_BYTES = 2 * _BITS // 8
_FRACTION_BITS = 40
_LIMIT_SECONDS = 60
_SHOWN = (1, 2, 3, 5, 10, 15, 20, 25, 30, 40, 50, 60, 80, 100, 120)


@dataclass(frozen=True)
class PerNumber:
    """What phe takes for one number, in seconds of one core."""

    encrypt: float
    decrypt: float
    add: float


@dataclass(frozen=True)
class Counts:
    """How many numbers a round encrypts, decrypts and adds up."""

    sent: int
    """Numbers that clients encrypt: an inner product and a change for each of their samples. They decrypt as many."""
    added: int  # additions on the server: S N (Q - 1) + N Q (specification, section 7), with S = 1

    @classmethod
    def of(cls, samples: int) -> Counts:
        """Return the counts for so many images, each held by four clients."""
        return cls(2 * _QUADRANTS * samples, samples * (_QUADRANTS - 1) + samples * _QUADRANTS)


def measure(quick: bool) -> Figures:
    """Measure an encrypted run, the same without encryption, and phe."""
    samples, rounds, plain_rounds = (3_000, 2, 2) if quick else (60_000, 12, 120)
    size = [f"data.samples={samples}"] if quick else []
    peer = _phe(numbers=5 if quick else 20, turns=3 if quick else 7)
    with tempfile.TemporaryDirectory() as temporary:
        runs = Path(temporary)
        encrypted = _run("encrypted", rounds, size, runs)
        plain = _run("plaintext", plain_rounds, [*size, "algorithm.privacy=none"], runs)
        rows = _compared(encrypted, Counts.of(samples), peer)
        if not quick:
            draw([plain.run, encrypted.run], _PICTURE)
            tables = {"compared": rows, "split": _split(encrypted)}
            blocks = {name: markdown(table) for name, table in (tables | {"gaps-mnist": _gaps(plain)}).items()}
            made = made_by("hyfdca_mnist", "on two cores of a shared machine")
            blocks["compared"] = f"{made}\n\n{blocks['compared']}"
            for name, block in blocks.items():
                put(_PAGE, name, block)
        seconds = encrypted.column("seconds")
        limits = Limits(quick=quick)
        limits.at_most("encrypted round, s", float(seconds.max()), _LIMIT_SECONDS, timed=True)
        return {
            "rows": rows,
            "limits": limits.verdicts,
            "round_seconds": f"{seconds.min():.1f} to {seconds.max():.1f}",
            "plaintext_round_seconds": round(float(np.median(plain.column("seconds"))), 3),
            "largest_difference_of_the_gap": f"{_difference(encrypted, plain):.1e}",
            "seconds_in_all": round(encrypted.seconds),
            "peak_megabytes_of_the_server_and_each_client_process": [
                round(peak / 1e6) for peak in (encrypted.server, *encrypted.clients)
            ],
            "phe": f"{metadata.version('phe')}, seconds for a number: {peer}",
        }


def _run(name: str, rounds: int, overrides: list[str], runs: Path) -> Watched:
    progress(f"{rounds} rounds, {name}")
    overrides = [f"name={name}", f"rounds={rounds}", "evaluation.every=1", *overrides]
    return up(_SETTINGS, overrides, processes=_PROCESSES, runs=runs / name)


def _phe(numbers: int, turns: int) -> PerNumber:
    """Measure phe on a few numbers, with the precision that the run has."""
    assert phe.util.HAVE_GMP, "phe without gmpy2 is eight times slower, and no peer"
    progress("phe")
    public, private = generate_paillier_keypair(n_length=_BITS)
    precision = 2.0**-_FRACTION_BITS
    x = np.random.default_rng(0).uniform(-1, 1, numbers).tolist()
    encrypted = [public.encrypt(value, precision=precision) for value in x]
    pairs = 200 * list(zip(encrypted, encrypted, strict=True))
    return PerNumber(
        _seconds(turns, lambda: [public.encrypt(value, precision=precision) for value in x]) / numbers,
        _seconds(turns, lambda: [private.decrypt(each) for each in encrypted]) / numbers,
        _seconds(turns, lambda: [a + b for a, b in pairs]) / len(pairs),
    )


def _seconds(turns: int, work: Callable[[], object]) -> float:
    spent = []
    for _ in range(turns):
        started = time.perf_counter()
        work()
        spent.append(time.perf_counter() - started)
    return statistics.median(spent)


def _compared(watched: Watched, counts: Counts, peer: PerNumber) -> list[dict[str, Any]]:
    """Fenchel's round beside the same numbers one by one under phe."""
    work = watched.work()
    encryption, decryption = work["encryption"], work["decryption"]
    up_bytes = float(np.mean(watched.column("bytes_up")))
    down_bytes = float(np.mean(watched.column("bytes_down")))
    seconds = float(np.median(watched.column("seconds")))
    theirs = counts.sent * (peer.encrypt + peer.decrypt)
    one_way = counts.sent * _CIPHERTEXT_BYTES
    return [
        _row("encryption, s", encryption, counts.sent * peer.encrypt),
        _row("decryption, s", decryption, counts.sent * peer.decrypt),
        _row("round, s", seconds, (theirs + counts.added * peer.add) / _PROCESSES),
        _row("MB to server", up_bytes / 1e6, one_way / 1e6),
        _row("MB to clients", down_bytes / 1e6, one_way / 1e6),
    ]


def _row(what: str, ours: float, theirs: float) -> dict[str, str]:
    return {
        "in a round": what,
        "Fenchel": f"{ours:,.1f}",
        "plain phe, scaled": f"{theirs:,.0f}",
        "ratio": f"{theirs / ours:,.0f}",
    }


def _difference(encrypted: Watched, plain: Watched) -> float:
    """Return how far the gap of the encrypted run ever is from that of the run in plaintext.

    The last rows are left out: they have the gap after the last round, all others that before their round.
    """
    gaps, others = encrypted.column("gap"), plain.column("gap")
    shared = min(len(gaps), len(others)) - 1
    return float(np.abs(gaps[:shared] - others[:shared]).max())


def _split(watched: Watched) -> list[dict[str, str]]:
    """Where the seconds of a round go: the clients' work is done by two processes at the same time."""
    seconds = float(np.mean(watched.column("seconds")))
    parts = {words: spent / _PROCESSES for words, spent in watched.work().items()}
    parts["server, network, waiting"] = seconds - sum(parts.values())
    return [{"part": words, "s": f"{spent:.2f}"} for words, spent in parts.items()]


def _gaps(plain: Watched) -> list[dict[str, str]]:
    gaps, objectives = plain.column("gap"), plain.column("primal_objective")
    accuracies = plain.column("test_accuracy")
    return [
        {
            "rounds": str(t),
            "gap": f"{gaps[t]:.2g}",
            "objective": f"{objectives[t]:.5f}",
            "test accuracy": f"{accuracies[t - 1]:.2%}",
        }
        for t in _SHOWN
        if t < len(gaps)
    ]


if __name__ == "__main__":
    run(__doc__ or "", measure)
