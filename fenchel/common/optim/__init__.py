"""Local solvers behind one interface, so that each client may use the solver that suits its machine.

solved = solve(Tilted(objective, y), w, settings, random)
"""

from __future__ import annotations

import numpy as np

from fenchel.common.arrays import Vector
from fenchel.common.optim import gradient, lbfgs, newton, stochastic
from fenchel.common.optim.choice import check_fit, chosen
from fenchel.common.optim.problem import Solved, Tilted
from fenchel.common.settings.solver import (
    AdamSolver,
    GradientSolver,
    LbfgsSolver,
    NewtonCgSolver,
    NewtonSolver,
    SgdSolver,
    Solver,
)

__all__ = ["Solved", "Tilted", "chosen", "solve"]


def solve(problem: Tilted, start: Vector, settings: Solver, random: np.random.Generator) -> Solved:
    """Minimise the local problem approximately with the solver that the settings name.

    Equal arguments give equal results, bit for bit, in one computing environment (:mod:`fenchel.common.environment`).

    Parameters
    ----------
    start
        Starting point of the solver, shape (d,). A copy in the objective's dtype is used.
    settings
        Solver and its stopping criterion.
    random
        Random number generator, which only sgd and adam use.

    Raises
    ------
    SettingsError
        If the solver or its stopping criterion does not fit the objective.
    DivergedError
        If a model or gradient is not finite.
    """
    w = start.astype(problem.objective.dtype)
    solver = chosen(settings, problem.objective)
    check_fit(
        solver, problem.objective, lambda: problem.objective.strong_convexity, lambda: problem.objective.smoothness
    )
    match solver:
        case GradientSolver():
            return gradient.gradient_descent(problem, w, solver)
        case NewtonSolver():
            return newton.newton(problem, w, solver)
        case NewtonCgSolver():
            return newton.newton_cg(problem, w, solver)
        case LbfgsSolver():
            return lbfgs.lbfgs(problem, w, solver)
        case AdamSolver():
            return stochastic.adam(problem, w, solver, random)
        case SgdSolver():
            return stochastic.sgd(problem, w, solver, random)
