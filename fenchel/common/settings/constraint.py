"""Sets that a model may be confined to."""

from __future__ import annotations

from typing import Annotated, Literal, Self, TypeAlias

from pydantic import Field, PositiveFloat, model_validator

from fenchel.common.settings.section import Section


class NoConstraint(Section):
    """Absence of a constraint."""

    kind: Literal["none"] = Field(description="every model")


class BallConstraint(Section):
    """Models of bounded norm."""

    kind: Literal["ball"] = Field(description="models up to a distance from zero")
    radius: PositiveFloat = Field(description="largest Euclidean norm of a model")


class ParameterBounds(Section):
    """Bounds on every parameter of a model."""

    kind: str
    lower: float = Field(description="smallest value of a parameter")
    upper: float = Field(description="largest value of a parameter")

    @model_validator(mode="after")
    def _not_empty(self) -> Self:
        if self.lower > self.upper:
            raise ValueError(f"lower: {self.lower:g} given; expected at most upper, which is {self.upper:g}")
        return self


class BoxConstraint(ParameterBounds):
    """Models whose parameters are bounded one by one."""

    kind: Literal["box"] = Field(description="models whose parameters lie between two numbers")


ConstraintSettings: TypeAlias = Annotated[NoConstraint | BallConstraint | BoxConstraint, Field(discriminator="kind")]
"""The section ``algorithm.constraint``: which of them is meant follows from ``kind``."""
