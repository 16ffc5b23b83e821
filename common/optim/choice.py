"""Choice of the local solver for an objective, and its checks before any data are seen."""

from __future__ import annotations

import math

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
"""Rows of the largest Hessian that Newton's method builds."""


def chosen(settings: Solver, objective: Objective) -> DefiniteSolver:
    """Return the solver that the settings mean for an objective, and the stopping rule that they mean.

    ``auto`` is newton-cg for linear models that are smooth and strongly convex, and sgd for all others. Where no
    rule is given, sgd and adam do 5 epochs, and the others solve to an accuracy of 1/4, which is what FedDCD
    asks for (docs/algorithms/feddcd.md).
    """
    smooth = isinstance(objective, LinearObjective) and math.isfinite(objective.score_loss.smoothness)
    if isinstance(settings, AutoSolver):
        usual = NewtonCgSolver if smooth and objective.strong_convexity > 0 else SgdSolver
        settings = usual(stop=settings.stop)
    cornered = isinstance(objective, LinearObjective) and not smooth
    promising_nothing = isinstance(settings, SgdSolver | AdamSolver)
    if cornered and not promising_nothing:
        raise SettingsError(
            f"{settings.kind} needs a smooth loss, and the hinge has a corner; use sgd or adam, or objective.kind: "
            "smoothed-hinge or squared-hinge",
            key="solver.kind",
        )
    rule = settings.stop.or_usual(Stopping(epochs=5) if promising_nothing else Stopping(accuracy=0.25))
    return settings.model_copy(update={"stop": rule})


def check_solver(settings: Solver, objective: Objective) -> None:
    """Refuse a solver or a stopping rule that does not fit an objective, as far as that does not depend on data."""
    solver = chosen(settings, objective)
    if isinstance(solver, NewtonSolver) and objective.dimension > LARGEST_HESSIAN:
        raise hessian_too_large(objective.dimension)
    if isinstance(solver, NewtonSolver | NewtonCgSolver) and not has_hessian(objective):
        raise SettingsError(
            f"{solver.kind} needs second derivatives, which {type(objective).__name__} does not have; use sgd, adam "
            "or lbfgs",
            key="solver.kind",
        )
    if isinstance(solver, GradientSolver) and solver.step_size == "1/beta" and smoothness(objective) == math.inf:
        raise no_step_size()
    check_rule(solver)
    from_both = isinstance(solver, GradientSolver) and solver.step_size == "2/(alpha+beta)"
    if solver.stop.accuracy is None and not from_both:
        return
    alpha = strong_convexity(objective)
    if alpha is not None and alpha <= 0:
        raise not_strongly_convex()
    if smoothness(objective) == math.inf:
        raise not_smooth()


def check_rule(solver: DefiniteSolver) -> None:
    """Raise a ``SettingsError`` if a solver cannot keep its stopping rule, whatever it solves."""
    stop, kind = solver.stop, solver.kind
    if isinstance(solver, SgdSolver | AdamSolver):
        if stop.steps is None and stop.epochs is None:
            rule = "accuracy" if stop.accuracy is not None else "gradient"
            raise SettingsError(
                f"{kind} cannot tell how exact it is; give solver.stop.epochs or steps, or use another solver, such "
                "as newton-cg",
                key=f"solver.stop.{rule}",
            )
    elif stop.epochs is not None:
        raise no_passes(kind)


def strong_convexity(objective: Objective) -> float | None:
    """Return the strong convexity that an objective has with any data; ``None`` where that depends on them."""
    if isinstance(objective, LinearObjective):
        return objective.strong_convexity
    return None if type(objective).strong_convexity is not Objective.strong_convexity else -math.inf


def smoothness(objective: Objective) -> float | None:
    """Return infinity where an objective is known to be smooth with no data at all; else ``None``."""
    if isinstance(objective, LinearObjective):
        return None if math.isfinite(objective.score_loss.smoothness) else math.inf
    return None if type(objective).smoothness is not Objective.smoothness else math.inf


def has_hessian(objective: Objective) -> bool:
    """Return whether an objective has second derivatives."""
    return type(objective).hessian_vector is not Objective.hessian_vector


def no_passes(kind: str) -> SettingsError:
    """Return the error of a solver that does not go through the samples in batches."""
    return SettingsError(
        f"{kind} uses all samples in every step; give solver.stop.steps instead", key="solver.stop.epochs"
    )


def hessian_too_large(dimension: int) -> SettingsError:
    """Return the error of a solver that would build too large a matrix."""
    return SettingsError(
        f"newton would build a Hessian with {dimension:,} rows, of {LARGEST_HESSIAN:,} at most; use newton-cg, which "
        "builds none",
        key="solver.kind",
    )


def no_step_size() -> SettingsError:
    """Return the error of a solver whose step size is to follow from a bound that nobody knows."""
    return SettingsError(
        "1/beta needs a smooth objective, which this one is not known to be; give a number, or use solver.kind: sgd",
        key="solver.step_size",
    )


def not_strongly_convex() -> SettingsError:
    """Return the error of a stopping rule that needs strong convexity."""
    return SettingsError(
        "needs a strongly convex objective, which this one is not known to be; give a linear model objective.l2 above "
        "0, or use solver.stop.steps, epochs or gradient",
        key="solver.stop.accuracy",
    )


def not_smooth() -> SettingsError:
    """Return the error of a stopping rule that needs smoothness."""
    return SettingsError(
        "needs a smooth objective, which this one is not known to be; use smoothed-hinge or squared-hinge for hinge, "
        "or solver.kind: sgd with solver.stop.epochs",
        key="solver.stop.accuracy",
    )
