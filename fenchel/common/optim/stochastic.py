"""Stochastic gradient descent and Adam for all objectives, including networks and non-smooth losses."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from fenchel.common.arrays import Vector
from fenchel.common.optim.problem import Solved, Tilted
from fenchel.common.optim.stopping import diverged, too_long
from fenchel.common.settings.solver import AdamSolver, SgdSolver

# number of steps between checks that the iterate is finite, as a check costs as much as a small batch
_LOOK = 64

_EPSILON = 1e-8  # epsilon of Kingma and Ba, added to the root of the second moment


def sgd(problem: Tilted, start: Vector, settings: SgdSolver, random: np.random.Generator) -> Solved:
    """Iterate ``w <- w - step_size g`` from ``start``, shape (d,), with g the gradient on a mini-batch."""
    return _descend(problem, start, settings, random, lambda g, _: settings.step_size * g)


def adam(problem: Tilted, start: Vector, settings: AdamSolver, random: np.random.Generator) -> Solved:
    """Run Adam from ``start``, shape (d,).

    The method is Algorithm 1 of Kingma and Ba, "Adam: A Method for Stochastic Optimization", 2015.
    """
    m, v = np.zeros_like(start), np.zeros_like(start)
    beta1, beta2 = settings.betas

    def step(g: Vector, t: int) -> Vector:
        nonlocal m, v
        m = beta1 * m + (1 - beta1) * g
        v = beta2 * v + (1 - beta2) * g**2
        unbiased_m, unbiased_v = m / (1 - beta1**t), v / (1 - beta2**t)
        return settings.step_size * unbiased_m / (np.sqrt(unbiased_v) + _EPSILON)

    return _descend(problem, start, settings, random, step)


def _descend(
    problem: Tilted,
    start: Vector,
    settings: SgdSolver | AdamSolver,
    random: np.random.Generator,
    step: Callable[[Vector, int], Vector],
) -> Solved:
    """Subtract from ``start`` one step after another, each given the gradient on a mini-batch and the step's number."""
    w, t, stop = start.copy(), 0, settings.stop
    epochs = stop.epochs if stop.steps is None else None
    batches = problem.objective.batches(random, steps=stop.steps, epochs=epochs, batch_size=settings.batch_size)
    with np.errstate(over="ignore", invalid="ignore"):
        for t, rows in enumerate(batches, 1):
            w -= step(problem.batch_gradient(w, rows), t)
            if t % _LOOK == 0:
                _check(w, settings)
    _check(w, settings)
    return Solved(w, t, math.nan)


def _check(w: Vector, settings: SgdSolver | AdamSolver) -> None:
    """Raise a ``DivergedError`` if the iterate is not finite."""
    if not np.isfinite(w).all():
        raise diverged(settings.kind, too_long("solver.step_size", settings.step_size, "give a smaller one"))
