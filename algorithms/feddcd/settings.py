"""Settings of FedDCD and AccFedDCD, and the scalars of acceleration that their two halves share."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Self

import numpy as np
from pydantic import Field, NonNegativeInt, PositiveFloat, model_validator

from fenchel.common.errors import SettingsError
from fenchel.common.settings.algorithm import AlgorithmSettings, Weighting
from fenchel.common.settings.participation import Sampler
from fenchel.common.settings.solver import AutoSolver, SolverSettings


class DualAscentSettings(AlgorithmSettings):
    """What FedDCD and AccFedDCD have in common (Fan, Fang and Friedlander 2022)."""

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
    output: Literal["average", "random-client"] = Field(
        "average",
        description="the final model: the average of the last round, which is at least as good in expectation, "
        "or a random client's minimiser (the paper)",
    )
    dual_step_size: PositiveFloat | None = Field(
        None,
        description="what replaces eta / lambda_i where the objective is not strongly convex (neural networks), "
        "0.1 for instance",
    )

    @model_validator(mode="after")
    def _certified_if_convex(self) -> Self:
        if self.dual_step_size is None:
            return self
        if self.output != "average":
            raise ValueError(
                "output: random-client needs a convex objective, whose minimiser does not depend on where the solve "
                "starts; with dual_step_size only average is possible"
            )
        if self.monitor:
            raise ValueError(
                f"monitor: {self.monitor} given, but with dual_step_size the objective is not taken to be convex, and then "
                "there is no duality gap; leave one of them out"
            )
        return self

    def minimises(self, sampler: Sampler) -> Weighting | None:
        """As the settings say, whoever is drawn how often: a dual step leaves the optimum where it is."""
        return self.weighting


@dataclass(frozen=True)
class Acceleration:
    """The scalars of AccFedDCD, the same for all clients: otherwise the duals would not sum to zero."""

    a: float  # a, b, theta: as in the paper's Algorithm 2 (specification, section 2.3)
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

    cohort: tau, the (mean) number of clients in a round.
    scales: 1 / lambda_i of all clients.
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
        "feddcd needs a strongly convex objective: set objective.l2 above 0, or algorithm.dual_step_size (such as 0.1) for "
        "a neural network",
        key="objective.l2",
    )
