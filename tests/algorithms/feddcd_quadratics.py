"""Quadratic clients for runs of the real thing: an objective of one's own whose local problems are solved exactly."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from fenchel.common.arrays import Dense, Indices, Vector
from fenchel.common.data.shard import Shard
from fenchel.common.objectives.metrics import Metrics
from fenchel.common.objectives.objective import Objective
from fenchel.common.settings.run import RunSettings, validate
from tests.algorithms.feddcd_oracle import Quadratics
from tests.algorithms.mlr import Problem, Run, train

NEWTON = {"kind": "newton", "stop": {"steps": 1}}
"""One step finds the minimiser of a quadratic function."""


class Quadratic(Objective):
    """f(w) = (1/2) (w - m)^T A (w - m); the shard's features are A, its labels m.

    The constants, if given, are told in place of the extreme eigenvalues of A.
    """

    def __init__(
        self,
        *,
        shard: Shard,
        l2: float,
        dtype: DTypeLike,
        strong_convexity: float | None = None,
        smoothness: float | None = None,
    ) -> None:
        super().__init__(dimension=shard.features.shape[1], samples=shard.samples, dtype=dtype)
        self.curvature, self.center = np.asarray(shard.features), shard.labels.astype(np.float64)
        self._constants = strong_convexity, smoothness

    def loss(self, w: Vector) -> float:
        apart = w - self.center
        return 0.5 * float(apart @ self.curvature @ apart)

    def batch_gradient(self, w: Vector, rows: Indices) -> Vector:
        gradient: Vector = self.curvature @ (w - self.center)
        return gradient

    def hessian_vector(self, w: Vector, v: Vector) -> Vector:
        product: Vector = self.curvature @ v
        return product

    def evaluate(self, w: Vector, shard: Shard | None = None) -> Metrics:
        return Metrics(loss_sum=self.loss(w) * self.samples, correct=None, samples=self.samples)

    @cached_property
    def _eigenvalues(self) -> Vector:
        return np.linalg.eigvalsh(self.curvature)

    @property
    def strong_convexity(self) -> float:
        return self._constants[0] or float(self._eigenvalues[0])

    @property
    def smoothness(self) -> float:
        return self._constants[1] or float(self._eigenvalues[-1])


class QuadraticProblem(Problem):
    """The clients of given quadratics; ``parameters`` are those of :class:`Quadratic`."""

    parameters: Mapping[str, float] = {}

    @property
    def objectives(self) -> list[Objective]:
        return [Quadratic(shard=shard, l2=0, dtype=np.float64, **self.parameters) for shard in self.shards]

    def settings(self, folder: Path, algorithm: Mapping[str, Any], **sections: Any) -> RunSettings:
        basis = {
            "name": "quadratics",
            "rounds": 3,
            "clients": self.clients,
            "data": {"name": "own", "task": "regression"},
            "objective": {
                "kind": "own",
                "name": f"{__name__}:{Quadratic.__name__}",
                "parameters": dict(self.parameters),
            },
            "algorithm": dict(algorithm),
            "evaluation": {"server": False, "clients": False},
        }
        return validate(basis | sections)


def problem_of(quadratics: Quadratics, **parameters: float) -> QuadraticProblem:
    """Return the problem as the clients of a run hold it."""
    dimension = quadratics.centers.shape[1]
    shards = [
        Shard(curvature, center, classes=0, total_features=dimension, samples_held=np.arange(dimension))
        for curvature, center in zip(quadratics.curvatures, quadratics.centers, strict=True)
    ]
    problem = QuadraticProblem(tuple(shards), l2=0.0)
    object.__setattr__(problem, "parameters", parameters)
    return problem


def train_quadratics(problem: QuadraticProblem, parent: Path, algorithm: Mapping[str, Any], **given: Any) -> Run:
    """Run an algorithm on them; see :func:`tests.algorithms.mlr.train`."""
    return train(problem, parent, algorithm, **given)


def duals_of(run: Run, name: str = "dual") -> Dense:
    """Return y_i (or z_i, ``momentum``) of all clients as they stand on them, shape (N, d)."""
    return np.stack(run.client_states(name))
