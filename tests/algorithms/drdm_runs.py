"""Runs of DRDM and DRFA whose draws are noted, or given, so that an oracle can go along."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fenchel.algorithms.robust.sampled_by_weight import SampledByWeight
from fenchel.common.arrays import Dense, Vector
from fenchel.common.randomness import generator
from fenchel.deploy.launch.names import client_names
from fenchel.fleet.cohort import Cohort
from tests.algorithms.drdm_oracle import Draw, Floats, Gradients, Losses
from tests.algorithms.feddcd_quadratics import QuadraticProblem, train_quadratics
from tests.algorithms.mlr import Problem, Run, train

SEED = 3


@dataclass
class Record:
    """A run, and what it drew."""

    run: Run
    draws: dict[int, Draw]  # by round
    snapshots: dict[int, Vector]  # wsnap of each round

    def __call__(self, t: int, weights: Floats) -> Draw:
        """Let an oracle draw the same."""
        return self.draws[t]

    @property
    def weights(self) -> list[Vector]:
        """Lambda after each round."""
        return [self.run.states[t].weights for t in sorted(self.run.states)]

    @property
    def state(self) -> Any:
        """The server's last state."""
        return self.run.states[max(self.run.states)]

    def drifts(self) -> Dense:
        """h_i of all clients as they stand on them, shape (N, d)."""
        return np.stack(self.run.client_states("drift"))


def record(
    problem: Problem,
    parent: Path,
    algorithm: Mapping[str, Any],
    *,
    given: Sequence[Draw] | None = None,
    **sections: Any,
) -> Record:
    """Run DRDM or DRFA, with given draws (from the beginning again after the last) or those of the algorithm."""
    names = client_names(problem.clients)
    noted: dict[int, dict[str, Any]] = {}
    snapshots: dict[int, Vector] = {}
    originals = {
        name: getattr(SampledByWeight, name)
        for name in ("training_cohort", "snapshot_step", "dual_cohort", "dual_step")
    }

    def drawn(t: int) -> Draw | None:
        return None if given is None else given[(t - 1) % len(given)]

    def training_cohort(self: SampledByWeight, t: int) -> Counter[str]:
        times: Counter[str]
        if draw := drawn(t):
            times = +Counter(dict(zip(names, draw.times.tolist(), strict=True)))
        else:
            times = originals["training_cohort"](self, t)
        noted.setdefault(t, {})["times"] = np.array([times[name] for name in names])
        return times

    def snapshot_step(self: SampledByWeight, t: int) -> int:
        draw = drawn(t)
        step: int = draw.step if draw else originals["snapshot_step"](self, t)
        noted.setdefault(t, {})["step"] = step
        return step

    def dual_cohort(self: SampledByWeight, t: int) -> Cohort:
        if draw := drawn(t):
            cohort = Cohort(self.fleet, tuple(names[i] for i in np.flatnonzero(draw.asked)))
        else:
            cohort = originals["dual_cohort"](self, t)
        noted.setdefault(t, {})["asked"] = np.isin(names, cohort.clients)
        return cohort

    async def dual_step(self: SampledByWeight, t: int, snapshot: Vector) -> None:
        snapshots[t] = snapshot.copy()
        await originals["dual_step"](self, t, snapshot)

    go = train_quadratics if isinstance(problem, QuadraticProblem) else train
    with pytest.MonkeyPatch.context() as patch:
        for replacement in (training_cohort, snapshot_step, dual_cohort, dual_step):
            patch.setattr(SampledByWeight, replacement.__name__, replacement)
        run = go(problem, parent, algorithm, **{"seed": SEED} | sections)  # type: ignore[arg-type]
    return Record(run, {t: Draw(**noted[t]) for t in run.states}, snapshots)


def sampled(m: int) -> dict[str, Any]:
    """Say how many clients are drawn."""
    return {"sampler": {"kind": "fixed", "size": m}}


def minibatch_gradients(problem: Problem, size: int, tau: int) -> Gradients:
    """Gradients of batches that are drawn anew for each step, as the runs draw them."""
    names = client_names(problem.clients)
    rows: dict[tuple[int, int], list[Any]] = {}

    def batches(t: int, i: int) -> list[Any]:
        if (t, i) not in rows:
            random, samples = generator(SEED, names[i], t, "batches"), problem.objectives[i].samples
            rows[t, i] = [random.choice(samples, size, replace=False) for _ in range(tau)]
        return rows[t, i]

    def gradients(t: int, j: int, models: Dense) -> Dense:
        return np.stack([f.batch_gradient(models[i], batches(t, i)[j - 1]) for i, f in enumerate(problem.objectives)])

    return gradients


def reported_losses(problem: Problem, size: int | None = None) -> Losses:
    """What clients would report: the loss of the shard, or of a batch that is drawn anew in every round."""
    names = client_names(problem.clients)

    def losses(t: int, w: Vector) -> Vector:
        told = []
        for name, f in zip(names, problem.objectives, strict=True):
            if size is None:
                told.append(f.loss(w))
            else:
                rows = generator(SEED, name, t, "dual batch").choice(f.samples, size, replace=False)
                told.append(f.batch_loss(w, rows))
        return np.array(told)

    return losses
