"""Averaging, which HyFDCA is compared with: the best of random settings of each baseline, and its error."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass

import numpy as np

import fenchel
from benchmarks.experiment import Planned, done
from benchmarks.hyfdca_breast_cancer.presets import DETERMINISTIC, RANDOM, Case
from benchmarks.hyfdca_breast_cancer.runs import COMPARED, LAMBDAS, SETTINGS, all_done, objectives, planned
from benchmarks.program import progress
from fenchel.common.arrays import Vector
from fenchel.common.data.source import DataSource
from fenchel.common.errors import RunStoppedError
from fenchel.common.objectives.factory import margin_loss
from fenchel.common.optim.sdca import solve
from fenchel.common.randomness import generator
from fenchel.common.settings.run import load

TRIALS = 60
"""Random settings of each baseline and lambda."""

BASELINES = {"hybrid-fedavg": ("3.5%", "26.6%", "57.6%"), "hyfem-like": ("2.6%", "27.6%", "58.7%")}
_HYFDCA = ("3.5e-7", "1.4e-5", "1.9e-3")  # preset exact, H = 15


@dataclass(frozen=True)
class Best:
    """The best of some random settings of a baseline."""

    chosen: dict[str, float]  # the settings, as the overrides that set them
    run: fenchel.Run  # its run, over the network


def search(workers: ProcessPoolExecutor, name: str, l2: float) -> Best:
    """Try random settings without a network; do the best once more, over the network."""
    drawn = [_drawn(name, number) for number in range(TRIALS)]
    names = [f"{name}-{l2:g}-trial-{number:02d}" for number in range(TRIALS)]
    plan = [
        planned(trial, _overrides(name, l2, parameters, COMPARED), in_process=True)
        for trial, parameters in zip(names, drawn, strict=True)
    ]
    ends = []
    for trial, end in zip(names, workers.map(_end, plan), strict=True):
        progress(f"{trial}: {end:.4f}")
        ends.append(end)
    chosen = drawn[int(np.argmin(ends))]
    (run,) = all_done(workers, [planned(f"{name}-{l2:g}-best", _overrides(name, l2, chosen, 1))])
    assert objectives(run)[-1] == min(ends), "the same run, whether over the network or not"
    return Best(chosen, run)


def _drawn(name: str, number: int) -> dict[str, float]:
    """Draw settings around those that worked in a first, wider search."""
    ranges = {"step_size": (0.02, 1.5), "step_offset": (0.01, 15.0)}
    if name == "hyfem-like":
        ranges["proximity"] = (0.01, 1.0)
    random = generator(0, name, number)
    drawn = {key: float(f"{np.exp(random.uniform(*np.log(bounds))):.3g}") for key, bounds in ranges.items()}
    return {"local_steps": int(np.rint(np.exp(random.uniform(0, np.log(10))))), **drawn}


def _overrides(name: str, l2: float, parameters: dict[str, float], every: int) -> tuple[str, ...]:
    settings = ", ".join(f"{key}: {value}" for key, value in {"name": name, **parameters}.items())
    rounds = (f"rounds={COMPARED}", f"evaluation.every={every}")
    return (f"objective.l2={l2}", f"algorithm={{{settings}}}", *rounds)


def _end(planned: Planned) -> float:
    """Return the objective after the last round; infinity if the run diverged."""
    try:
        end = float(objectives(done(planned))[-1])
    except RunStoppedError:
        return math.inf
    return end if math.isfinite(end) else math.inf


def optimum(l2: float) -> float:
    """Return P*, from coordinate ascent on one machine."""
    settings = load(SETTINGS, [f"objective.l2={l2}"])
    shard = DataSource.open(settings.data, settings.seed).training()
    return solve(margin_loss(settings.objective), shard, l2).primal_objective


def losses(table: Mapping[Case, Sequence[fenchel.Run]], best: Mapping[str, Sequence[Best]]) -> dict[str, list[Vector]]:
    """Return (P(w_t) - P*) / P* of each algorithm after t = 1, 2, … rounds, for each lambda."""
    runs = {
        "HyFDCA, linesearch, H all": [table[case][0] for case in DETERMINISTIC[3:]],
        "HyFDCA, paper, H 15": [table[case][0] for case in RANDOM],
        **{name: [each.run for each in found] for name, found in best.items()},
    }
    optima = [optimum(l2) for l2 in LAMBDAS]
    return {
        name: [objectives(run)[:COMPARED] / least - 1 for run, least in zip(each, optima, strict=True)]
        for name, each in runs.items()
    }


def compared(errors: Mapping[str, Sequence[Vector]], best: Mapping[str, Sequence[Best]]) -> list[dict[str, object]]:
    """Return the rows: each algorithm's error after :data:`COMPARED` rounds, beside the prototype's."""
    rows = []
    expected = {"HyFDCA, paper, H 15": _HYFDCA, **BASELINES}
    for name, curves in errors.items():
        row: dict[str, object] = {"algorithm": name}
        for place, (l2, curve) in enumerate(zip(LAMBDAS, curves, strict=True)):
            error = max(float(curve[-1]), 0.0)
            row[f"λ={l2:g}"] = f"{error:.1e}" if name.startswith("HyFDCA") else f"{error:.1%}"
            if name in best:
                found = best[name][place].chosen
                row[f"λ={l2:g}"] = f"{row[f'λ={l2:g}']}<br>{_words(found)}"
        row["prototype"] = ", ".join(expected.get(name, ("–",)))
        rows.append(row)
    return rows


def _words(chosen: Mapping[str, float]) -> str:
    letters = {"local_steps": "H", "step_size": "a", "step_offset": "b", "proximity": "μ"}
    return ", ".join(f"{letters[key]}={value:g}" for key, value in chosen.items())
