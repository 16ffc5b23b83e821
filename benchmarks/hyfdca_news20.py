"""HyFDCA on News20 (1.36 million features): seconds, bytes and memory, in plaintext and encrypted.

The values of each message are dealt to the clients of its group (ragged partition), 3 by 3 and 5 by 5. Real server
and client processes over TLS, keys of 3072 bits. Writes the tables and the figure of
``docs/results/hyfdca.md``, in about 15 minutes on two cores; ``--quick`` does two rounds of each kind and
writes nothing. Needs News20 (``fenchel data fetch news20``, or ``FENCHEL_DATA``, which may also hold
``news20/news20_binary.npz``: the set rebuilt from the original messages).
"""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.page import made_by, put
from benchmarks.processes import Watched, up
from benchmarks.program import Figures, markdown, progress, run
from fenchel.common.data.catalogue import DATA_VARIABLE
from fenchel.report.render.figure import draw

_PLAIN = "fenchel/experiments/hyfdca/news20.yaml"
_ENCRYPTED = "fenchel/experiments/hyfdca/news20-encrypted.yaml"
_PAGE = Path("docs/results/hyfdca.md")
_PICTURE = _PAGE.with_name("hyfdca-news20.png")
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
    Case("line-search", "line search", _PLAIN, 300, 2),
    Case("safe", "safe", _PLAIN, 300, 9, ("algorithm.preset=safe",)),
    Case("exact-33", "exact, H=33", _PLAIN, 300, 2, ("algorithm.preset=exact", "algorithm.picks=33")),
    Case("line-search-5-by-5", "line search, 5 by 5", _PLAIN, 100, 2, _FIVE),
    Case("encrypted", "encrypted, line search", _ENCRYPTED, 6, 2),
    Case("alone", "the same, nine client processes", _ENCRYPTED, 3, 9),
    Case("encrypted-5-by-5", "encrypted, line search, 5 by 5", _ENCRYPTED, 3, 2, _FIVE),
    Case("sparse", "encrypted, exact, H=33, sparse and common", _ENCRYPTED, 300, 2, _SPARSE),
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
            draw([watched.run for _, watched in done[:3]], _PICTURE)
            made = made_by("hyfdca_news20", "on two cores of a shared machine")
            put(_PAGE, "runs", f"{made}\n\n{markdown(rows)}")
            put(_PAGE, "gaps-news20", markdown(_gaps(done[0][1])))
        plain, encrypted = done[0][1], done[1 if quick else 4][1]
        return {
            "rows": rows,
            "rebuilt": bool(rebuilt),
            "thousand_features_of_a_client": _features(plain),
            **{
                f"seconds of {name}": watched.work() | {"before and after the rounds": _around(watched)}
                for name, watched in (("a plaintext round", plain), ("an encrypted round", encrypted))
            },
        }


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


def _row(case: Case, watched: Watched) -> dict[str, Any]:
    seconds = watched.column("seconds")
    gap = watched.run.figures.get("gap", float("nan"))
    sent = [f"{watched.column(name).mean() / 1e6:.1f}" for name in ("bytes_up", "bytes_down")]
    peak = [f"{clients / 1e6:,.0f}" for clients in (min(watched.clients), max(watched.clients))]
    return {
        "run": case.name,
        "rounds": case.rounds,
        "s a round (range)": f"{np.median(seconds):.2f} ({seconds.min():.2f}…{seconds.max():.2f})",
        "MB each way": ", ".join(dict.fromkeys(sent)),
        "objective": f"{watched.run.figures['objective']:.5f}",
        "gap": "" if np.isnan(gap) else f"{gap:.2g}",
        "test accuracy": f"{watched.run.figures['test_accuracy']:.2%}",
        "server MB": f"{watched.server / 1e6:,.0f}",
        "client processes: MB each": f"{len(watched.clients)}: {peak[0]}…{peak[1]}",
    }


def _gaps(watched: Watched) -> list[dict[str, str]]:
    gaps, objectives = watched.column("gap"), watched.column("primal_objective")
    rows = []
    for t in (1, 10, 20, 50, 100, 150, 200, 250, 299):
        lately = slice(max(t - 9, 0), t + 1)
        rows.append(
            {
                "rounds": str(t),
                "gap": f"{gaps[t]:.4f}",
                "smallest of the last 10": f"{gaps[lately].min():.4f}",
                "largest": f"{gaps[lately].max():.4f}",
                "objective": f"{objectives[t]:.4f}",
            }
        )
    return rows


def _features(watched: Watched) -> str:
    """How many features the clients hold, in thousands: a proposal is a contribution and two terms more."""
    calls = watched.run.calls_table
    features = calls["bytes_up"].to_numpy()[calls["phase"].to_numpy() == "propose"] / 8 - 2
    return f"{features.min() / 1e3:,.0f} to {features.max() / 1e3:,.0f}"


def _around(watched: Watched) -> float:
    """Seconds that the command took beside the rounds and the evaluations between them."""
    inside = watched.column("seconds").sum() + watched.column("evaluation_s").sum()
    return float(watched.seconds - inside)


if __name__ == "__main__":
    run(__doc__ or "", measure)
