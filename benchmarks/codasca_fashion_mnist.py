"""CODASCA, CODA+, FedAvg and SCAFFOLD on Fashion-MNIST with rare positives: test AUC against rounds and megabytes.

A convolutional network, images shrunk to 14 x 14 pixels so that processors can train it, 8 and 16 clients with one
negative and one positive class each, one sample in ten positive, one seed, over real server and client processes
with TLS. Writes section "Fashion-MNIST" of ``docs/results/codasca.md``, and its figure. ``--runs FOLDER`` keeps
the runs and reads those that are there already; ``--at-once N`` does N at the same time; ``--quick`` does two methods
for eight rounds and writes nothing. Needs torch and Fashion-MNIST (``fenchel data fetch fashion-mnist``, or
``FENCHEL_DATA``).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

import fenchel
from benchmarks.codasca_figure import draw
from benchmarks.codasca_methods import METHODS, algorithm
from benchmarks.experiment import Planned, all_done, command_line, flags
from benchmarks.outcome import evaluated, first, megabytes
from benchmarks.page import made_by, put
from benchmarks.program import markdown, tell
from fenchel.common.data import catalogue
from fenchel.common.data.samples import RawMatrix

_EXPERIMENT = Path("fenchel/experiments/codasca/fashion-mnist.yaml")
_PAGE = Path("docs/results/codasca.md")
_PICTURE = _PAGE.with_name("codasca-fashion-mnist.png")
_SEED = 1
_BEST = {"CODASCA": (1.0,), "CODA+": (1.0,), "FedAvg-CE": (1.0,), "SCAFFOLD-CE": (0.3,)}
_SMALLER = _BEST | {"SCAFFOLD-CE": (0.3, 0.1)}
_PANELS: Mapping[tuple[int, int, int], Mapping[str, tuple[float, ...]]] = {
    (8, 8, 512): _SMALLER,
    (8, 32, 512): _BEST,
    (8, 32, 2048): _SMALLER,
    (8, 128, 2048): {"CODASCA": (1.0, 0.3), "CODA+": (1.0, 0.3), "FedAvg-CE": (1.0, 0.3), "SCAFFOLD-CE": (0.3, 0.1)},
    (16, 8, 512): _SMALLER,
    (16, 32, 512): _SMALLER,
    (16, 128, 2048): {"CODASCA": (1.0,), "CODA+": (1.0,), "FedAvg-CE": (1.0, 0.3), "SCAFFOLD-CE": (0.3, 0.1)},
}
"""Step sizes by number of clients, local steps in a round, and local steps in all: the best of the trials, and a
smaller one where rounds are long or the best diverges."""

_AUC = "test_auc"
_TARGET = 0.95


class Cell(NamedTuple):
    """A run: number of clients, local steps in a round and in all, method, step size."""

    clients: int
    window: int
    steps: int
    method: str
    step_size: float


def write(path: Path) -> None:
    """Write Fashion-MNIST with every four neighbouring pixels averaged, as an archive for ``data.file``."""
    whole = catalogue.load("fashion-mnist")
    assert whole.test is not None
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(
        path,
        X=_shrunk(whole.train.features),
        y=whole.train.labels,
        X_test=_shrunk(whole.test.features),
        y_test=whole.test.labels,
    )


def _shrunk(images: RawMatrix) -> NDArray[np.uint8]:
    """Return images of 28 x 28 pixels, shape (n, 784), with 14 x 14, shape (n, 14, 14)."""
    pixels = np.asarray(images, dtype=np.float64).reshape(-1, 14, 2, 14, 2)
    shrunk: NDArray[np.uint8] = np.rint(pixels.mean(axis=(2, 4))).astype(np.uint8)
    return shrunk


def plan(folder: Path, wanted: Sequence[Cell]) -> dict[Cell, Planned]:
    """Return runs, and write the data that they need into the folder."""
    data = folder / "data" / "fashion-mnist-14.npz"
    if not data.exists():
        write(data)
    planned = {}
    for cell in wanted:
        settings = algorithm(cell.method, cell.window, cell.step_size, 3 * cell.steps // 8)
        rounds = cell.steps // cell.window
        planned[cell] = Planned(
            _EXPERIMENT,
            (
                "data.name=null",
                f"data.file={data}",
                f"algorithm={json.dumps(settings)}",
                f"clients={cell.clients}",
                f"seed={_SEED}",
                f"rounds={rounds}",
                f"evaluation.every={max(1, rounds // 16)}",
            ),
            folder / f"{cell.method.lower()}-{cell.clients}-{cell.window}",
        )
    return planned


def table(runs: Mapping[Cell, fenchel.Run]) -> list[dict[str, object]]:
    """Return a row for each run."""
    rows = []
    for cell, run in runs.items():
        rounds, values = evaluated(run, _AUC)
        reached = first(rounds, values, _TARGET)
        sent = megabytes(run)
        rows.append({
            "K": cell.clients,
            "I": cell.window,
            "rounds": run.rounds,
            "method": cell.method,
            "η": cell.step_size,
            "test AUC": f"{run.figures[_AUC]:.4f}",
            "average precision": f"{run.figures['test_average_precision']:.4f}",
            f"rounds to {_TARGET}": reached or "–",
            f"MB to {_TARGET}": f"{sent[reached - 1]:.0f}" if reached else "–",
            "MB a round": f"{sent[-1] / sent.size:.1f}",
        })  # fmt: skip
    return rows


def side_by_side(rows: Sequence[Mapping[str, object]]) -> list[dict[str, object]]:
    """Return a row for each method and step size, with AUC and average precision in every panel."""
    panels = list(dict.fromkeys(_panel(row) for row in rows))
    found = {(row["method"], row["η"], _panel(row)): _both(row) for row in rows}
    tried = dict.fromkeys((row["method"], row["η"]) for row in rows)
    return [
        {"method": method, "η": step_size} | {panel: found.get((method, step_size, panel), "–") for panel in panels}
        for name in METHODS
        for method, step_size in tried
        if method == name
    ]


def _panel(row: Mapping[str, object]) -> str:
    return f"{row['K']}, {row['I']}, {row['rounds']}"


def _both(row: Mapping[str, object]) -> str:
    return f"{row['test AUC']}, {row['average precision']}"


def reaching(rows: Sequence[Mapping[str, object]]) -> list[dict[str, object]]:
    """Return the rows of the runs that reach the target, with rounds and megabytes until then."""
    reached = f"rounds to {_TARGET}"
    titles = ("method", "η", reached, f"MB to {_TARGET}")
    return [{"K, I, rounds": _panel(row)} | {t: row[t] for t in titles} for row in rows if row[reached] != "–"]


def best(runs: Mapping[Cell, fenchel.Run], panel: tuple[int, int, int]) -> dict[str, list[fenchel.Run]]:
    """Return for each method the run of a panel whose step size was best."""
    found: dict[str, list[fenchel.Run]] = {}
    for method in METHODS:
        own = [run for cell, run in runs.items() if cell[:4] == (*panel, method)]
        if own:
            found[method] = [max(own, key=lambda run: float(run.figures[_AUC]))]
    return found


def main() -> None:
    """Read the command line, do the runs, write the page."""
    parser = flags(__doc__, quick="two methods, eight rounds; writes nothing")
    parser.add_argument("--at-once", type=int, default=1, help="runs at the same time")
    with command_line(parser) as (words, folder):
        wanted = [
            Cell(*panel, method, step_size)
            for panel, tried in _PANELS.items()
            for method in METHODS
            for step_size in tried[method]
        ]
        if words.quick:
            wanted = [Cell(8, 8, 64, method, _BEST[method][0]) for method in METHODS[:2]]
        runs = all_done(plan(folder.resolve(), wanted), words.at_once)
        rows = table(runs)
        tell({"rows": rows}, as_json=words.json)
        if words.quick:
            return
        panels = {
            f"K = {panel[0]}, I = {panel[1]}, {panel[2] // panel[1]} rounds": best(runs, panel) for panel in _PANELS
        }
        draw(panels, _PICTURE, _AUC, label="test AUC", limits=(0.90, 0.97))
        picture = f"![Test AUC against rounds and megabytes]({_PICTURE.name})"
        parts = (
            "Test AUC and average precision:",
            markdown(side_by_side(rows)),
            f"Runs that reach an AUC of {_TARGET}:",
            markdown(reaching(rows)),
            picture,
            made_by("codasca_fashion_mnist"),
        )
        put(_PAGE, "fashion-mnist", "\n\n".join(parts))


if __name__ == "__main__":
    main()
