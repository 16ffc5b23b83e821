"""Settings of FedDCD and AccFedDCD, and the scalars of acceleration that their two halves share."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, Self

import numpy as np
from pydantic import Field, NonNegativeInt, PositiveFloat, model_validator

from fenchel.common.algorithm_registry import AlgorithmSettings, Weighting
from fenchel.common.errors import SettingsError
from fenchel.common.settings.participation import Sampler
from fenchel.common.settings.solver import AutoSolver, SolverSettings


class DualAscentSettings(AlgorithmSettings):
    """What FedDCD and AccFedDCD have in common (Fan, Fang and Friedlander 2022)."""

    asks: ClassVar[tuple[str, ...]] = ("describe", "minimize", "certify", "solve_at_dual")

    weighting: Literal["uniform", "samples"] = Field(
        "samples",
        description="the objective is the sum of the clients' mean losses (uniform: the paper), or each "
        "weighted by N n_i / n, which makes it the mean loss over all samples",
    )
    solver: SolverSettings = Field(
        default_factory=AutoSolver,
        description="how a client solves its local problem, and how accurately (docs/solvers.md); by default to the "
        "accuracy delta = 1/4, with which the method needs no more rounds than with exact solves",
    )
    first_accuracy: float = Field(
        0.01,
        gt=0,
        lt=1,
        description="accuracy of a client's first solve, which has no warm start, where solver.stop asks for less",
    )
    monitor: NonNegativeInt = Field(
        0,
        description="every so many rounds have all clients solve exactly, and report the objective that is "
        "minimised, the dual objective and the gap (each divided by the number of clients); 0: never",
    )
    returned: Literal["average", "random-client"] = Field(
        "average",
        description="the final model: the average of the last round, which is at least as good in expectation, "
        "or a random client's minimiser (the paper)",
    )
    dual_step: PositiveFloat | None = Field(
        None,
        description="what replaces eta / lambda_i where the objective is not strongly convex (neural networks), "
        "0.1 for instance",
    )

    @model_validator(mode="after")
    def _certified_if_convex(self) -> Self:
        if self.dual_step is None:
            return self
        if self.returned != "average":
            raise ValueError(
                "returned: random-client needs a convex objective, whose minimiser does not depend on where the solve "
                "starts; with dual_step only average is possible"
            )
        if self.monitor:
            raise ValueError(
                f"monitor: {self.monitor} given, but with dual_step the objective is not taken to be convex, and then "
                "there is no duality gap; leave one of them out"
            )
        return self

    def minimises(self, sampler: Sampler) -> Weighting | None:
        """As the settings say, whoever is drawn how often: a dual step leaves the optimum where it is."""
        return self.weighting


class FedDCDSettings(DualAscentSettings):
    """Federated dual coordinate descent (Algorithm 1 of the paper), exact or inexact."""

    name: Literal["feddcd"] = "feddcd"
    step_size: float = Field(
        1.0,
        gt=0,
        description="eta; stable below 2. 1 is the minimax choice, 1.9 needed half the rounds in practice, 0.25 is "
        "that of the theorem for inexact solves",
    )

    @property
    def warnings(self) -> tuple[str, ...]:
        """A step that is known to diverge."""
        if self.step_size > 2:
            return (f"algorithm.step_size: {self.step_size:g}. Above 2 FedDCD diverges",)
        return ()

    @model_validator(mode="after")
    def _one_of_both(self) -> Self:
        if self.dual_step is not None and self.step_size != 1.0:
            raise ValueError("step_size: not used where dual_step is given; leave one of them out")
        return self


class AccFedDCDSettings(DualAscentSettings):
    """Accelerated FedDCD (Algorithm 2 of the paper)."""

    name: Literal["acc-feddcd"] = "acc-feddcd"
    cohorts: Literal[1, 2] = Field(
        1,
        description="cohorts a round: two as printed, or one, which the same proof covers (for equal "
        "alpha_i) at half of the traffic",
    )
    smoothness: PositiveFloat | None = Field(
        None,
        description="beta of each client's objective before weighting; null: its own bound. A "
        "smaller one than the truth may be "
        "faster, without guarantee",
    )
    conditioning: float | None = Field(
        None,
        gt=0,
        le=1,
        description="alpha / beta, from which the acceleration follows; null: the smallest of the clients' own. With "
        "dual_step and a neural network, which has neither, it must be given (the paper's code: 30 times l2)",
    )
    restart: bool = Field(
        True,
        description="restart the acceleration, with solves four times as accurate, when the clients' minimisers "
        "move apart and local solves were not accurate enough, which each client bounds by the gradient that it left",
    )

    @model_validator(mode="after")
    def _one_conditioning(self) -> Self:
        if self.conditioning is not None and self.smoothness is not None:
            raise ValueError(
                "smoothness: not used where conditioning is given, which is alpha / beta; leave one of them out"
            )
        return self


@dataclass(frozen=True)
class Acceleration:
    """The scalars of AccFedDCD, the same for all clients: otherwise the duals would not sum to zero.

    Attributes
    ----------
    a, b, theta
        As in the paper's Algorithm 2 (specification, section 2.3).
    """

    a: float
    b: float
    theta: float

    @classmethod
    def of(cls, participation: float, conditioning: float) -> Acceleration:
        """Return the scalars for r in (0, 1] and alpha / beta in (0, 1]."""
        r, q = participation, math.sqrt(conditioning)
        a = r * q / (1 + r * q)
        b = conditioning * a * r**2
        return cls(a, b, a * r / (a**2 + b))

    @property
    def decay(self) -> float:
        """rho, by which z - y shrinks in a round that a client sits out."""
        return self.a**2 * (1 - self.a) / (self.a**2 + self.b)


def effective_participation(cohort: float, scales: Sequence[float]) -> float:
    """Return r: (tau - 1) / (N - 1) for equal scales, a lower value for others (specification, 1.5).

    For unequal scales there is no proof that the accelerated method converges with it; it does in practice.

    Parameters
    ----------
    cohort
        tau, the (mean) number of clients in a round.
    scales
        1 / lambda_i of all clients.
    """
    n, a = len(scales), np.sort(np.asarray(scales, np.float64))
    if n < 2 or cohort >= n:
        return 1.0
    total = float(a.sum())
    # The smallest ratio is that of the pair with the largest sum if it decreases in the sum, which it does.
    pair = float(a[-1] + a[-2])
    rest = 0.0 if n == 2 else (cohort - 2) / (n - 2) * (total - pair)
    return cohort * (cohort - 1) / (n * (n - 1)) * total / (pair + rest)


def not_convex() -> SettingsError:
    """Return the error of FedDCD with an objective whose strong convexity is not known to be positive."""
    return SettingsError(
        "feddcd needs a strongly convex objective: set objective.l2 above 0, or algorithm.dual_step (such as 0.1) for "
        "a neural network",
        key="objective.l2",
    )
