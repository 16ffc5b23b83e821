"""DRDM, DRFA, SCAFF-PD, SCAFFOLD, FedAvg and FedDyn on MNIST: average and worst client beside the paper's Table 3.

A linear model, 30 clients, Dirichlet 0.1, 20 clients in a round, tau = 10, five seeds, over real server and client
processes with TLS. Writes section "MNIST" of ``docs/results/drdm.md``, and its figure. ``--runs FOLDER`` keeps the
runs and reads those that are there already; ``--quick`` does two methods for ten rounds and writes nothing. Needs
MNIST (``fenchel data fetch mnist``, or ``FENCHEL_DATA``).
"""

from __future__ import annotations

import math
from pathlib import Path

from benchmarks.drdm_runs import Method, draw, line
from benchmarks.experiment import command_line, flags
from benchmarks.page import made_by, put
from benchmarks.program import markdown, progress, tell

_EXPERIMENT = Path("fenchel/experiments/drdm/mnist-linear.yaml")
_PAGE = Path("docs/results/drdm.md")
_PICTURE = _PAGE.with_name("drdm-mnist.png")
_SEEDS: tuple[int, ...] = (1, 2, 3, 4, 5)
_TARGETS = (0.80, 0.85)

_LOCAL = {"local_steps": 10, "batch_size": 32, "batches": "independent"}
_DUAL_BATCH = {"dual_batch_size": 256}
_GAMMA = 0.3 / (10 * 30 * math.log(10))  # so that one step moves no client's weight by more than a third of 1/N

_DRDM = {"name": "drdm", **_LOCAL, **_DUAL_BATCH, "dual_step_size": _GAMMA}
_AS_PAPER = {"correction": "uniform", "exploration": 0.0, "dual_estimator": "plain"}

METHODS: tuple[Method, ...] = (
    Method("DRDM, uniform", _DRDM | _AS_PAPER, {"step_size": 1.0, "regularization": 0.01}, (90.31, 84.81, 2.96)),
    Method("DRDM, uniform, η=0.1", _DRDM | _AS_PAPER, {"step_size": 0.1, "regularization": 0.1}),
    Method("DRDM, lambda-table", _DRDM, {"step_size": 0.3, "regularization": 0.1}),
    Method(
        "DRDM, lambda-scaled",
        _DRDM | {"correction": "lambda-scaled", "sampling": "uniform"},
        {"step_size": 0.1, "regularization": 1.0},
    ),
    Method("DRDM, no correction", _DRDM | {"correction": "none"}, {"step_size": 0.3, "regularization": 0.1}),
    Method(
        "DRFA",
        {"name": "drfa", **_LOCAL, **_DUAL_BATCH},
        {"step_size": 0.3, "dual_step_size": _GAMMA / 10},
        (88.67, 82.60, 3.02),
    ),
    Method(
        "SCAFF-PD, all clients",
        {"name": "scaff-pd", **_LOCAL},
        {"step_size": 0.1, "dual_step_size": 10 * _GAMMA},
        (87.49, 82.23, 2.45),
    ),
    Method(
        "SCAFFOLD", {"name": "scaffold", **_LOCAL}, {"step_size": 1.0, "server_step_size": 2.0}, (89.32, 83.92, 3.39)
    ),
    Method("SCAFFOLD, η=0.1", {"name": "scaffold", **_LOCAL}, {"step_size": 0.1, "server_step_size": 2.0}),
    Method("FedAvg", {"name": "fedavg", **_LOCAL}, {"step_size": 5.0}, (88.46, 80.70, 3.93)),
    Method("FedDyn", {"name": "feddyn", **_LOCAL}, {"step_size": 0.1, "alpha": 0.1}),
)
"""The methods; what is tuned is the best of the trials on the page, where there are some."""


def _everybody(method: Method) -> tuple[str, ...]:
    return ("participation.sampler={kind: all}",) if method.algorithm["name"] == "scaff-pd" else ()


def main() -> None:
    """Read the command line, run the methods, write the page."""
    parser = flags(__doc__, quick="two methods, ten rounds; writes nothing")
    with command_line(parser) as (words, folder):
        methods, seeds, shorter = METHODS, _SEEDS, tuple[str, ...]()
        if words.quick:
            methods, seeds, shorter = METHODS[:2], _SEEDS[:1], ("rounds=10",)
        runs = {}
        for method in methods:
            progress(method.title)
            overrides = (*_everybody(method), *shorter)
            runs[method.title] = [method.run(_EXPERIMENT, folder, (f"seed={seed}", *overrides)) for seed in seeds]
        table = [line(method, runs[method.title], _TARGETS) for method in methods]
        tell({"rows": table}, as_json=words.json)
        if words.quick:
            return
        draw(runs, _PICTURE, (0.76, 0.4))
        picture = f"![Average and worst client]({_PICTURE.name})"
        put(_PAGE, "mnist", f"{markdown(table)}\n\n{picture}\n\n{made_by('drdm_mnist')}")


if __name__ == "__main__":
    main()
