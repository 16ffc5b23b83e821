"""Rounds, exchanges and bytes to an objective gap on MNIST: FedDCD, AccFedDCD and the primal methods, 100 clients.

The table of the FedDCD paper (multinomial logistic regression, tau = 30), over real server and client processes with
TLS, against the optimum computed centrally. Writes ``docs/results/feddcd-mnist.md`` and its figure, in about half an
hour; ``--quick`` runs the dual methods for ten rounds and writes nothing. Needs MNIST (``fenchel data fetch
mnist``, or ``FENCHEL_DATA``).
"""

from __future__ import annotations

import json
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc

import fenchel
from benchmarks.machine import description
from benchmarks.program import Figures, markdown, progress, run
from client.solvers import Tilted, solve
from common.data.source import DataSource
from common.objectives.factory import build_objective
from common.phases import EVALUATE
from common.settings.run import load
from common.settings.solver import NewtonCgSolver, Stopping

_EXPERIMENT = Path("experiments/feddcd/mnist-mlr.yaml")
_PAGE = Path("docs/results/feddcd-mnist.md")
_TARGETS = (1e-2, 1e-3)
_LOCAL = {"local_epochs": 5, "batch_size": 1, "step_size": 0.001}


@dataclass(frozen=True)
class Method:
    """A row of the table.

    Attributes
    ----------
    title
        Its name.
    algorithm
        Settings.
    rounds
        How many are run.
    paper
        The paper's rounds to each target.
    """

    title: str
    algorithm: dict[str, Any]
    rounds: int
    paper: tuple[str, str]


METHODS = (
    Method("FedDCD", {"name": "feddcd"}, 60, ("4", "28")),
    Method("FedDCD, eta = 1.9", {"name": "feddcd", "step_size": 1.9}, 60, ("", "")),
    Method("AccFedDCD, two cohorts", {"name": "acc-feddcd", "cohorts": 2}, 60, ("3", "15")),
    Method("AccFedDCD, one cohort", {"name": "acc-feddcd"}, 60, ("", "")),
    Method("AccFedDCD, one cohort, beta = 1", {"name": "acc-feddcd", "smoothness": 1.0}, 60, ("", "")),
    Method("FedAvg", {"name": "fedavg", **_LOCAL}, 60, ("17", "51")),
    Method("FedProx", {"name": "fedprox", "proximity": 0.0001, **_LOCAL}, 60, ("17", "47")),
    Method(
        "SCAFFOLD as published (no correction)",
        {"name": "scaffold", "correction": "none", **_LOCAL},
        60,
        ("17", "45"),
    ),
    Method("SCAFFOLD", {"name": "scaffold", **_LOCAL}, 60, ("", "")),
    Method(
        "SCAFFOLD, 20 full-gradient steps",
        {"name": "scaffold", "local_steps": 20, "batch_size": None, "step_size": 0.1},
        60,
        ("", ""),
    ),
)


_NOTES = """## What it says

One seed. Gaps jump by a factor of two from round to round, since 30 of 100 clients take part, so read single
rounds with care.

* **The dual methods begin at a gap of 0.011**, after one round: the average of the local optima is that good
  where all clients hold random parts. The primal methods need 16 rounds to get there. From there on the lines
  are about equally steep, and SCAFFOLD's is steepest.
* **FedDCD needs 2 and 16 rounds where the paper has 4 and 28.** Known differences: the paper's code cuts the
  file into blocks in its own order, and here samples are drawn at random, so that clients are more alike (its
  first average has a gap of 0.016); its step is 0.99 and here 1; it solves to a gradient of 1e-6 and here to
  the accuracy 1/4, which is looser and so cannot be what helps. Its own split was not tried here.
* **AccFedDCD with the smoothness that is proven** is no faster than FedDCD at this accuracy. With `smoothness: 1`,
  which the paper's code sets, it takes 16 rounds beside the paper's 15, with one cohort in place of two, so half
  the exchanges, and ends three times lower than FedDCD.
* **SCAFFOLD as published never applies its correction**, and is FedAvg here, figure for figure. With it, 35
  rounds in place of 40, and a gap of 9e-5 instead of 5e-4 after 60 rounds: FedAvg and FedProx (mu = 1e-4,
  practically FedAvg) level off. It moves twice the bytes.
* Every other figure is within a factor of 1.5 of the paper's.
"""  # written for the run of 2026-11-21; read them again when the table changes


def optimum() -> float:
    """Return the smallest objective on all training samples, by Newton's method on one machine."""
    settings = load(_EXPERIMENT)
    objective = build_objective(
        settings.objective, DataSource.open(settings.data, settings.seed).training(settings.objective.dtype)
    )
    zeros = np.zeros(objective.dimension)
    exact = NewtonCgSolver(stop=Stopping(gradient=1e-10))
    solved = solve(Tilted(objective, zeros), zeros, exact, np.random.default_rng(0))
    return objective.value(solved.w)


def first(gaps: list[float], target: float) -> int | None:
    """Return the first round with a gap below the target, counted from 1."""
    return next((t for t, gap in enumerate(gaps, 1) if gap <= target), None)


def row(method: Method, done: fenchel.Run, best: float) -> dict[str, object]:
    """Return a row of the table."""
    metrics, calls = done.metrics_table, done.calls_table
    gaps = [objective - best for objective in metrics["objective"].to_pylist()]
    figures: dict[str, object] = {"method": method.title}
    for target, paper in zip(_TARGETS, method.paper, strict=True):
        figures[f"rounds to {target:g}"] = first(gaps, target) or f"> {method.rounds}"
        figures[f"paper, {target:g}"] = paper
    reached = first(gaps, _TARGETS[-1]) or len(gaps)
    training = calls.filter(pc.not_equal(calls["phase"], EVALUATE))
    before = training.filter(
        pc.and_(pc.less_equal(training["round"], reached), pc.greater_equal(training["round"], 1))
    )
    replies = before.filter(pc.greater(before["bytes_up"], 0))
    total = pc.sum(before["bytes_up"]).as_py() + pc.sum(before["bytes_down"]).as_py()
    figures["exchanges to 1e-3"] = replies.num_rows if gaps[reached - 1] <= _TARGETS[-1] else ""
    figures["MB to 1e-3"] = f"{total / 1e6:.0f}" if gaps[reached - 1] <= _TARGETS[-1] else ""
    figures["last gap"] = f"{gaps[-1]:.1e}"
    figures["s a round"] = f"{np.mean(metrics['seconds'].to_pylist()):.2f}"
    return figures


def measure(quick: bool) -> Figures:
    """Run all methods, or the dual ones for ten rounds."""
    best = optimum()
    progress(f"the optimum is {best:.9f}")
    rows, curves = [], {}
    with tempfile.TemporaryDirectory() as temporary:
        for method in METHODS[:1] + METHODS[3:4] if quick else METHODS:
            progress(method.title)
            overrides = [
                f"rounds={10 if quick else method.rounds}",
                f"algorithm={json.dumps(method.algorithm)}",
                "evaluation.server=false",
            ]
            done = fenchel.up(_EXPERIMENT, overrides=overrides, processes=2, runs=temporary)
            rows.append(row(method, done, best))
            curves[method.title] = [value - best for value in done.metrics_table["objective"].to_pylist()]
    if not quick:
        _draw(curves, _PAGE.with_suffix(".png"))
        _PAGE.write_text(_page(rows, best))
    return {"rows": rows, "optimum": best}


def _draw(curves: dict[str, list[float]], path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.subplots()
    for title, gaps in curves.items():
        dual = "DCD" in title
        axes.semilogy(
            range(1, len(gaps) + 1), gaps, label=title, linestyle="-" if dual else "--", linewidth=1.6
        )
    axes.set(xlabel="round", ylabel="objective gap", title="MNIST, softmax, 100 clients, 30 a round")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    figure.savefig(path, dpi=110)


def _page(rows: list[dict[str, object]], best: float) -> str:
    return f"""# FedDCD and the primal methods on MNIST

Multinomial logistic regression, l2 = 0.01, no intercept, 100 clients with equal random parts, 30 of them in a round
(the paper's Table 2). The gap is the objective on all training samples minus the optimum, {best:.9f}, which Newton's
method finds on one machine. Settings: `{_EXPERIMENT}`; local training of the primal methods: five epochs of single
samples, step size 0.001, as in the paper's own code.

{markdown(rows)}

An exchange is one upload with one download by one client. A client that is in both cohorts of a round has two;
SCAFFOLD's exchanges carry two vectors each way. Evaluation, which sends the model to everybody, is left out;
seconds are of a busy machine.

![Gap against rounds](feddcd-mnist.png)

{_NOTES}
Made by `python -m benchmarks.feddcd_mnist`, server and clients in separate processes over TLS, on
{description()}.
"""


if __name__ == "__main__":
    run(__doc__ or "", measure)
