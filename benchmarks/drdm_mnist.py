"""DRDM, DRFA, SCAFF-PD, SCAFFOLD, FedAvg and FedDyn on MNIST: average and worst client beside the paper's Table 3.

A linear model, 30 clients, Dirichlet 0.1, 20 clients in a round, tau = 10, five seeds, over real server and client
processes with TLS. Writes ``docs/results/drdm-mnist.md`` and its figure. ``--trials`` tries out step sizes with
another seed, prints what came out and writes nothing; ``--runs FOLDER`` keeps the runs and reads those that
are there already, with ``--finished`` only those; ``--quick`` does two methods for ten rounds and writes
nothing. Needs MNIST (``fenchel data fetch mnist``, or ``FENCHEL_DATA``).
"""

from __future__ import annotations

import math
from pathlib import Path

from benchmarks.drdm_runs import Method, Trial, draw, line, trials
from benchmarks.experiment import command_line, done, flags, kept
from benchmarks.machine import description
from benchmarks.page import put
from benchmarks.program import markdown, progress, tell

_EXPERIMENT = Path("experiments/drdm/mnist-linear.yaml")
_PAGE = Path("docs/results/drdm-mnist.md")
_SEEDS = (1, 2, 3, 4, 5)
_TRIAL = ("seed=0", "rounds=30", "evaluation.every=10")
_TARGETS = (0.80, 0.85)

_LOCAL = {"local_steps": 10, "batch_size": 32, "batches": "independent"}
_DUAL_BATCH = {"dual_batch_size": 256}
_ETA = (0.03, 0.1, 0.3, 1.0)
_MU = (0.01, 0.1, 1.0)
_GAMMA = 0.3 / (10 * 30 * math.log(10))  # so that one step moves no client's weight by more than a third of 1/N
_GAMMAS = (_GAMMA, _GAMMA / 3, _GAMMA / 10)

_DRDM = {"name": "drdm", **_LOCAL, **_DUAL_BATCH, "dual_step_size": _GAMMA}
_AS_PAPER = {"correction": "uniform", "exploration": 0.0, "dual_estimator": "plain"}
_DRDM_GRID = {"step_size": _ETA, "regularization": _MU}

METHODS: tuple[Method, ...] = (
    Method(
        "DRDM, uniform, as in the paper",
        _DRDM | _AS_PAPER,
        {"step_size": 1.0, "regularization": 0.01},
        _DRDM_GRID,
        (90.31, 84.81, 2.96),
    ),
    Method("DRDM, uniform, eta = 0.1", _DRDM | _AS_PAPER, {"step_size": 0.1, "regularization": 0.1}),
    Method("DRDM, lambda-table", _DRDM, {"step_size": 0.3, "regularization": 0.1}, _DRDM_GRID),
    Method(
        "DRDM, lambda-scaled",
        _DRDM | {"correction": "lambda-scaled", "sampling": "uniform"},
        {"step_size": 0.1, "regularization": 1.0},
        {"step_size": (0.1, 0.3), "regularization": _MU},
    ),
    Method("DRDM, no correction", _DRDM | {"correction": "none"}, {"step_size": 0.3, "regularization": 0.1}),
    Method(
        "DRFA",
        {"name": "drfa", **_LOCAL, **_DUAL_BATCH},
        {"step_size": 0.3, "dual_step_size": _GAMMA / 10},
        {"step_size": _ETA, "dual_step_size": _GAMMAS},
        (88.67, 82.60, 3.02),
    ),
    Method(
        "SCAFF-PD, all clients",
        {"name": "scaff-pd", **_LOCAL},
        {"step_size": 0.1, "dual_step_size": 10 * _GAMMA},
        {"step_size": (0.03, 0.1), "dual_step_size": (10 * _GAMMA, 10 * _GAMMA / 3)},
        (87.49, 82.23, 2.45),
    ),
    Method(
        "SCAFFOLD",
        {"name": "scaffold", **_LOCAL},
        {"step_size": 1.0, "server_step_size": 2.0},
        {"step_size": (0.1, 0.3, 1.0), "server_step_size": (0.5, 1.0, 2.0)},
        (89.32, 83.92, 3.39),
    ),
    Method("SCAFFOLD, eta = 0.1", {"name": "scaffold", **_LOCAL}, {"step_size": 0.1, "server_step_size": 2.0}),
    Method(
        "FedAvg",
        {"name": "fedavg", **_LOCAL},
        {"step_size": 5.0},
        {"step_size": (0.03, 0.1, 0.2, 0.3, 0.5, 1.0, 2.0, 5.0)},
        (88.46, 80.70, 3.93),
    ),
    Method(
        "FedDyn",
        {"name": "feddyn", **_LOCAL},
        {"step_size": 0.1, "alpha": 0.1},
        {"step_size": (0.1, 0.3), "alpha": _MU},
    ),
)
"""The methods; what is tuned is the best of the grid, where there is one."""


def _everybody(method: Method) -> tuple[str, ...]:
    return ("participation.sampler={kind: all}",) if method.algorithm["name"] == "scaff-pd" else ()


def _score(trial: Trial) -> float:
    """What the best of the grid is the best by: the worst client."""
    return trial.worst if trial.is_over else -1.0


def _row(trial: Trial) -> dict[str, object]:
    ends = (f"{trial.worst:.2%}", f"{trial.mean:.2%}") if trial.is_over else ("broke off", "broke off")
    return {"method": trial.method, "tried": trial.words, "worst client": ends[0], "average": ends[1]}


def main() -> None:
    """Read the command line, run the methods, write the page."""
    parser = flags(__doc__, quick="two methods, ten rounds; writes nothing")
    parser.add_argument("--finished", action="store_true", help="write the page from the runs that are kept")
    parser.add_argument("--only", help="do only methods with this in their names, and write nothing")
    parser.add_argument("--trials", action="store_true", help="try out step sizes; writes nothing")
    with command_line(parser) as (words, folder):
        methods = [method for method in METHODS if (words.only or "") in method.title]
        if words.trials:
            table = []
            for method in (method for method in methods if method.grid):
                tested = trials(_EXPERIMENT, [method], folder, (*_TRIAL, *_everybody(method)))
                table += [_row(trial) for trial in sorted(tested, key=_score, reverse=True)]
            tell({"rows": table}, as_json=words.json)
            return
        seeds: tuple[int, ...] = _SEEDS
        shorter: tuple[str, ...] = ()
        if words.quick:
            methods, seeds, shorter = methods[:2], _SEEDS[:1], ("rounds=10",)
        runs = {}
        for method in methods:
            progress(method.title)
            plan = [
                method.planned(_EXPERIMENT, folder, (f"seed={seed}", *_everybody(method), *shorter)) for seed in seeds
            ]
            found = [kept(planned) if words.finished else done(planned) for planned in plan]
            runs[method.title] = [run for run in found if run is not None]
        runs = {title: found for title, found in runs.items() if found}
        table = [line(method, runs[method.title], _TARGETS) for method in methods if method.title in runs]
        tell({"rows": table}, as_json=words.json)
        if words.quick or words.only:
            return
        draw(runs, _PAGE.with_suffix(".png"), (0.76, 0.4))
        put(
            _PAGE,
            "measured",
            f"{markdown(table)}\n\n![Average and worst client, against rounds and megabytes]({_PAGE.stem}.png)\n\n"
            f"Made by `python -m benchmarks.drdm_mnist`, server and clients in separate processes over TLS, on\n"
            f"{description()}.",
        )


if __name__ == "__main__":
    main()
