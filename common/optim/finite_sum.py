"""SAGA and SVRG: steps on a few samples, corrected so that their noise goes to 0.

A linear model's gradient on one sample is its features times a few numbers, the slopes. So what these methods
remember of a sample is its slopes: n numbers, or (n, K) with K outputs. The ridge, the tilt and the tie to the
anchor have no noise and are not remembered.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp

from fenchel.common.arrays import Dense, Indices, Matrix, Vector
from fenchel.common.objectives.linear import LinearObjective
from fenchel.common.optim.choice import needs_linear
from fenchel.common.optim.problem import LinearPoint, Oracle, Solved, Tilted
from fenchel.common.optim.stopping import NOT_OURS, StoppingCriterion, goal_of, too_long
from fenchel.common.settings.solver import SagaSolver, SvrgSolver


def saga(problem: Tilted, start: Vector, settings: SagaSolver, random: np.random.Generator) -> Solved:
    """Minimise from ``start``, shape (d,), remembering each sample's slopes from when it was last drawn.

    Defazio, Bach, Lacoste-Julien, "SAGA", 2014; mini-batches and step size of Gazagnadou, Gower, Salmon, "Optimal
    mini-batch and step sizes for SAGA", 2019: ``1 / (4 max(L(b), rho(b) + alpha n / (4 b)))``.
    """
    samples = _samples(problem, settings.batch_size, settings.kind)
    point = samples.at(start)
    goal = goal_of(settings.stop, settings.kind, point, passes=True, cure=_cure(settings))
    n, b = samples.count, samples.batch
    rest = samples.residual + max(problem.strong_convexity, 0.0) * n / (4 * b)
    gamma = settings.step_size or 1 / (4 * max(samples.smoothness, rest))
    done = 0
    with np.errstate(over="ignore", invalid="ignore"):
        while done < goal.limit and not goal.reached(point):
            table, mean, w = point.slopes.copy(), samples.mean_at(point), point.w.copy()
            while done < goal.limit:
                for _ in range(-(-n // b)):
                    rows, features = samples.draw(random)
                    slopes = samples.slopes(rows, features, w)
                    change = samples.sum(features, slopes - table[rows])
                    w -= gamma * (change / b + mean + samples.noiseless(w))
                    mean += change / n
                    table[rows] = slopes
                done += 1
                point.oracle.evaluations += 1
                if _promising(goal, mean + samples.noiseless(w), w):
                    break
            # The table starts anew from exact slopes, also where the promise was not kept.
            point = samples.at(w)
        return goal.solved(point, done)


def _promising(goal: StoppingCriterion, estimate: Vector, w: Vector) -> bool:
    """Whether the gradient may be small enough, by an estimate of it, both of shape (d,)."""
    norm = float(np.linalg.norm(estimate))
    return not norm > 2 * goal.threshold(w)  # also if it is not a number


def svrg(problem: Tilted, start: Vector, settings: SvrgSolver, random: np.random.Generator) -> Solved:
    """Minimise from ``start``, shape (d,), remembering all slopes at a reference point, renewed at random.

    Kovalev, Horvath, Richtarik, "Don't jump through hoops and remove those loops", 2020 (L-SVRG): after each step
    the reference point is renewed with probability b/n. An iteration goes from one to the next. Step size
    ``1 / (2 (L(b) + 2 rho(b)))``, of Sebbouh, Gazagnadou, Jelassi, Bach, Gower, "Towards closing the gap between
    the theory and practice of SVRG", 2019.
    """
    samples = _samples(problem, settings.batch_size, settings.kind)
    reference = samples.at(start)
    goal = goal_of(settings.stop, settings.kind, reference, passes=True, cure=_cure(settings))
    n, b = samples.count, samples.batch
    gamma = settings.step_size or 1 / (2 * (samples.smoothness + 2 * samples.residual))
    done = 0
    with np.errstate(over="ignore", invalid="ignore"):
        while done < goal.limit and not goal.reached(reference):
            mean, w = samples.mean_at(reference), reference.w.copy()
            steps = int(random.geometric(b / n))
            for _ in range(steps):
                rows, features = samples.draw(random)
                slopes = samples.slopes(rows, features, w)
                change = samples.sum(features, slopes - reference.slopes[rows])
                w -= gamma * (change / b + mean + samples.noiseless(w))
            reference.oracle.evaluations += steps * b / n
            reference = samples.at(w)
            done += 1
        return goal.solved(reference, done)


def _cure(settings: SagaSolver | SvrgSolver) -> str:
    if settings.step_size is None:
        return NOT_OURS
    return too_long("solver.step_size", settings.step_size, "leave it out, and the samples decide")


def _samples(problem: Tilted, batch_size: int, kind: str) -> _Samples:
    objective = problem.objective
    if not isinstance(objective, LinearObjective):
        raise needs_linear(kind)
    objective.require(objective.samples)
    batch = min(batch_size, objective.samples)
    return _Samples(problem, objective, Oracle(problem), batch)


@dataclass(frozen=True)
class _Samples:
    """The finite sum: n samples of a linear model, b of them in a step."""

    problem: Tilted
    objective: LinearObjective
    oracle: Oracle
    batch: int

    @property
    def count(self) -> int:
        return self.objective.samples

    @property
    def residual(self) -> float:
        """``rho(b) = (n - b) / (b (n - 1)) L_max``, with L_max the largest smoothness of one sample's part."""
        n, b = self.count, self.batch
        if b == n:
            return 0.0
        quadratic = self.objective.l2 + self.problem.proximal
        largest = self.objective.score_loss.smoothness * _largest_square(self.objective.features) + quadratic
        return (n - b) / (b * (n - 1)) * largest

    @property
    def smoothness(self) -> float:
        """``L(b) = n (b - 1) / (b (n - 1)) beta + rho(b)``: expected smoothness of b samples drawn of n."""
        n, b = self.count, self.batch
        whole = self.problem.smoothness
        return whole if b == n else n * (b - 1) / (b * (n - 1)) * whole + self.residual

    def at(self, w: Vector) -> LinearPoint:
        return LinearPoint(self.oracle, w, self.objective)

    def draw(self, random: np.random.Generator) -> tuple[Indices, Matrix]:
        """Draw b different samples: their positions, shape (b,), and features, shape (b, m)."""
        rows: Indices = random.choice(self.count, self.batch, replace=False, shuffle=False)
        return rows, self.objective.features[rows]

    def slopes(self, rows: Indices, features: Matrix, w: Vector) -> Dense:
        """Return the slopes of some samples at ``w``, shape (b,) or (b, K)."""
        scores = self.objective.scores(features, w)
        return self.objective.score_loss.derivative(scores, self.objective.targets[rows])

    def sum(self, features: Matrix, slopes: Dense) -> Vector:
        """Return the sum of features times slopes over some samples, shape (d,)."""
        result: Vector = (slopes.T @ features).ravel()
        return result

    def noiseless(self, w: Vector) -> Vector:
        """Return the gradient of what does not depend on samples, shape (d,)."""
        return self.objective.l2 * w + self.problem.slant(w)

    def mean_at(self, point: LinearPoint) -> Vector:
        """Return the gradient of the mean loss alone, shape (d,)."""
        return point.gradient - self.noiseless(point.w)


def _largest_square(features: Matrix) -> float:
    """Return the largest squared norm of a row."""
    squares = features.power(2).sum(axis=1) if isinstance(features, sp.csr_array) else _squares(features)
    return float(np.max(squares))


def _squares(features: Dense) -> Vector:
    squares: Vector = np.einsum("ij,ij->i", features, features)
    return squares
