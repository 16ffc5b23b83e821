"""Choice of the local solver for an objective, and checks of the choice that need no data."""

from __future__ import annotations

import math
from collections.abc import Callable

from fenchel.common.errors import SettingsError
from fenchel.common.objectives.linear import LinearObjective
from fenchel.common.objectives.objective import Objective
from fenchel.common.settings.solver import (
    AdamSolver,
    AutoSolver,
    DefiniteSolver,
    GradientSolver,
    NewtonCgSolver,
    NewtonSolver,
    SgdSolver,
    Solver,
    Stopping,
)

LARGEST_HESSIAN = 2000
"""Number of rows of the largest Hessian that Newton's method builds."""


def chosen(settings: Solver, objective: Objective) -> DefiniteSolver:
    """Return the solver and the stopping criterion that the settings select for an objective.

    ``auto`` selects newton-cg for smooth and strongly convex linear models, and sgd for all other objectives. Without
    a stopping criterion in the settings, sgd and adam run for 5 epochs. The other solvers reach an accuracy of 1/4,
    which FedDCD requires (docs/algorithms/feddcd.md).

    Raises
    ------
    SettingsError
        If the loss is not smooth, and the solver is neither sgd nor adam.
    """
    smooth = isinstance(objective, LinearObjective) and math.isfinite(objective.score_loss.smoothness)
    if isinstance(settings, AutoSolver):
        usual = NewtonCgSolver if smooth and objective.strong_convexity > 0 else SgdSolver
        settings = usual(stop=settings.stop)
    cornered = isinstance(objective, LinearObjective) and not smooth
    promising_nothing = isinstance(settings, SgdSolver | AdamSolver)
    if cornered and not promising_nothing:
        raise SettingsError(
            f"{settings.kind} needs a smooth loss, but the hinge is not smooth; use sgd or adam, or "
            "objective.kind: smoothed-hinge or squared-hinge",
            key="solver.kind",
        )
    rule = settings.stop.or_usual(Stopping(epochs=5) if promising_nothing else Stopping(accuracy=0.25))
    return settings.model_copy(update={"stop": rule})


def check_solver(settings: Solver, objective: Objective) -> None:
    """Raise a ``SettingsError`` if a solver or its stopping criterion cannot fit an objective on any data set."""
    solver = chosen(settings, objective)
    check_fit(solver, objective, lambda: strong_convexity(objective), lambda: smoothness(objective))


def check_fit(
    solver: DefiniteSolver, objective: Objective, alpha: Callable[[], float | None], beta: Callable[[], float | None]
) -> None:
    """Raise a ``SettingsError`` if a solver cannot solve a problem, or cannot meet its stopping criterion.

    Parameters
    ----------
    alpha, beta
        Functions that return strong convexity and smoothness of the problem, or ``None`` if they are not known yet.
    """
    stop, kind = solver.stop, solver.kind
    if isinstance(solver, NewtonSolver) and objective.dimension > LARGEST_HESSIAN:
        raise SettingsError(
            f"newton needs a Hessian of {objective.dimension:,} rows, but at most {LARGEST_HESSIAN:,} are "
            "supported; use newton-cg, which needs no Hessian",
            key="solver.kind",
        )
    if isinstance(solver, NewtonSolver | NewtonCgSolver) and type(objective).hessian_vector is Objective.hessian_vector:
        raise SettingsError(
            f"{kind} needs second derivatives, which {type(objective).__name__} does not have; use sgd, adam or lbfgs",
            key="solver.kind",
        )
    if not isinstance(solver, SgdSolver | AdamSolver):
        if stop.epochs is not None:
            raise SettingsError(
                f"{kind} uses all samples in every step, so it has no epochs; use solver.stop.steps",
                key="solver.stop.epochs",
            )
    elif rule := next((rule for rule in ("accuracy", "gradient") if getattr(stop, rule) is not None), None):
        raise SettingsError(
            f"{kind} has no measure of its accuracy; use solver.stop.epochs or steps, or another solver, such as "
            "newton-cg",
            key=f"solver.stop.{rule}",
        )
    step_size = solver.step_size if isinstance(solver, GradientSolver) else None
    if step_size == "1/beta" and beta() == math.inf:
        raise SettingsError(
            "1/beta needs a smooth objective, which this objective is not known to be; use a number, or "
            "solver.kind: sgd",
            key="solver.step_size",
        )
    by_accuracy = stop.accuracy is not None
    if not by_accuracy and step_size != "2/(alpha+beta)":
        return
    needs = "the accuracy as stopping criterion" if by_accuracy else step_size
    key = "solver.stop.accuracy" if by_accuracy else "solver.step_size"
    convexity = alpha()
    if convexity is not None and not convexity > 0:
        raise SettingsError(
            f"{needs} needs a strongly convex objective, which this objective is not known to be; set objective.l2 of "
            f"a linear model above 0, or use {'solver.stop.steps or gradient' if by_accuracy else '1/beta'}",
            key=key,
        )
    if beta() == math.inf:
        raise SettingsError(
            f"{needs} needs a smooth objective, which this objective is not known to be; use "
            f"{'solver.stop.steps or gradient' if by_accuracy else 'a number'}, or solver.kind: sgd with "
            "solver.stop.epochs",
            key=key,
        )


def strong_convexity(objective: Objective) -> float | None:
    """Return the strong convexity that an objective has on every data set.

    Returns
    -------
    float or None
        Constant; minus infinity if none is known, ``None`` if it depends on the data.
    """
    if isinstance(objective, LinearObjective):
        return objective.strong_convexity
    return None if type(objective).strong_convexity is not Objective.strong_convexity else -math.inf


def smoothness(objective: Objective) -> float | None:
    """Return infinity if an objective's smoothness is unknown for any data, or ``None`` if it depends on the data."""
    if isinstance(objective, LinearObjective):
        return None if math.isfinite(objective.score_loss.smoothness) else math.inf
    return None if type(objective).smoothness is not Objective.smoothness else math.inf
