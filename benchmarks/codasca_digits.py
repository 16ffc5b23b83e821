"""CODASCA, CODA+, FedAvg and SCAFFOLD on digits with rare positives: test AUC, beside the specification's section 8.

Five clients with one negative and one positive digit each, a network of 32 hidden units, 4096 local steps in rounds
of 1, 8, 32, 128 and 512, five seeds, over real server and client processes with TLS. Writes
section "Digits" of ``docs/results/codasca.md``, and its figure. ``--runs FOLDER`` keeps the runs and reads those
that are there already; ``--at-once N`` does N at the same time; ``--quick`` does two methods with one seed and
writes nothing. Needs torch.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

import fenchel
from benchmarks import codasca_digits_data
from benchmarks.codasca_figure import draw
from benchmarks.codasca_methods import METHODS, algorithm
from benchmarks.experiment import Planned, all_done, command_line, flags
from benchmarks.outcome import Floats, evaluated_in_all, first, mean_and_deviation, megabytes
from benchmarks.page import made_by, put
from benchmarks.program import markdown

_EXPERIMENT = Path("fenchel/experiments/codasca/digits.yaml")
_PAGE = Path("docs/results/codasca.md")
_PICTURE = _PAGE.with_name("codasca-digits.png")
_SEEDS: tuple[int, ...] = (0, 1, 2, 3, 4)
_STEPS = 4096
_STAGE = 1536
_WINDOWS: tuple[int, ...] = (128, 32, 8, 1, 512)
"""Local steps in a round, in the order in which they are done: those that tell most come first."""
_TARGET = 0.97
_AUC = "test_auc"


_STEP_SIZES = {
    "CODASCA": {1: 2.0, 8: 2.0, 32: 2.0, 128: 2.0, 512: 1.0},
    "CODA+": {1: 2.0, 8: 2.0, 32: 2.0, 128: 1.0, 512: 0.3},
    "FedAvg-CE": {1: 1.0, 8: 1.0, 32: 1.0, 128: 1.0, 512: 1.0},
    "SCAFFOLD-CE": {1: 1.0, 8: 1.0, 32: 1.0, 128: 1.0, 512: 1.0},
}
"""By local steps in a round: those that the specification chose."""

_SPECIFIED = {
    method: dict(zip(sorted(_WINDOWS), figures, strict=True))
    for method, figures in {
        "CODASCA": ((0.9833, 0.0077), (0.9838, 0.008), (0.9843, 0.0074), (0.9849, 0.007), (0.9711, 0.0063)),
        "CODA+": ((0.9833, 0.0077), (0.9838, 0.0069), (0.982, 0.0061), (0.9741, 0.0064), (0.9529, 0.0118)),
        "FedAvg-CE": ((0.9856, 0.0057), (0.985, 0.006), (0.9846, 0.0054), (0.9813, 0.0049), (0.9689, 0.0057)),
        "SCAFFOLD-CE": ((0.9856, 0.0057), (0.9856, 0.006), (0.9867, 0.0063), (0.9863, 0.0053), (0.9788, 0.0045)),
    }.items()
}
"""Mean and standard deviation of the test AUC in the specification, by local steps in a round."""


class Cell(NamedTuple):
    """A run: local steps in a round, title of the method, seed."""

    window: int
    method: str
    seed: int


def plan(folder: Path, windows: Sequence[int], methods: Sequence[str], seeds: Sequence[int]) -> dict[Cell, Planned]:
    """Return all runs, and write the data that they need into the folder."""
    planned: dict[Cell, Planned] = {}
    for window in windows:
        for seed in seeds:
            data = folder / "data" / f"digits-{seed}.npz"
            if not data.exists():
                codasca_digits_data.write(data, seed)
            for method in methods:
                settings = algorithm(method, window, _STEP_SIZES[method][window], _STAGE)
                rounds = _STEPS // window
                planned[Cell(window, method, seed)] = Planned(
                    _EXPERIMENT,
                    (
                        f"data={json.dumps(codasca_digits_data.data_section(data))}",
                        f"algorithm={json.dumps(settings)}",
                        f"seed={seed}",
                        f"rounds={rounds}",
                        f"evaluation.every={max(1, rounds // 128)}",
                    ),
                    folder / f"{method.lower()}-{window}",
                )
    return planned


def _of(runs: Mapping[Cell, fenchel.Run], window: int, method: str) -> dict[int, fenchel.Run]:
    return {cell.seed: run for cell, run in runs.items() if cell[:2] == (window, method)}


def _last(runs: Mapping[int, fenchel.Run]) -> Floats:
    return np.array([run.figures[_AUC] for run in runs.values()])


def table(runs: Mapping[Cell, fenchel.Run]) -> list[dict[str, object]]:
    """Return a row for each method and number of local steps: all seeds, beside the specification."""
    rows = []
    for window in sorted({cell.window for cell in runs}):
        for method in METHODS:
            own = _of(runs, window, method)
            if not own:
                continue
            rounds, values = evaluated_in_all(list(own.values()), _AUC)
            reached = first(rounds, values.mean(axis=0), _TARGET)
            sent = np.mean([megabytes(run) for run in own.values()], axis=0)
            mean, deviation = _SPECIFIED[method][window]
            rows.append({
                "I": window,
                "method": method,
                "η": _STEP_SIZES[method][window],
                "test AUC": mean_and_deviation(_last(own)),
                "specification": f"{mean:.4f} ± {deviation:.4f}",
                f"rounds, MB to {_TARGET}": f"{reached}, {sent[reached - 1]:.2f}" if reached else "–",
            })  # fmt: skip
    return rows


def differences(runs: Mapping[Cell, fenchel.Run], better: str, than: str) -> list[dict[str, object]]:
    """Return how much higher one method's AUC is than another's, seed by seed."""
    rows = []
    for window in sorted({cell.window for cell in runs}):
        one, other = _of(runs, window, better), _of(runs, window, than)
        seeds = sorted(one.keys() & other.keys())
        if not seeds:
            continue
        # Adding nothing makes a zero of what rounding has made a negative zero.
        gaps = np.round([one[seed].figures[_AUC] - other[seed].figures[_AUC] for seed in seeds], 4) + 0.0
        rows.append({
            "I": window,
            f"{better} - {than}": f"{gaps.mean().round(4) + 0.0:+.4f} ± {gaps.std():.4f}",
            "seed by seed": ", ".join(f"{gap:+.4f}" for gap in gaps),
        })  # fmt: skip
    return rows


def early(runs: Mapping[Cell, fenchel.Run], window: int, rounds: Sequence[int]) -> list[dict[str, object]]:
    """Return the mean AUC of every method after so many rounds."""
    rows: list[dict[str, object]] = []
    for method in METHODS:
        own = _of(runs, window, method)
        if own:
            there, values = evaluated_in_all(list(own.values()), _AUC)
            mean = dict(zip(there.tolist(), values.mean(axis=0).tolist(), strict=True))
            rows.append({"method": method, **{f"{r}": f"{mean[r]:.3f}" for r in rounds}})
    return rows


def main() -> None:
    """Read the command line, do the runs, write the page."""
    parser = flags(__doc__, quick="two methods, one seed; writes nothing")
    parser.add_argument("--at-once", type=int, default=1, help="runs at the same time")
    with command_line(parser) as (words, folder):
        windows, methods, seeds = _WINDOWS, METHODS, _SEEDS
        if words.quick:
            windows, methods, seeds = (128,), METHODS[:2], _SEEDS[:1]
        runs = all_done(plan(folder.resolve(), windows, methods, seeds), words.at_once)
        rows, gaps = table(runs), differences(runs, "CODASCA", "CODA+")
        print(markdown(rows), markdown(gaps), sep="\n\n")
        if words.json:
            print(json.dumps({"rows": rows, "differences": gaps}))
        if words.quick:
            return
        panels = {
            f"I = {window}": {method: list(_of(runs, window, method).values()) for method in METHODS}
            for window in sorted(_WINDOWS)
        }
        draw(panels, _PICTURE, _AUC, label="test AUC", limits=(0.88, 1.0))
        parts = (
            markdown(rows),
            markdown(gaps),
            markdown(differences(runs, "SCAFFOLD-CE", "CODASCA")),
            "Mean test AUC after so many rounds of 128 local steps:",
            markdown(early(runs, 128, (1, 2, 4, 8, 16, 32))),
            f"![Test AUC against rounds and megabytes]({_PICTURE.name})",
            made_by("codasca_digits"),
        )
        put(_PAGE, "digits", "\n\n".join(parts))


if __name__ == "__main__":
    main()
