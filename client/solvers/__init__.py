"""Local solvers behind one interface: a client may use the one that suits its machine.

solved = solve(Tilted(objective, y), w, settings, random)
"""

from __future__ import annotations

import math

import numpy as np

from client.solvers import finite_sum, gradient, lbfgs, newton, stochastic
from client.solvers.goal import gradient_steps
from client.solvers.problem import Solved, Tilted
from common.arrays import Vector
from common.errors import SettingsError
from common.objectives.linear import LinearObjective
from common.objectives.objective import Objective
from common.settings.solver import (
    AdamSolver,
    AutoSolver,
    DefiniteSolver,
    GradientSolver,
    LbfgsSolver,
    NewtonCgSolver,
    NewtonSolver,
    SagaSolver,
    SgdSolver,
    Solver,
    Stopping,
    SvrgSolver,
)

__all__ = ["Solved", "Tilted", "chosen", "gradient_steps", "solve"]


def solve(problem: Tilted, start: Vector, settings: Solver, random: np.random.Generator) -> Solved:
    """Minimise the local problem, approximately, by the solver that the settings name.

    Parameters
    ----------
    problem
        What is minimised.
    start
        Where the solver starts, shape (d,); not changed. Converted to the objective's dtype.
    settings
        The solver, and when it stops.
    random
        Source of all random numbers. Equal arguments give equal results, bit for bit, in one computing
        environment (:mod:`common.environment`); only saga, svrg, sgd and adam draw from it.

    Raises
    ------
    SettingsError
        The solver or its stopping rule does not fit the objective; the text says what does.
    DataError
        The shard has no samples.
    """
    w = start.astype(problem.objective.dtype)
    match chosen(settings, problem.objective):
        case GradientSolver() as given:
            return gradient.gradient_descent(problem, w, given)
        case NewtonSolver() as given:
            return newton.newton(problem, w, given)
        case NewtonCgSolver() as given:
            return newton.newton_cg(problem, w, given)
        case LbfgsSolver() as given:
            return lbfgs.lbfgs(problem, w, given)
        case SagaSolver() as given:
            return finite_sum.saga(problem, w, given, random)
        case SvrgSolver() as given:
            return finite_sum.svrg(problem, w, given, random)
        case AdamSolver() as given:
            return stochastic.adam(problem, w, given, random)
        case SgdSolver() as given:
            return stochastic.sgd(problem, w, given, random)


def chosen(settings: Solver, objective: Objective) -> DefiniteSolver:
    """Return the solver that the settings mean for an objective, and the stopping rule that they mean.

    ``auto`` is newton-cg for linear models that are smooth and strongly convex, and sgd for all others. Where no
    rule is given, sgd and adam do 5 epochs, and the others solve to an accuracy of 1/4, which is what FedDCD
    asks for (its specification, section 2.2).

    Raises
    ------
    SettingsError
        The solver needs a derivative without corners, and the objective is known to have none.
    """
    smooth = isinstance(objective, LinearObjective) and math.isfinite(objective.score_loss.smoothness)
    if isinstance(settings, AutoSolver):
        usual = NewtonCgSolver if smooth and objective.strong_convexity > 0 else SgdSolver
        settings = usual(stop=settings.stop)
    cornered = isinstance(objective, LinearObjective) and not smooth
    promising_nothing = isinstance(settings, SgdSolver | AdamSolver)
    if cornered and not promising_nothing:
        raise SettingsError(
            f"solver.kind: {settings.kind} needs a smooth loss, and the hinge has a corner; use sgd or adam, or "
            "objective.kind: smoothed-hinge or squared-hinge"
        )
    rule = settings.stop.or_usual(Stopping(epochs=5) if promising_nothing else Stopping(accuracy=0.25))
    return settings.model_copy(update={"stop": rule})
