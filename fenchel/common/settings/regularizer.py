"""Settings of the regularisation term h of the objective ``F(x) = (1/N) sum_i f_i(x) + h(x)``."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, TypeAlias

from pydantic import Field, NonNegativeFloat, PositiveFloat

from fenchel.common.settings.constraint import ParameterBounds
from fenchel.common.settings.section import Section


class _Regularizer(Section):
    """Properties of h that algorithms check before a run."""

    present: ClassVar[bool] = True  # False only without a regularisation term
    has_slope: ClassVar[bool] = True
    """True if subgradient steps on h are useful, which they are not for bounds and counts."""

    @property
    def least_penalty(self) -> float:
        """The proximal operator is defined for penalties rho above this one; 0 where h is convex."""
        return 0.0


class NoneSettings(_Regularizer):
    """Absence of a regulariser."""

    present: ClassVar[bool] = False
    kind: Literal["none"] = Field("none", description="no such term")


class L1Settings(_Regularizer):
    """Sparse models."""

    kind: Literal["l1"] = Field(description="weight * sum_j |x_j|, which makes models sparse")
    weight: NonNegativeFloat = Field(description="gamma")


class SquaredL2Settings(_Regularizer):
    """A ridge that is part of h, not of the clients' objectives."""

    kind: Literal["squared-l2"] = Field(
        description="(weight/2) ||x||^2; other than objective.l2 it is no part of what a client minimises"
    )
    weight: NonNegativeFloat = Field(description="mu")


class ElasticNetSettings(_Regularizer):
    """Sparse models with a ridge."""

    kind: Literal["elastic-net"] = Field(description="weight * sum_j |x_j| + (ridge/2) ||x||^2")
    weight: NonNegativeFloat = Field(description="gamma, of the absolute values")
    ridge: NonNegativeFloat = Field(description="mu, of the squares")


class GroupLassoSettings(_Regularizer):
    """Models in which whole groups of weights are zero."""

    kind: Literal["group-lasso"] = Field(
        description="weight * the sum over groups of ||x_g||, which makes whole groups zero; for linear models"
    )
    weight: NonNegativeFloat = Field(description="gamma")
    groups: Literal["features", "rows"] = Field(
        "features",
        description="features: the weights of one feature, one for each class; rows: those of one class, one "
        "for each feature",
    )


class BoxSettings(_Regularizer, ParameterBounds):
    """Bounds on every weight."""

    has_slope: ClassVar[bool] = False
    kind: Literal["box"] = Field(description="0 where lower <= x_j <= upper for every j, else infinity")


class McpSettings(_Regularizer):
    """The minimax concave penalty: as l1 near zero, constant for large weights."""

    kind: Literal["mcp"] = Field(
        description="sum over weights of gamma |x| - x^2 / (2 theta) up to |x| = gamma theta, and of "
        "gamma^2 theta / 2 beyond; sparse like l1, without shrinking large weights; not convex"
    )
    weight: NonNegativeFloat = Field(description="gamma")
    theta: PositiveFloat = Field(
        description="parameter theta of the penalty; the algorithm's penalty rho must be above 1/theta"
    )

    @property
    def least_penalty(self) -> float:
        """``1/theta``: below, the function that the operator minimises is not convex."""
        return 1 / self.theta


class L0Settings(_Regularizer):
    """The number of weights that are not zero."""

    has_slope: ClassVar[bool] = False
    kind: Literal["l0"] = Field(description="weight * the number of weights that are not 0; not convex")
    weight: NonNegativeFloat = Field(description="gamma")


RegularizerSettings: TypeAlias = Annotated[
    NoneSettings
    | L1Settings
    | SquaredL2Settings
    | ElasticNetSettings
    | GroupLassoSettings
    | BoxSettings
    | McpSettings
    | L0Settings,
    Field(discriminator="kind"),
]
"""The section ``objective.regularizer``: which of them is meant follows from ``kind``."""
