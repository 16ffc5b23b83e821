"""What is minimised: the model, its loss and its regularisation."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from pydantic import Field, JsonValue

from common.settings.regularizer import NoneSettings, RegularizerSettings
from common.settings.section import Section


class _Common(Section):
    l2: float = Field(
        default=0.0,
        ge=0,
        description="weight of the term (l2/2) ||w||^2 added to the mean loss; without it a model is not "
        "strongly convex, which dual algorithms need",
    )
    regularizer: RegularizerSettings = Field(
        default=NoneSettings(),
        description="a term h of the model alone that may have corners, added once to the mean of the clients' "
        "objectives; for algorithms that can treat it",
    )


class _Double(_Common):
    dtype: Literal["float64", "float32"] = Field(
        default="float64", description="floating-point type of models, gradients and features"
    )


class _Linear(_Double):
    nonconvex: float = Field(
        default=0.0,
        ge=0,
        description="beta, weight of the term beta * sum_j w_j^2 / (1 + w_j^2) added to the mean loss, which is "
        "smooth but not convex",
    )


class LinearSettings(_Linear):
    """A linear model whose loss has no parameter of its own."""

    kind: Literal["squared", "logistic", "hinge", "squared-hinge", "softmax", "one-sided-logistic"] = Field(
        description="loss of a linear model: squared (regression, or two classes as -1 and +1); logistic, "
        "hinge and squared-hinge (two classes); softmax (any number of classes, one weight vector for each); "
        "one-sided-logistic (likewise, but only the score of the true class counts: the loss of FedPDM)"
    )


class SmoothedHingeSettings(_Linear):
    """A linear model with the hinge loss, its corner rounded to a parabola."""

    kind: Literal["smoothed-hinge"] = Field(description="hinge loss with a rounded corner (two classes)")
    smoothing: float = Field(
        default=1.0,
        gt=0,
        description="width s of the rounded corner; the loss is (1/s)-smooth, at most s/2 below the hinge",
    )


class _Single(_Common):
    dtype: Literal["float64", "float32"] = Field(
        default="float32", description="floating-point type of models, gradients and features"
    )


class MlpSettings(_Single):
    """A network with one hidden layer."""

    kind: Literal["mlp"] = Field(
        description="fully connected network with one hidden layer, ReLU, no biases, and cross-entropy; "
        "needs torch"
    )
    hidden: int = Field(default=32, ge=1, description="units of the hidden layer")


class CnnSettings(_Single):
    """A convolutional network for square grey images."""

    kind: Literal["cnn"] = Field(
        description="two 3x3 convolutions (16 and 32 channels), each with ReLU and 2x2 max-pooling, then 500 "
        "units, ReLU, and cross-entropy; reads square grey images, 28x28 for instance; needs torch"
    )


class OwnSettings(_Double):
    """An objective from outside the project."""

    kind: Literal["own"] = Field(description="a subclass of fenchel.Objective from outside the project")
    name: str = Field(pattern=r"^[\w.]+:\w+$", description="the class, as package.module:Class")
    parameters: dict[str, JsonValue] = Field(
        default={}, description="keyword arguments of the class, beside shard, l2 and dtype"
    )


ObjectiveSettings: TypeAlias = Annotated[
    LinearSettings | SmoothedHingeSettings | MlpSettings | CnnSettings | OwnSettings,
    Field(discriminator="kind"),
]
"""The section ``objective``: which of them is meant follows from ``kind``."""
