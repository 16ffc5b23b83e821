"""HyFDCA on News20 (1.36 million features): seconds, bytes and memory, in plaintext and encrypted.

The values of each message are dealt to the clients of its group (ragged partition), 3 by 3 and 5 by 5. Real server
and client processes over TLS, keys of 3072 bits. Writes ``docs/results/hyfdca-news20.md`` and its figure, in
about 15 minutes on two cores; ``--quick`` does two rounds of each kind and writes nothing. Needs News20
(``fenchel data fetch news20``, or ``FENCHEL_DATA``, which may also hold ``news20/news20_binary.npz``: the set
rebuilt from the original messages).
"""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.machine import description
from benchmarks.processes import Watched, up
from benchmarks.program import Figures, markdown, progress, run
from fenchel.common.arrays import Vector
from fenchel.common.data.catalogue import DATA_VARIABLE
from fenchel.report.render.figure import draw

_PLAIN = "experiments/hyfdca/news20.yaml"
_ENCRYPTED = "experiments/hyfdca/news20-encrypted.yaml"
_PAGE = Path("docs/results/hyfdca-news20.md")
_FEATURES = 1_355_191
_FIVE = ("clients=25", "data.partition={kind: ragged, sample_groups: 5, feature_groups: 5}")


@dataclass(frozen=True)
class Case:
    """A run to be measured."""

    slug: str  # name of the run
    name: str  # what it is called in the table
    settings: str  # its settings file
    rounds: int  # how many rounds it does
    processes: int  # client processes: one for each client, where memory is asked for; else as many as there are cores
    overrides: tuple[str, ...] = ()  # what differs from the file


_SPARSE = (
    "algorithm.preset=exact",
    "algorithm.picks=33",
    "algorithm.picking=common",
    "algorithm.messages=sparse",
    "algorithm.check_cells=false",
    "evaluation.every=10",
)
_CASES = (
    Case("line-search", "line search, H = all", _PLAIN, 300, 2),
    Case("safe", "safe, H = all", _PLAIN, 300, 9, ("algorithm.preset=safe",)),
    Case("exact-33", "exact, H = 33", _PLAIN, 300, 2, ("algorithm.preset=exact", "algorithm.picks=33")),
    Case("line-search-5-by-5", "line search, H = all, 5 by 5", _PLAIN, 100, 2, _FIVE),
    Case("encrypted", "encrypted, line search, H = all", _ENCRYPTED, 6, 2),
    Case("alone", "the same, a process for each client", _ENCRYPTED, 3, 9),
    Case("encrypted-5-by-5", "encrypted, line search, H = all, 5 by 5", _ENCRYPTED, 3, 2, _FIVE),
    Case("sparse", "encrypted, exact, H = 33, sparse and common", _ENCRYPTED, 300, 2, _SPARSE),
)


def measure(quick: bool) -> Figures:
    """Do all runs; or two rounds of those with nine clients in two processes."""
    cases = [
        Case(case.slug, case.name, case.settings, 2, 2, (*case.overrides, "algorithm.check_cells=false"))
        for case in (_CASES[0], _CASES[4])
    ]
    with tempfile.TemporaryDirectory() as temporary:
        rebuilt = _rebuild(Path(temporary) / "data")
        environment = {DATA_VARIABLE: str(rebuilt)} if rebuilt else {}
        done = []
        for case in cases if quick else _CASES:
            progress(f"{case.name}: {case.rounds} rounds")
            overrides = [f"name={case.slug}", f"rounds={case.rounds}", *case.overrides]
            folder = Path(temporary) / f"runs-{case.slug}"
            watched = up(case.settings, overrides, processes=case.processes, runs=folder, environment=environment)
            done.append((case, watched))
        rows = [_row(case, watched) for case, watched in done]
        if not quick:
            _PAGE.parent.mkdir(exist_ok=True)
            draw([watched.run for _, watched in done[:3]], _PAGE.with_suffix(".png"))
            _PAGE.write_text(_page(done, rows, "the rebuilt news20.binary" if rebuilt else "news20.binary"))
    return {"rows": rows}


def _rebuild(folder: Path) -> Path | None:
    """Write the rebuilt set in the form of ``fenchel data import``, if it is what there is.

    Its archive holds the columns of each row as differences (``dcol``), and no values: those of a row are all
    1 / sqrt(their number).
    """
    archive = Path(os.environ.get(DATA_VARIABLE, "")) / "news20" / "news20_binary.npz"
    if not archive.is_file():
        return None
    with np.load(archive, allow_pickle=False) as arrays:
        starts, columns, labels = arrays["indptr"], np.cumsum(arrays["dcol"], dtype=np.int32), arrays["y"]
    values = np.diff(starts)
    data = np.repeat(1 / np.sqrt(np.maximum(values, 1)), values)
    target = folder / "news20" / "data.npz"
    target.parent.mkdir(parents=True)
    shape = np.array([len(labels), _FEATURES])
    np.savez(target, data=data, indices=columns, indptr=starts, shape=shape, y=labels)
    return folder


def _column(watched: Watched, name: str) -> Vector:
    column: Vector = watched.run.metrics_table[name].to_numpy()
    return column


def _row(case: Case, watched: Watched) -> dict[str, Any]:
    seconds = _column(watched, "seconds")
    gap = watched.run.figures.get("gap", float("nan"))
    peak = [f"{clients / 1e6:,.0f}" for clients in (min(watched.clients), max(watched.clients))]
    return {
        "run": case.name,
        "rounds": case.rounds,
        "s a round (range)": f"{np.median(seconds):.2f} ({seconds.min():.2f} to {seconds.max():.2f})",
        "MB up, down": ", ".join(f"{_column(watched, name).mean() / 1e6:.1f}" for name in ("bytes_up", "bytes_down")),
        "objective": f"{watched.run.figures['objective']:.5f}",
        "gap": "" if np.isnan(gap) else f"{gap:.2g}",
        "test accuracy": f"{watched.run.figures['test_accuracy']:.2%}",
        "server MB": f"{watched.server / 1e6:,.0f}",
        "client processes, MB each": f"{len(watched.clients)}, {peak[0]} to {peak[1]}",
    }


def _gaps(watched: Watched) -> list[dict[str, str]]:
    gaps, objectives = _column(watched, "gap"), _column(watched, "primal_objective")
    rows = []
    for t in (1, 10, 20, 50, 100, 150, 200, 250, 299):
        lately = slice(max(t - 9, 0), t + 1)
        rows.append(
            {
                "rounds done": str(t),
                "gap": f"{gaps[t]:.4f}",
                "smallest of the last 10": f"{gaps[lately].min():.4f}",
                "largest": f"{gaps[lately].max():.4f}",
                "objective": f"{objectives[t]:.4f}",
            }
        )
    return rows


def _clients_work(watched: Watched) -> str:
    """What all clients did in a round, in seconds."""
    calls, rounds = watched.run.calls_table, watched.run.metrics_table.num_rows
    numbers = calls["round"].to_numpy()
    inside = (numbers >= 1) & (numbers <= rounds)
    columns = {
        "encrypt_s": "encryption",
        "decrypt_s": "decryption",
        "compute_s": "computation",
        "journal_s": "journals",
    }
    spent = {words: float(np.nansum(calls[column].to_numpy()[inside])) / rounds for column, words in columns.items()}
    return ", ".join(f"{words} {seconds:.2f} s" for words, seconds in spent.items() if seconds)


def _around(watched: Watched) -> float:
    """Seconds that the command took beside the rounds and the evaluations between them."""
    inside = _column(watched, "seconds").sum() + _column(watched, "evaluation_s").sum()
    return float(watched.seconds - inside)


def _page(done: list[tuple[Case, Watched]], rows: list[dict[str, Any]], what: str) -> str:
    plain, encrypted, alone = done[0][1], done[4][1], done[5][1]
    calls = plain.run.calls_table
    # A proposal is a client's contribution and the two terms of the line search.
    features = calls["bytes_up"].to_numpy()[calls["phase"].to_numpy() == "propose"] / 8 - 2
    return f"""# HyFDCA on News20

{what[0].upper() + what[1:]}: 19,996 messages, of which 15,997 to learn from, {_FEATURES:,} features, 9.1 million
values that are not zero. Hinge loss, l2 = 1e-5. The values of each message are dealt to the clients of its group: 3 by
3, that is 9 clients with 5,332 messages each, and 5 by 5, that is 25 clients with 3,200. Keys of 3072 bits. Settings:
`{_PLAIN}` and `{_ENCRYPTED}`;
the table names what differs.

{markdown(rows)}

MB are of a round, all clients together. Objective, gap and accuracy are those at the end. Memory is the peak of a
process; the clients of a run share its client processes.

## Time

In plaintext the clients together need in a round:
{_clients_work(plain)}.
The rest is moving {_column(plain, "bytes_up").mean() / 1e6:.0f} MB to the server and as much back, over TLS on the same
two cores. Encrypted it is:
{_clients_work(encrypted)}.
What is encrypted has the size of the samples, of which there are few; features travel in the clear.

A client's contribution to the model is a dense vector over the features that it holds: {features.min() / 1e3:,.0f} to
{features.max() / 1e3:,.0f} thousand of them with 9 clients, {8 * features.max() / 1e6:.1f} MB (float64) each way and
round.

Before and after the rounds the command takes {_around(plain):.0f} s in plaintext and {_around(encrypted):.0f} s
encrypted. The difference is the making of the key, the squared norms of rows, the last gap, and pseudonyms of all
values, by which the server finds out that none has two holders (`check_cells`).

## Memory

Every process of this simulation loads the whole data set and divides it, to keep its shards. That is most of its
memory, whatever the algorithm: with a process for each client, one took {max(alone.clients) / 1e6:.0f} MB at most under
encryption. A client also keeps its answers since the server's last checkpoint, four megabytes a round, so five
clients in a process take more the more rounds there are between checkpoints. The server evaluates the model on all
data, and holds for each client the positions of its features and its last contribution.

## Convergence

Line search, H = all, in plaintext, 3 by 3:

{markdown(_gaps(plain))}

The gap falls by orders of magnitude, and not evenly. With l2 this small (l2 N is 0.16) steps of all samples at once
are much too long, and the line search shortens them, in every other round to a few thousandths. `safe` shortens every
step as far as the worst case asks for, and is slow. `exact` with few picks has no such brake: it comes nearer, and is
thrown back now and then.

![Objective, accuracy and gap: line search, safe, exact with 33 picks](hyfdca-news20.png)

Made by `python -m benchmarks.hyfdca_news20` on two cores of a shared machine: {description()}.
"""


if __name__ == "__main__":
    run(__doc__ or "", measure)
