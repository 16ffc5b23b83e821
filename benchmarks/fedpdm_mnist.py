"""FedPDM, BSDP-FedPDM and the usual methods on MNIST: accuracy against rounds and against bits.

Figures 7 and 8 of the FedPDM paper without noise: 100 clients with four digits and 600 samples each, 30 of them in
each of 200 rounds, the same local effort for all methods, over real server and client processes with TLS. One
row has the paper's own loss and parameters. Writes ``docs/results/fedpdm.md`` and its figure; ``--runs
FOLDER`` keeps the runs and reads those that are there already; ``--quick`` does two rows for ten rounds and
writes nothing. Needs MNIST (``fenchel data fetch mnist``, or ``FENCHEL_DATA``).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

import fenchel
from benchmarks.experiment import command_line, flags
from benchmarks.fedpdm_runs import Row, against_rounds_and_bits, bits, optimum, rounds_to, run_of
from benchmarks.outcome import evaluated
from benchmarks.page import made_by, put
from benchmarks.program import markdown, progress, tell

_EXPERIMENT = Path("fenchel/experiments/fedpdm/mnist.yaml")
_LITERAL = Path("fenchel/experiments/fedpdm/mnist-paper.yaml")
_PAGE = Path("docs/results/fedpdm.md")
_FIGURE = _PAGE.with_name("fedpdm-mnist.png")
_TARGETS = (0.85, 0.90, 0.91)
_LOCAL = {"local_steps": 20, "batch_size": 10, "batches": "epoch", "step_size": 0.1}
_UNIFORM = {"weighting": "uniform", **_LOCAL}


def _fedpdm(penalty: float, **changes: Any) -> dict[str, Any]:
    return {"name": "fedpdm", "penalty": penalty, **_LOCAL, **changes}


def _up(support: str, keep: float) -> str:
    return f"uplink.sparsify={{support: {support}, keep: {keep}}}"


def _down(keep: float) -> str:
    return f"downlink.sparsify={{keep: {keep}}}"


ROWS: tuple[Row, ...] = (
    Row("FedPDM, hybrid, rho = 0.1", _fedpdm(0.1)),
    Row("FedPDM, sampled, rho = 1", _fedpdm(1.0, aggregator="sampled")),
    Row("BSDP, top-k 0.1 up, rho = 1", _fedpdm(1.0, aggregator="sampled"), (_up("top-k", 0.1),)),
    Row("BSDP, top-k 0.1 up, rho = 0.3", _fedpdm(0.3, aggregator="sampled"), (_up("top-k", 0.1),)),
    Row("BSDP, top-k 0.5 up, 0.75 down, rho = 1", _fedpdm(1.0, aggregator="sampled"), (_up("top-k", 0.5), _down(0.75))),
    Row(
        "BSDP, top-k 0.5 up, 0.75 down, rho = 0.3", _fedpdm(0.3, aggregator="sampled"), (_up("top-k", 0.5), _down(0.75))
    ),
    Row("FedAvg", {"name": "fedavg", **_UNIFORM}),
    Row("FedProx, mu = 0.1", {"name": "fedprox", "proximity": 0.1, **_UNIFORM}),
    Row("SCAFFOLD", {"name": "scaffold", **_UNIFORM}),
    Row("FedDyn, alpha = 0.1", {"name": "feddyn", "alpha": 0.1, **_UNIFORM}),
    Row(
        "EF21, top-k 0.1, stale, rho = 0.3",
        _fedpdm(0.3, aggregator="stale", error_feedback="ef21"),
        (_up("top-k", 0.1),),
    ),
    Row("random 0.1, hold, rho = 1", _fedpdm(1.0, aggregator="sampled"), (_up("random", 0.1),)),
)
"""The methods; step sizes and penalties are the best of those that the page names."""

_DRAWN = (
    "FedPDM, hybrid, rho = 0.1",
    "FedPDM, sampled, rho = 1",
    "BSDP, top-k 0.1 up, rho = 0.3",
    "BSDP, top-k 0.5 up, 0.75 down, rho = 1",
    "FedAvg",
    "FedProx, mu = 0.1",
    "SCAFFOLD",
    "FedDyn, alpha = 0.1",
    "EF21, top-k 0.1, stale, rho = 0.3",
    "random 0.1, hold, rho = 1",
)

_PUBLISHED = Row(
    "FedPDM, the paper's loss and parameters",
    {
        "name": "fedpdm",
        "penalty": 10.0,
        "aggregator": "sampled",
        "dual": "private",
        "first_round": "all",
        "tolerance": 0.01,
        "local_steps": 20,
        "batch_size": 10,
        "batches": "epoch",
        "step_size": 0.04,
        "step_decay": "inverse-sqrt",
    },
)
_LITERAL_ROWS: tuple[Row, ...] = (
    _PUBLISHED,
    replace(
        _PUBLISHED,
        title="the same, beta = 0.05, gamma = 0.005",
        overrides=("objective.nonconvex=0.05", "objective.regularizer.weight=0.005"),
    ),
)


def line(row: Row, run: fenchel.Run) -> dict[str, object]:
    """Return a line of the table of methods."""
    counted = bits(run)
    figures: dict[str, object] = {"method": row.title}
    reached = {target: rounds_to(run, target) for target in _TARGETS}
    for target, t in reached.items():
        figures[f"rounds to {target:.0%}"] = t or "–"
    for target, t in reached.items():
        figures[f"Mbit to {target:.0%}"] = f"{counted.payload[t - 1] / 1e6:.1f}" if t else "–"
    _, accuracy = evaluated(run, "test_accuracy")
    return figures | {
        "last accuracy": f"{accuracy[-1]:.2%}",
        "F": f"{run.figures['objective']:.4f}",
        "non-zeros": int(np.count_nonzero(run.model)),
        "Mbit up, 32 k T K": f"{counted.paper[-1] / 1e6:.1f}",
        "payload": f"{counted.payload[-1] / 1e6:.1f}",
    }


def literal_line(row: Row, run: fenchel.Run) -> dict[str, object]:
    """Return a line of the table of the paper's own parameters."""
    metrics = run.metrics_table
    nonzeros, steps = metrics["nonzeros"].to_numpy(), metrics["local_steps"].to_numpy()
    zero = np.flatnonzero(nonzeros == 0)
    _, accuracy = evaluated(run, "test_accuracy")
    return {
        "row": row.title,
        "best accuracy": f"{accuracy.max():.2%}",
        "last accuracy": f"{accuracy[-1]:.2%}",
        "first round with an all-zero model": int(metrics["round"][int(zero[0])].as_py()) if zero.size else "–",
        "non-zeros in the end": int(nonzeros[-1]),
        "local steps, mean": f"{steps.mean():.1f}",
        "F": f"{run.figures['objective']:.4f}",
    }


def _draw(curves: Mapping[str, fenchel.Run], path: Path) -> None:
    runs = {title: [run] for title, run in curves.items()}
    with against_rounds_and_bits(runs, "test_accuracy", path, (10, 4.8)) as (figure, left, right):
        left.set(ylabel="test accuracy", ylim=(0.80, 0.93))
        right.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        figure.legend(frameon=False, fontsize=8, loc="outside lower center", ncols=4)


def main() -> None:
    """Read the command line, run the rows, write the page."""
    parser = flags(__doc__, quick="two rows, ten rounds; writes nothing")
    with command_line(parser) as (words, folder):
        if words.quick:
            rows = [line(row, run_of(_EXPERIMENT, row, folder, ("rounds=10",))) for row in ROWS[::2][:2]]
            tell({"rows": rows}, as_json=words.json)
            return
        curves = {}
        for row in ROWS:
            progress(row.title)
            curves[row.title] = run_of(_EXPERIMENT, row, folder)
        literal = []
        for row in _LITERAL_ROWS:
            progress(row.title)
            literal.append(literal_line(row, run_of(_LITERAL, row, folder)))
        rows = [line(row, curves[row.title]) for row in ROWS]
        _draw({title: curves[title] for title in _DRAWN}, _FIGURE)
        best = optimum(_EXPERIMENT, (), 1000)
        parts = (
            f"On one machine: F* = {best.objective:.4f}, accuracy {best.accuracy:.2%}, {best.nonzeros} non-zeros "
            f"(residual\n{best.residual:.0e}).",
            markdown(rows),
            f"![Accuracy against rounds and against bits]({_FIGURE.name})",
            f"The paper's own loss and parameters (`{_LITERAL}`):",
            markdown(literal),
            made_by("fedpdm_mnist"),
        )
        put(_PAGE, "mnist", "\n\n".join(parts))
        print(markdown(rows))
        print(markdown(literal))
        if words.json:
            print(json.dumps({"rows": rows, "paper's loss": literal}))


if __name__ == "__main__":
    main()
