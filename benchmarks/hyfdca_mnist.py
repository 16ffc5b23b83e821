"""HyFDCA on MNIST at full size: seconds, bytes and memory of an encrypted round, beside plain phe.

60,000 images of 784 pixels, even against odd, 4 quadrants by 5 sample groups: 20 clients. All dual variables in
every round, a key of 3072 bits. Limit: 60 s a round on two cores. What phe would take is measured on a few
numbers and scaled. Writes ``docs/results/hyfdca-mnist.md`` and its figure; ``--quick`` takes 3,000 images and two
rounds, and writes nothing. Needs MNIST (``fenchel data fetch mnist``, or ``FENCHEL_DATA``).
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
from benchmarks.machine import description
from benchmarks.processes import Watched, up
from benchmarks.program import Figures, markdown, progress, run
from fenchel.common.arrays import Vector
from fenchel.report.render.figure import draw
from fenchel.report.run import Run

_SETTINGS = "experiments/hyfdca/mnist-encrypted.yaml"
_PAGE = Path("docs/results/hyfdca-mnist.md")
_PROCESSES = 2
_QUADRANTS = 4
_BITS = 3072
_CIPHERTEXT_BYTES = 2 * _BITS // 8
_FRACTION_BITS = 40
_LIMIT_SECONDS = 60
_SHOWN = (1, 2, 3, 5, 10, 15, 20, 25, 30, 40, 50, 60, 80, 100, 120)

_CLIENT_WORK = {
    "encrypt_s": "encryption",
    "decrypt_s": "decryption",
    "compute_s": "computation",
    "journal_s": "journals",
    "client_decode_s": "reading messages",
    "client_encode_s": "writing messages",
}


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
            _PAGE.parent.mkdir(exist_ok=True)
            draw([plain.run, encrypted.run], _PAGE.with_suffix(".png"))
            _PAGE.write_text(_page(encrypted, plain, rows, peer))
        seconds = _column(encrypted.run, "seconds")
        limits = Limits(quick=quick)
        limits.at_most("encrypted round, s", float(seconds.max()), _LIMIT_SECONDS, timed=True)
        return {
            "rows": rows,
            "limits": limits.verdicts,
            "round_seconds": f"{seconds.min():.1f} to {seconds.max():.1f}",
            "plaintext_round_seconds": round(float(np.median(_column(plain.run, "seconds"))), 3),
            "largest_difference_of_the_gap": f"{_difference(encrypted.run, plain.run):.1e}",
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


def _column(done: Run, name: str) -> Vector:
    column: Vector = done.metrics_table[name].to_numpy()
    return column


def _work(watched: Watched) -> dict[str, float]:
    """Seconds of all clients together in a round, by what they did; evaluation is not among it."""
    calls = watched.run.calls_table
    rounds = watched.run.metrics_table.num_rows
    in_round = (calls["round"].to_numpy() >= 1) & (calls["round"].to_numpy() <= rounds)
    return {
        words: float(np.nansum(calls[column].to_numpy()[in_round])) / rounds for column, words in _CLIENT_WORK.items()
    }


def _compared(watched: Watched, counts: Counts, peer: PerNumber) -> list[dict[str, Any]]:
    """Fenchel's round beside the same numbers one by one under phe."""
    work = _work(watched)
    encryption, decryption = work["encryption"], work["decryption"]
    up_bytes = float(np.mean(_column(watched.run, "bytes_up")))
    down_bytes = float(np.mean(_column(watched.run, "bytes_down")))
    seconds = float(np.median(_column(watched.run, "seconds")))
    theirs = counts.sent * (peer.encrypt + peer.decrypt)
    one_way = counts.sent * _CIPHERTEXT_BYTES
    return [
        _row("encryption, all clients, s", encryption, counts.sent * peer.encrypt),
        _row("decryption, all clients, s", decryption, counts.sent * peer.decrypt),
        _row("seconds of a round, two cores", seconds, (theirs + counts.added * peer.add) / _PROCESSES),
        _row("MB from clients to server", up_bytes / 1e6, one_way / 1e6),
        _row("MB from server to clients", down_bytes / 1e6, one_way / 1e6),
    ]


def _row(what: str, ours: float, theirs: float) -> dict[str, str]:
    return {
        "in a round": what,
        "Fenchel": f"{ours:,.1f}",
        "plain phe, scaled": f"{theirs:,.0f}",
        "ratio": f"{theirs / ours:,.0f}",
    }


def _difference(encrypted: Run, plain: Run) -> float:
    """How far the gap of the encrypted run ever is from that of the run in plaintext."""
    gaps, others = _column(encrypted, "gap"), _column(plain, "gap")
    shared = min(len(gaps), len(others))
    return float(np.abs(gaps[:shared] - others[:shared]).max())


def _split(watched: Watched) -> list[dict[str, str]]:
    """Where the seconds of a round go: the clients' work is done by two processes at the same time."""
    seconds = float(np.mean(_column(watched.run, "seconds")))
    parts = {words: spent / _PROCESSES for words, spent in _work(watched).items()}
    parts["server, network, waiting for the slower process"] = seconds - sum(parts.values())
    return [{"part": words, "s": f"{spent:.2f}", "share": f"{spent / seconds:.1%}"} for words, spent in parts.items()]


def _rounds(watched: Watched) -> list[dict[str, str]]:
    """Each round apart; the time that a ciphertext takes tells how fast the cores were meanwhile."""
    calls, seconds = watched.run.calls_table, _column(watched.run, "seconds")
    numbers = calls["round"].to_numpy()
    rows = []
    for t, spent in enumerate(seconds, 1):
        here = numbers == t
        opened = {name: float(np.nansum(calls[name].to_numpy()[here])) for name in ("decrypt_s", "decryptions")}
        rows.append(
            {
                "round": str(t),
                "s": f"{spent:.1f}",
                "ms to open a ciphertext": f"{1e3 * opened['decrypt_s'] / opened['decryptions']:.2f}",
            }
        )
    return rows


def _gaps(plain: Run) -> list[dict[str, str]]:
    gaps, objectives = _column(plain, "gap"), _column(plain, "primal_objective")
    accuracies = _column(plain, "test_accuracy")
    return [
        {
            "rounds done": str(t),
            "gap": f"{gaps[t]:.2g}",
            "objective": f"{objectives[t]:.5f}",
            "test accuracy": f"{accuracies[t - 1]:.2%}",
        }
        for t in _SHOWN
        if t < len(gaps)
    ]


def _page(encrypted: Watched, plain: Watched, rows: list[dict[str, Any]], peer: PerNumber) -> str:
    seconds, plain_seconds = _column(encrypted.run, "seconds"), _column(plain.run, "seconds")
    calls = encrypted.run.calls_table
    ciphertexts = calls["encryptions"].to_numpy()[calls["phase"].to_numpy() == "inner_product"]
    clients = f"{min(encrypted.clients) / 1e6:.0f} to {max(encrypted.clients) / 1e6:.0f} MB"
    return f"""# HyFDCA on MNIST at full size, encrypted

60,000 images of 784 pixels, even against odd digits, rows of unit length, hinge loss, l2 = 0.001. Four quadrants by
five sample groups: 20 clients, each with 196 pixels of 12,000 images. H = all: every dual variable in every round.
Line search, a key of {_BITS} bits, {_FRACTION_BITS} binary digits after the point. Settings: `{_SETTINGS}`.

**An encrypted round takes {np.median(seconds):.0f} s on two cores** (median; {seconds.min():.1f} to
{seconds.max():.1f} s in {len(seconds)} rounds; the limit is {_LIMIT_SECONDS} s). The same round in plaintext takes
{np.median(plain_seconds):.2f} s ({plain_seconds.min():.2f} to {plain_seconds.max():.2f} s).

{markdown(rows)}

phe {metadata.version("phe")} encrypts number by number, {_CIPHERTEXT_BYTES} bytes each. It was measured on a few
numbers with a key of the same size ({1e3 * peer.encrypt:.1f} ms to encrypt one, {1e3 * peer.decrypt:.1f} ms to
decrypt, {1e6 * peer.add:.0f} µs to add) and **scaled** to the numbers of a round: nobody waited for it. Its seconds of
a round are arithmetic alone, shared evenly by both cores.

## Where the time goes

{_PROCESSES} processes host the 20 clients. Mean of {len(seconds)} rounds:

{markdown(_split(encrypted))}

Round by round; where a ciphertext took longer, the cores were slower or had other work:

{markdown(_rounds(encrypted))}

A client has {int(ciphertexts.max())} ciphertexts in a vector. A round encrypts and opens two vectors of each client
(inner products and changes), and all four holders of an image open the same sums: decryption is what a round costs.
Clients with a core each would need a tenth of these seconds. From the command to its end the
{len(seconds)} rounds took {encrypted.seconds:.0f} s, with the making of the key, the loading of the data, the squared
norms of the rows, and the last measurement of the gap.

Peak memory: server {encrypted.server / 1e6:.0f} MB, the two client processes {clients}, with ten clients each. All of
them hold the whole data set, because this is a simulation on one machine: clients cut their shards out of it, and the
server evaluates the model on it.

## Convergence

In plaintext. The encrypted run has the same gaps; the largest difference in its {len(seconds)} rounds is
{_difference(encrypted.run, plain.run):.1e}.

{markdown(_gaps(plain.run))}

The gap does not fall evenly. Images are alike, so when all dual variables change at once the step is much too long,
and the line search shortens it to as little as a hundredth. The dual objective rises in every round all the same. The
objective of the model swings until most dual variables have settled; from then on it converges fast.

![Objective, accuracy and gap of both runs](hyfdca-mnist.png)

Made by `python -m benchmarks.hyfdca_mnist` on two cores of a shared machine: {description()}.
"""


if __name__ == "__main__":
    run(__doc__ or "", measure)
