"""Tables 2 and 3 of the FedDCD paper: FedDCD, AccFedDCD and the primal methods, 100 clients, beside its numbers.

Real server and client processes with TLS on MNIST and RCV1, and the optimum computed on one machine. Writes the
tables and figures of ``docs/results/feddcd.md``; what stands around the tables was written by people, for one run
of this program: read it again when they change. Name the tables that are wanted, or none for all of them: about an
hour on two cores. ``--runs FOLDER`` keeps the runs and reads those that are there already; ``--quick`` does the
dual methods on MNIST for ten rounds and writes nothing. Needs MNIST and RCV1 (``fenchel data fetch``, or
``FENCHEL_DATA``).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc

import fenchel
from benchmarks.experiment import Planned, command_line, done, flags
from benchmarks.figure import canvas
from benchmarks.outcome import Floats, first
from benchmarks.page import made_by, put
from benchmarks.program import markdown, progress
from fenchel.common.data.catalogue import locate
from fenchel.common.data.source import DataSource
from fenchel.common.objectives.factory import build_objective
from fenchel.common.objectives.linear import LinearObjective
from fenchel.common.objectives.objective import Objective
from fenchel.common.optim import Tilted, solve
from fenchel.common.settings.run import load
from fenchel.common.settings.solver import AdamSolver, NewtonCgSolver, Stopping
from fenchel.common.wire.phases import EVALUATE
from fenchel.report.render.canvas import COLORS

_EXPERIMENTS = Path("fenchel/experiments/feddcd")
_PAGE = Path("docs/results/feddcd.md")


@dataclass(frozen=True)
class Table:
    """A table of a page."""

    name: str  # as on the command line, in the page's markers, and of the figure
    title: str  # of the figure
    experiment: str  # settings file
    algorithms: Mapping[str, dict[str, Any]]  # settings of each row's, by its title
    paper: Mapping[str, tuple[str, ...]]  # the paper's figures of those rows that it has
    rounds: int  # how many are run
    targets: tuple[float, ...]
    """Objective gaps whose first round is looked for: Table 2. None: test accuracy, as in Table 3."""
    overrides: tuple[str, ...] = ()  # what differs from the settings file
    fewer: Mapping[str, int] = field(default_factory=dict)  # rounds of the rows that do fewer


def _primal(step_size: float, batch_size: int, proximity: float = 1e-4) -> dict[str, dict[str, Any]]:
    """FedAvg, FedProx and SCAFFOLD with five local epochs."""
    local = {"local_epochs": 5, "batch_size": batch_size, "step_size": step_size}
    return {
        "FedAvg": {"name": "fedavg", **local},
        "FedProx": {"name": "fedprox", "proximity": proximity, **local},
        "SCAFFOLD": {"name": "scaffold", **local},
    }


_UNPUBLISHED_SCAFFOLD = "SCAFFOLD as published (no correction)"
_LINEAR_DUAL: dict[str, dict[str, Any]] = {
    "FedDCD": {"name": "feddcd"},
    "FedDCD, eta = 1.9": {"name": "feddcd", "step_size": 1.9},
    "AccFedDCD, two cohorts": {"name": "acc-feddcd", "cohorts": 2},
    "AccFedDCD, one cohort": {"name": "acc-feddcd"},
    "AccFedDCD, two cohorts, beta = 1": {"name": "acc-feddcd", "cohorts": 2, "smoothness": 1.0},
    "AccFedDCD, one cohort, beta = 1": {"name": "acc-feddcd", "smoothness": 1.0},
}
_MNIST_PRIMAL = _primal(0.001, 1)
_PUBLISHED = {_UNPUBLISHED_SCAFFOLD: _MNIST_PRIMAL["SCAFFOLD"] | {"correction": "none"}}
_FULL_GRADIENTS: dict[str, dict[str, Any]] = {
    "SCAFFOLD, 20 full-gradient steps": {"name": "scaffold", "local_steps": 20, "batch_size": None, "step_size": 0.1}
}
_ADAM = {"kind": "adam", "batch_size": 128, "betas": [0.89, 0.995], "stop": {"epochs": 20}}
_NETWORK: dict[str, Any] = {"dual_step_size": 0.01, "solver": _ADAM}
_NETWORK_DUAL: dict[str, dict[str, Any]] = {
    "FedDCD": {"name": "feddcd", **_NETWORK},
    "AccFedDCD, two cohorts": {"name": "acc-feddcd", "cohorts": 2, "conditioning": 0.3, **_NETWORK},
    "AccFedDCD, one cohort": {"name": "acc-feddcd", "conditioning": 0.3, **_NETWORK},
}
_TWENTY_STEPS: dict[str, dict[str, Any]] = {
    "FedDCD, 20 Adam steps": {
        "name": "feddcd",
        "dual_step_size": 0.01,
        "solver": {"kind": "adam", "batch_size": 128, "stop": {"steps": 20}},
    }
}
_TEN_EPOCHS: dict[str, dict[str, Any]] = {
    f"{title}, 10 epochs": algorithm | {"local_epochs": 10}
    for title, algorithm in _primal(0.1, 128).items()
    if title != "FedProx"
}
_SGD = {"dual_step_size": 0.1, "solver": {"kind": "sgd", "step_size": 0.1, "batch_size": 128, "stop": {"epochs": 5}}}
_TWO_DIGITS = ("data.partition={kind: classes, per_client: 2}",)
_UNIFORM = {"weighting": "uniform"}


def _pick(algorithms: dict[str, dict[str, Any]], *titles: str) -> dict[str, dict[str, Any]]:
    return {title: algorithms[title] for title in titles}


def _alike(algorithms: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """All clients count alike, as in the paper's code."""
    return {title: algorithm | _UNIFORM for title, algorithm in algorithms.items()}


_SIZE = "participation.sampler.size={}"
_SOME_DUAL = {title: algorithm for title, algorithm in _LINEAR_DUAL.items() if title != "AccFedDCD, two cohorts"}
_PLAIN_AND_THEIRS = _pick(_LINEAR_DUAL, "FedDCD", "AccFedDCD, two cohorts, beta = 1", "AccFedDCD, one cohort, beta = 1")

TABLES = (
    Table(
        "mnist", "MNIST, softmax, 100 clients, 30 a round", "mnist-mlr",
        _pick(_LINEAR_DUAL, "FedDCD", "FedDCD, eta = 1.9", "AccFedDCD, two cohorts", "AccFedDCD, one cohort",
              "AccFedDCD, one cohort, beta = 1")
        | _pick(_MNIST_PRIMAL, "FedAvg", "FedProx") | _PUBLISHED | _pick(_MNIST_PRIMAL, "SCAFFOLD")
        | _FULL_GRADIENTS,
        {"FedDCD": ("4", "28"), "AccFedDCD, two cohorts": ("3", "15"), "FedAvg": ("17", "51"),
         "FedProx": ("17", "47"), _UNPUBLISHED_SCAFFOLD: ("17", "45")},
        60, (1e-2, 1e-3),
    ),
    Table(
        "mnist-10", "MNIST, softmax, 100 clients, 10 a round", "mnist-mlr",
        _PLAIN_AND_THEIRS | _MNIST_PRIMAL,
        {"FedDCD": ("19",), "AccFedDCD, two cohorts, beta = 1": ("14",), "FedAvg": ("19",), "FedProx": ("18",),
         "SCAFFOLD": ("18",)},
        25, (1e-2,), (_SIZE.format(10),),
    ),
    Table(
        "mnist-5", "MNIST, softmax, 100 clients, 5 a round", "mnist-mlr",
        _PLAIN_AND_THEIRS | _MNIST_PRIMAL,
        {"FedDCD": ("3",), "AccFedDCD, two cohorts, beta = 1": ("1",), "FedAvg": ("5",), "FedProx": ("5",),
         "SCAFFOLD": ("5",)},
        10, (1e-1,), (_SIZE.format(5),),
    ),
    Table(
        "rcv1", "RCV1, softmax, 100 clients, 30 a round", "rcv1-mlr",
        _SOME_DUAL | _primal(0.1, 1),
        {"FedDCD": ("10", "24"), "AccFedDCD, two cohorts, beta = 1": ("5", "30"), "FedAvg": ("10", "> 100"),
         "FedProx": ("10", "> 100"), "SCAFFOLD": ("11", "> 100")},
        40, (1e-2, 1e-3), fewer={"FedAvg": 20, "FedProx": 12, "SCAFFOLD": 20},
    ),
    Table(
        "rcv1-10", "RCV1, softmax, 100 clients, 10 a round", "rcv1-mlr",
        _PLAIN_AND_THEIRS | _primal(0.1, 1),
        {"FedDCD": ("27",), "AccFedDCD, two cohorts, beta = 1": ("14",), "FedAvg": ("11",), "FedProx": ("11",),
         "SCAFFOLD": ("11",)},
        35, (1e-2,), (_SIZE.format(10),), fewer={"FedAvg": 15, "FedProx": 15, "SCAFFOLD": 15},
    ),
    Table(
        "rcv1-5", "RCV1, softmax, 100 clients, 5 a round", "rcv1-mlr",
        _PLAIN_AND_THEIRS | _primal(0.1, 1),
        {"FedDCD": ("5",), "AccFedDCD, two cohorts, beta = 1": ("1",), "FedAvg": ("3",), "FedProx": ("3",),
         "SCAFFOLD": ("3",)},
        10, (1e-1,), (_SIZE.format(5),),
    ),
    Table(
        "mlp", "MNIST, network 784-32-10, 100 clients, 30 a round", "mnist-mlp",
        _NETWORK_DUAL | _TWENTY_STEPS | _primal(0.1, 128) | _TEN_EPOCHS,
        {"FedDCD": ("49", "> 100"), "AccFedDCD, two cohorts": ("28", "> 100"), "FedAvg": ("> 100", "> 100"),
         "FedProx": ("99", "> 100"), "SCAFFOLD": ("44", "> 100")},
        100, (1e-2, 1e-3),
        fewer={"FedAvg, 10 epochs": 60, "SCAFFOLD, 10 epochs": 60} | dict.fromkeys(_NETWORK_DUAL, 60),
    ),
    Table(
        "mlp-10", "MNIST, network 784-32-10, 100 clients, 10 a round", "mnist-mlp",
        _NETWORK_DUAL | _primal(0.1, 128),
        {"FedDCD": ("96",), "AccFedDCD, two cohorts": ("> 500",), "FedAvg": ("> 500",), "FedProx": ("> 500",),
         "SCAFFOLD": ("418",)},
        100, (1e-2,), (_SIZE.format(10),),
    ),
    Table(
        "mlp-5", "MNIST, network 784-32-10, 100 clients, 5 a round", "mnist-mlp",
        _NETWORK_DUAL | _primal(0.1, 128),
        {"FedDCD": ("5",), "AccFedDCD, two cohorts": ("4",), "FedAvg": ("88",), "FedProx": ("83",),
         "SCAFFOLD": ("79",)},
        90, (1e-1,), (_SIZE.format(5),), fewer=dict.fromkeys(_NETWORK_DUAL, 20),
    ),
    Table(
        "two-digits-mlp", "MNIST, network, two digits a client, 30 of 100 a round", "mnist-mlp",
        _alike(
            {"FedDCD": {"name": "feddcd", **_SGD},
             "AccFedDCD, two cohorts": {"name": "acc-feddcd", "cohorts": 2, "conditioning": 0.3, **_SGD},
             "AccFedDCD, one cohort": {"name": "acc-feddcd", "conditioning": 0.3, **_SGD}}
            | _primal(0.1, 128)
        ),
        {"FedDCD": ("90.02%", "0.103"), "AccFedDCD, two cohorts": ("90.32%", "0.107"),
         "FedAvg": ("88.17%", "0.302"), "FedProx": ("87.92%", "0.277"), "SCAFFOLD": ("90.23%", "0.089")},
        60, (), _TWO_DIGITS,
    ),
    Table(
        "two-digits-mlr", "MNIST, softmax, two digits a client, 30 of 100 a round", "mnist-mlr",
        _alike(_PLAIN_AND_THEIRS | _MNIST_PRIMAL),
        {"FedDCD": ("88.16%", "0.132"), "AccFedDCD, two cohorts, beta = 1": ("89.24% of the training set", "0.025"),
         "FedAvg": ("88.30%", "0.160"), "FedProx": ("88.67%", "0.179"), "SCAFFOLD": ("88.47%", "0.164")},
        30, (), _TWO_DIGITS,
    ),
)  # fmt: skip


def settings_of(table: Table) -> tuple[Path, tuple[str, ...]]:
    """Return the settings file, and what differs from it in all rows."""
    overrides = table.overrides
    if table.experiment == "rcv1-mlr" and locate("rcv1") is None and locate("rcv1-subset") is not None:
        overrides += ("data.name=rcv1-subset",)  # the same features, other documents
    return _EXPERIMENTS / f"{table.experiment}.yaml", overrides


def optimum(path: Path, overrides: Sequence[str], runs: Path) -> float:
    """Return the smallest objective on all training samples that was found on one machine; kept beside the runs.

    Newton's method finds the optimum of a linear model. For a network, which has many, it is the lowest value
    along a long run of Adam, whose step size falls from 1e-3 to 1e-5.
    """
    settings = load(path, overrides)
    samples = settings.data.model_dump_json(exclude={"partition"})
    key, kept = f"{settings.seed} {samples} {settings.objective.model_dump_json()}", runs / "optima.json"
    known: dict[str, float] = json.loads(kept.read_text()) if kept.exists() else {}
    if key not in known:
        objective = build_objective(
            settings.objective, DataSource.open(settings.data, settings.seed).training(settings.objective.dtype)
        )
        linear = isinstance(objective, LinearObjective)
        known[key] = _least(objective) if linear else _lowest_by_adam(objective, settings.seed)
        runs.mkdir(parents=True, exist_ok=True)
        kept.write_text(json.dumps(known, indent=2))
    return known[key]


def _least(objective: Objective) -> float:
    zeros = np.zeros(objective.dimension)
    exact = NewtonCgSolver(stop=Stopping(gradient=1e-10))
    return objective.value(solve(Tilted(objective, zeros), zeros, exact, np.random.default_rng(0)).w)


def _lowest_by_adam(objective: Objective, seed: int) -> float:
    w = objective.initial(seed)
    problem, random, lowest = Tilted(objective, np.zeros(w.size)), np.random.default_rng(seed), np.inf
    for step_size in (1e-3, 3e-4, 1e-4, 3e-5, 1e-5):
        for _ in range(8):
            adam = AdamSolver(step_size=step_size, batch_size=128, stop=Stopping(epochs=5))
            w = solve(problem, w, adam, random).w
            lowest = min(lowest, objective.value(w))
    return lowest


def row(table: Table, method: str, run: fenchel.Run, gaps: Floats) -> dict[str, object]:
    """Return a row of the table."""
    metrics = run.metrics_table
    figures: dict[str, object] = {"method": method}
    papers = table.paper.get(method, ("",) * max(len(table.targets), 2))
    rounds = np.arange(1, len(gaps) + 1)
    if table.targets:
        for target, paper in zip(table.targets, papers, strict=False):
            figures[f"rounds to {target:g}"] = first(rounds, -gaps, -target) or f"> {len(gaps)}"
            figures[f"paper, {target:g}"] = paper
        figures |= traffic(run, first(rounds, -gaps, -table.targets[-1]), f"{table.targets[-1]:g}")
        figures["last gap"] = f"{gaps[-1]:.1e} ({len(gaps)} rounds)"
    else:
        accuracy = metrics["test_accuracy"].to_pylist()
        figures["best test accuracy"] = f"{max(accuracy):.2%}"
        figures["paper, best"] = papers[0]
        figures["last test accuracy"] = f"{accuracy[-1]:.2%}"
        figures["last gap"] = f"{gaps[-1]:.3f}"
        figures["paper, gap at 100"] = papers[1]
    return figures


def traffic(run: fenchel.Run, reached: int | None, target: str) -> dict[str, object]:
    """Return the megabytes of training until a round; empty if there was none."""
    calls = run.calls_table
    training = calls.filter(pc.not_equal(calls["phase"], EVALUATE))
    last = reached or 0
    before = training.filter(pc.and_(pc.less_equal(training["round"], last), pc.greater_equal(training["round"], 1)))
    total = (pc.sum(before["bytes_up"]).as_py() or 0) + (pc.sum(before["bytes_down"]).as_py() or 0)
    return {f"MB to {target}": f"{total / 1e6:.0f}" if reached else ""}


def run_of(table: Table, method: str, runs: Path) -> fenchel.Run:
    """Do a row's run, or return the one that is in its folder already."""
    path, shared = settings_of(table)
    overrides = (
        f"rounds={table.fewer.get(method, table.rounds)}",
        "participation.deadline=3600",  # a busy machine shall not change who takes part
        *shared,
    )
    return done(Planned.row(path, method, table.algorithms[method], overrides, runs / table.name))


def measure(table: Table, runs: Path) -> tuple[list[dict[str, object]], dict[str, Floats], float]:
    """Run all rows; return them, the gap after each round of each, and the optimum."""
    path, shared = settings_of(table)
    best = optimum(path, shared, runs)
    progress(f"{table.name}: the optimum is {best:.9f}")
    rows, curves = [], {}
    for method in table.algorithms:
        progress(f"{table.name}: {method}")
        run = run_of(table, method, runs)
        gaps = run.metrics_table["objective"].to_numpy() - best
        rows.append(row(table, method, run, gaps))
        curves[method] = gaps if table.targets else run.metrics_table["test_accuracy"].to_numpy()
    return rows, curves, best


def _draw(table: Table, curves: dict[str, Floats], path: Path) -> None:
    with canvas(path, (8, 4.5), dpi=110) as figure:
        axes = figure.subplots()
        for (title, values), color in zip(curves.items(), COLORS * 2, strict=False):
            dash = "-" if "DCD" in title else "--"
            axes.plot(np.arange(1, values.size + 1), values, dash, color=color, linewidth=1.6, label=title)
        axes.set(xlabel="round", ylabel="objective gap" if table.targets else "test accuracy", title=table.title)
        axes.set_yscale("log" if table.targets else "linear")
        axes.legend(fontsize=8)


def write(table: Table, rows: list[dict[str, object]], curves: dict[str, Floats], best: float) -> None:
    """Put a table, its figure and where it was made between the page's markers."""
    _draw(table, curves, _PAGE.with_name(f"feddcd-{table.name}.png"))
    made = f"""
Optimum: {best:.9f}.

{markdown(rows)}

![{table.title}](feddcd-{table.name}.png)

{made_by(f"feddcd_tables {table.name}")}
"""
    put(_PAGE, table.name, made)


def main() -> None:
    """Read the command line, and make the tables."""
    names = {table.name: table for table in TABLES}
    parser = flags(__doc__, quick="two rows, ten rounds; writes nothing")
    parser.add_argument("tables", nargs="*", metavar="TABLE", choices=[[], *names], help=f"of {', '.join(names)}")
    figures = {}
    with command_line(parser) as (words, folder):
        chosen = [names[name] for name in words.tables or names]
        if words.quick:
            two = dict(list(TABLES[0].algorithms.items())[:4:3])
            chosen = [replace(TABLES[0], algorithms=two, rounds=10)]
        for table in chosen:
            rows, curves, best = measure(table, folder)
            figures[table.name] = {"rows": rows, "optimum": best}
            print(markdown(rows))
            if not words.quick:
                write(table, rows, curves, best)
    if words.json:
        print(json.dumps(figures))


if __name__ == "__main__":
    main()
