"""Runs of FedPDM as a witness describes them, and a look at every local solve."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from fenchel.algorithms.fedpdm import FedPDMClient
from fenchel.common.arrays import Vector
from fenchel.common.objectives.objective import Objective
from fenchel.common.wire.values import SparseVector, Values
from tests.algorithms.fedpdm_oracle import Iterate, Landscape, Variant
from tests.algorithms.mlr import Problem, Run, train

SEED = 3
EVERYBODY = (0, 1, 2, 3)
COHORTS = ((0, 1), (1, 2, 3), (3,), EVERYBODY, (0, 2), (0, 3))


@dataclass(frozen=True)
class Solve:
    """What one client did in one round."""

    client: str
    round: int
    model: Vector  # x0, as it arrived
    before: Vector  # the dual variable
    after: Vector
    upload: Vector | SparseVector
    steps: int


@contextmanager
def watched() -> Iterator[list[Solve]]:
    """Collect every local solve of the runs inside."""
    seen: list[Solve] = []
    solve = FedPDMClient.solve

    @functools.wraps(solve)
    def watching(self: FedPDMClient, model: Vector) -> Values:
        before = self.state.dual.copy()
        reply = solve(self, model)
        upload = cast("Vector | SparseVector", reply["upload"])
        after, steps = self.state.dual.copy(), cast(int, reply["steps"])
        seen.append(Solve(self.client, self.round, model.copy(), before, after, upload, steps))
        return reply

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FedPDMClient, "solve", watching)
        yield seen


def real(
    problem: Problem, variant: Variant, parent: Path, cohorts: Sequence[Sequence[int]] = COHORTS, **sections: Any
) -> Run:
    given = variant.sections()
    objective: dict[str, Any] = {"kind": "softmax", "l2": problem.l2}
    objective |= {"regularizer": given.pop("regularizer"), "nonconvex": given.pop("nonconvex")}
    basis: dict[str, Any] = {"cohorts": cohorts, "rounds": len(cohorts), "seed": SEED, "objective": objective}
    return train(problem, parent, variant.algorithm(), **(basis | given | sections))


def iterates_of(run: Run, solves: list[Solve], rho: float) -> list[Iterate]:
    """x_i, lambda_i and the new x0 of each round in which everybody solved, with private dual variables."""
    found = []
    for t, model in enumerate(run.models, 1):
        now = sorted((solve for solve in solves if solve.round == t), key=lambda solve: solve.client)
        local = np.array([solve.model + (solve.before - solve.after) / rho for solve in now])
        found.append(Iterate(local, np.array([solve.after for solve in now]), model))
    return found


def landscape_of(problem: Problem, variant: Variant) -> Landscape:
    """F of a problem, with the variant's h and its term that is not convex."""
    beta = variant.beta

    def value(f: Objective, x: Vector) -> float:
        return f.value(x) + beta * float((x**2 / (1 + x**2)).sum())

    def gradient(f: Objective, x: Vector) -> Vector:
        bent: Vector = f.gradient(x) + 2 * beta * x / (1 + x**2) ** 2
        return bent

    return Landscape(
        [functools.partial(value, f) for f in problem.objectives],
        [functools.partial(gradient, f) for f in problem.objectives],
        smoothness_of(problem, beta),
        variant.gamma,
        variant.penalty,
    )


def smoothness_of(problem: Problem, beta: float) -> float:
    """L, of every f_i with the term that is not convex."""
    return max(f.smoothness for f in problem.objectives) + 2 * beta
