"""Settings of local solvers and their stopping criteria."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self, TypeAlias

import yaml
from pydantic import Field, PositiveFloat, PositiveInt, TypeAdapter, ValidationError, model_validator

from fenchel.common.errors import SettingsError
from fenchel.common.settings.section import Section, settings_error, yaml_value


class Stopping(Section):
    """Rule by which a solver stops; by default the usual rule of the solver.

    The usual rule is ``accuracy: 0.25`` for a solver that can keep it on a smooth and strongly convex
    problem, and ``epochs: 5`` for sgd and adam.
    """

    steps: PositiveInt | None = Field(
        None,
        description="number of iterations (mini-batches of sgd and adam). With accuracy or gradient: largest number of "
        "iterations, after which the solver returns its last iterate; null: 10,000",
    )
    epochs: PositiveInt | None = Field(None, description="number of passes over the samples, for sgd and adam")
    accuracy: float | None = Field(
        None,
        gt=0,
        lt=1,
        description="delta: the squared distance to the solution is at most delta times that of the start; "
        "for smooth and strongly convex problems, not with sgd and adam",
    )
    gradient: PositiveFloat | None = Field(
        None, description="largest Euclidean norm of the local problem's gradient; not with sgd and adam"
    )

    @model_validator(mode="after")
    def _one_rule(self) -> Self:
        given = [name for name in ("epochs", "accuracy", "gradient") if getattr(self, name) is not None]
        if self.steps is not None and self.epochs is not None:
            given.append("steps")
        if len(given) > 1:
            raise ValueError(f"give one of epochs, accuracy and gradient, or steps, not {' and '.join(given)}")
        return self

    def or_usual(self, usual: Stopping) -> Stopping:
        """Return this rule, or the usual one if none is given."""
        return self if self.given else usual

    @property
    def given(self) -> bool:
        """True if a stopping criterion is given, and not the default."""
        return any(rule is not None for rule in (self.steps, self.epochs, self.accuracy, self.gradient))

    def within(self, delta: float) -> Stopping:
        """Return the same rule, or the accuracy ``delta`` where the rule is a less demanding accuracy."""
        if not self.given:
            raise ValueError("there is no rule that could be tightened; let the solver be chosen first")
        if self.accuracy is None or self.accuracy <= delta:
            return self
        return self.model_copy(update={"accuracy": delta})


class _Solver(Section):
    stop: Stopping = Field(Stopping(), description="stopping criterion; {}: the default")

    def stopping_like(self, run: _Solver) -> Self:
        """Return this solver, with the stopping rule of another one if it names none itself.

        For a client's own choice of a solver in a run that settled when to stop.
        """
        return self if self.stop.given else self.model_copy(update={"stop": run.stop})

    def within(self, delta: float) -> Self:
        """Return this solver, its accuracy ``delta`` at most; see :meth:`Stopping.within`."""
        return self.model_copy(update={"stop": self.stop.within(delta)})


class AutoSolver(_Solver):
    """The usual choice for the objective."""

    kind: Literal["auto"] = Field(
        "auto", description="newton-cg for a linear model with a smooth loss and l2 > 0, otherwise sgd"
    )


class GradientSolver(_Solver):
    """Gradient descent on the whole shard."""

    kind: Literal["gradient"] = Field("gradient", description="gradient descent, all samples in every step")
    step_size: Literal["1/beta", "2/(alpha+beta)"] | PositiveFloat = Field(
        "1/beta",
        description="step size: from the smoothness beta and the strong convexity alpha of the local problem, "
        "or a number",
    )
    accelerated: bool = Field(
        False, description="Nesterov's acceleration: about the square root of the number of steps"
    )

    @model_validator(mode="after")
    def _short_when_accelerated(self) -> Self:
        if self.accelerated and self.step_size == "2/(alpha+beta)":
            raise ValueError(
                f"step_size: {self.step_size} is too large with accelerated: true; use 1/beta, or a number of at most "
                "that value"
            )
        return self


class NewtonSolver(_Solver):
    """Newton's method with the whole Hessian."""

    kind: Literal["newton"] = Field(
        "newton", description="Newton's method, Cholesky decomposition of the Hessian, backtracking"
    )


class NewtonCgSolver(_Solver):
    """Newton's method without a Hessian."""

    kind: Literal["newton-cg"] = Field(
        "newton-cg", description="Newton's method, conjugate gradients on Hessian-vector products, backtracking"
    )


class LbfgsSolver(_Solver):
    """Limited-memory BFGS."""

    kind: Literal["lbfgs"] = Field("lbfgs", description="limited-memory BFGS, of scipy")


class _Stochastic(_Solver):
    batch_size: PositiveInt | None = Field(32, description="samples in a step; null: the whole shard")


class SgdSolver(_Stochastic):
    """Stochastic gradient descent."""

    kind: Literal["sgd"] = Field("sgd", description="stochastic (sub)gradient descent, for every objective")
    step_size: PositiveFloat = Field(0.1, description="step size")


Decay: TypeAlias = Annotated[float, Field(ge=0, lt=1)]
"""Factor on a running mean in every step."""


class AdamSolver(_Stochastic):
    """Adam."""

    kind: Literal["adam"] = Field("adam", description="Adam, for every objective; each solve starts it anew")
    step_size: PositiveFloat = Field(0.001, description="step size")
    betas: tuple[Decay, Decay] = Field(
        (0.9, 0.999), description="decay of the mean of gradients, and of the mean of squared gradients"
    )


DefiniteSolver: TypeAlias = GradientSolver | NewtonSolver | NewtonCgSolver | LbfgsSolver | SgdSolver | AdamSolver
"""Any section but auto."""

Solver: TypeAlias = AutoSolver | DefiniteSolver
"""Any section."""

SolverSettings: TypeAlias = Annotated[Solver, Field(discriminator="kind")]
"""A section ``solver``: which of them is meant follows from ``kind``."""


def parse_solver(text: str, source: str = "solver") -> Solver:
    """Return the solver that a short text names, as on a command line.

    Parameters
    ----------
    text
        A kind, as ``lbfgs``, or a section, as ``{kind: gradient, accelerated: true, stop: {steps: 30}}``.
    source
        Where the text came from, for the error.
    """
    try:
        given: Any = yaml_value(text)
    except yaml.YAMLError:
        given = None
    values = {"kind": given} if isinstance(given, str) else given
    if not isinstance(values, dict):
        raise SettingsError(
            f"{text!r} is not a solver; give a kind, such as lbfgs, or a section in braces, such as "
            "'{kind: gradient, accelerated: true}'",
            source=source,
        )
    adapter: TypeAdapter[Solver] = TypeAdapter(SolverSettings)
    try:
        return adapter.validate_python(values)
    except ValidationError as error:
        raise settings_error(error, values, source) from None
