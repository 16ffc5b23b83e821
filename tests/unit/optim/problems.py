"""Small problems, and their solutions by other means."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import DTypeLike
from scipy.optimize import root

from fenchel.common.arrays import Dense, Indices, Vector
from fenchel.common.data.shard import Shard
from fenchel.common.objectives.linear import LinearObjective
from fenchel.common.objectives.losses import Logistic, ScoreLoss, SmoothedHinge, Softmax, Squared, SquaredHinge
from fenchel.common.objectives.metrics import Metrics
from fenchel.common.objectives.objective import Objective
from fenchel.common.optim import Solved, Tilted, solve
from fenchel.common.settings.solver import parse_solver

LOSSES: dict[str, ScoreLoss] = {
    "softmax": Softmax(),
    "logistic": Logistic(),
    "squared": Squared(),
    "smoothed-hinge": SmoothedHinge(0.5),
    "squared-hinge": SquaredHinge(),
}
EXACT = [
    "gradient",
    "{kind: gradient, step_size: 2/(alpha+beta)}",
    "{kind: gradient, accelerated: true}",
    "newton",
    "newton-cg",
    "lbfgs",
]
"""Solvers that can keep an accuracy."""


def shard_of(x: Any, labels: Any, classes: int) -> Shard:
    return Shard(x, np.asarray(labels), classes, x.shape[1], np.arange(x.shape[0]))


def linear(
    loss: str,
    *,
    l2: float = 0.1,
    samples: int = 14,
    features: int = 4,
    sparse: bool = False,
    seed: int = 0,
    scale: float = 1.0,
    dtype: DTypeLike = np.float64,
) -> LinearObjective:
    draw = np.random.default_rng(seed)
    x = scale * draw.standard_normal((samples, features))
    x[draw.random(x.shape) < 0.4] = 0
    classes = 3 if loss == "softmax" else 2
    labels = draw.integers(0, classes, samples)
    return LinearObjective(
        LOSSES[loss], shard_of(sp.csr_array(x) if sparse else x, labels, classes), l2=l2, dtype=dtype
    )


def tilted(objective: Objective, seed: int = 1, size: float = 0.3) -> Tilted:
    return Tilted(objective, size * np.random.default_rng(seed).standard_normal(objective.dimension))


def minimiser(problem: Tilted) -> Vector:
    """The root of the gradient, by MINPACK; accurate to 1e-11."""
    found = root(problem.gradient, np.zeros(problem.dimension), method="hybr", options={"xtol": 1e-15})
    w: Vector = found.x
    assert np.linalg.norm(problem.gradient(w)) <= 1e-11 * problem.objective.strong_convexity
    return w


def run(problem: Tilted, text: str, start: Vector | None = None, seed: int = 0, **stop: Any) -> Solved:
    """Solve by the solver that ``text`` names, from 0 if no start is given."""
    settings = parse_solver(text)
    if stop:
        settings = settings.model_copy(update={"stop": type(settings.stop)(**stop)})
    start = np.zeros(problem.dimension) if start is None else start
    return solve(problem, start, settings, np.random.default_rng(seed))


class Quadratic(Objective):
    """``(1/2) w^T diag(curvatures) w - <slope, w>``: not a linear model, and everything is known."""

    def __init__(self, curvatures: Any, slope: Any = 0.0, *, smooth: bool = True) -> None:
        self.curvatures: Dense = np.asarray(curvatures, np.float64)
        super().__init__(dimension=self.curvatures.size, samples=1)
        self.slope = np.broadcast_to(np.asarray(slope, np.float64), self.curvatures.shape)
        self.smooth = smooth

    def loss(self, w: Vector) -> float:
        return float(0.5 * self.curvatures @ w**2 - self.slope @ w)

    def batch_gradient(self, w: Vector, rows: Indices) -> Vector:
        return self.curvatures * w - self.slope

    def hessian_vector(self, w: Vector, v: Vector) -> Vector:
        return self.curvatures * v

    def evaluate(self, w: Vector, shard: Shard | None = None) -> Metrics:
        return Metrics(loss_sum=self.loss(w), correct=None, samples=1)

    @property
    def smoothness(self) -> float:
        return float(self.curvatures.max()) if self.smooth else np.inf

    @property
    def strong_convexity(self) -> float:
        return float(self.curvatures.min())
