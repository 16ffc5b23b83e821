"""Settings of the objective: model, loss and regularisation."""

from __future__ import annotations

from typing import Annotated, Literal, Self, TypeAlias

from pydantic import Field, JsonValue, NonNegativeInt, model_validator

from fenchel.common.settings.regularizer import NoneSettings, RegularizerSettings
from fenchel.common.settings.section import Section


class InitialModel(Section):
    """The model of an earlier run."""

    file: str = Field(
        description="the model of a run, model.npz in its folder; only the server reads it, and sends it to the clients"
    )
    fresh_head: bool = Field(
        False,
        description="draw the last layer of a network anew, and take the others from the file, which may then be of a "
        "network with another number of outputs",
    )


class _Common(Section):
    l2: float = Field(
        default=0.0,
        ge=0,
        description="weight of the term (l2/2) ||w||^2 added to the mean loss; without it a model is not "
        "strongly convex, which dual algorithms need",
    )
    regularizer: RegularizerSettings = Field(
        default=NoneSettings(),
        description="a nonsmooth term h of the model, added once to the mean of the clients' objectives; for "
        "algorithms that support it",
    )
    initial: InitialModel | None = Field(
        default=None,
        description="a model to start from, for training in two stages; null: zeros, or for networks random numbers "
        "that follow from the seed",
    )
    dtype: Literal["float64", "float32"] = Field(
        default="float64", description="floating-point type of models, gradients and features"
    )

    @property
    def starts_near_one(self) -> bool:
        """True if the zero model has a loss of about 1, whatever the samples."""
        return False


class _Linear(_Common):
    nonconvex: float = Field(
        default=0.0,
        ge=0,
        description="beta, weight of the term beta * sum_j w_j^2 / (1 + w_j^2) added to the mean loss, which is "
        "smooth but not convex",
    )


class LinearSettings(_Linear):
    """A linear model whose loss has no parameter of its own."""

    kind: Literal["squared", "logistic", "hinge", "squared-hinge", "softmax", "one-sided-logistic"] = Field(
        description="loss of a linear model. squared: regression, or two classes as -1 and +1; logistic, hinge, "
        "squared-hinge: two classes; softmax: any number of classes, one weight vector for each; "
        "one-sided-logistic: the same, but only the score of the true class counts, which is the loss of FedPDM"
    )

    @property
    def starts_near_one(self) -> bool:
        """True for losses of classes."""
        return self.kind != "squared"


class SmoothedHingeSettings(_Linear):
    """A linear model with the hinge loss, its corner rounded to a parabola."""

    kind: Literal["smoothed-hinge"] = Field(description="smoothed hinge loss (two classes)")
    smoothing: float = Field(
        default=1.0, gt=0, description="width s of the smoothing; the loss is (1/s)-smooth, at most s/2 below the hinge"
    )

    @property
    def starts_near_one(self) -> bool:
        """True unless the smoothing is wide."""
        return self.smoothing <= 1


class _Network(_Common):
    dtype: Literal["float64", "float32"] = Field(
        default="float32", description="floating-point type of models, gradients and features"
    )
    device: Literal["cpu", "cuda", "auto"] = Field(
        default="cpu",
        description="device of networks, on the server and on every client. cuda: the first GPU that torch finds, and "
        "an error without one; auto: a GPU if there is one. Different devices round differently",
    )


class MlpSettings(_Network):
    """A network with one hidden layer."""

    kind: Literal["mlp"] = Field(
        description="fully connected network with one hidden layer, ReLU, no biases, and cross-entropy; needs torch"
    )
    hidden: int = Field(default=32, ge=1, description="units of the hidden layer")


class CnnSettings(_Network):
    """A convolutional network for square grey images."""

    kind: Literal["cnn"] = Field(
        description="two 3x3 convolutions (16 and 32 channels), each with ReLU and 2x2 max-pooling, then 500 "
        "units, ReLU, and cross-entropy; reads square grey images, 28x28 for instance; needs torch"
    )


class LinearScorerSettings(Section):
    """Linear scorer, with a weight for each feature."""

    kind: Literal["linear"] = Field("linear", description="a linear score, without an intercept")


class MlpScorer(Section):
    """A network with one hidden layer and one output."""

    kind: Literal["mlp"] = Field(description="fully connected network with one hidden layer and ReLU; needs torch")
    hidden: int = Field(default=32, ge=1, description="units of the hidden layer")
    biases: bool = Field(default=True, description="whether units have biases")


class CnnScorer(Section):
    """The convolutional network with one output."""

    kind: Literal["cnn"] = Field(
        description="the network of objective.kind: cnn, with one output; reads square grey images; needs torch"
    )


class ResNetScorer(Section):
    """ResNet-20 with one output."""

    kind: Literal["resnet20"] = Field(
        description="ResNet-20 for small square images, with normalised groups of channels in place of batches, so "
        "that all of the model is in its parameters; needs torch"
    )


class DenseNetScorer(Section):
    """DenseNet-121 with one output."""

    kind: Literal["densenet121"] = Field(
        description="DenseNet-121 for square images of at least 32x32 pixels, with normalised groups of channels in "
        "place of batches; needs torch"
    )


Scorer: TypeAlias = Annotated[
    LinearScorerSettings | MlpScorer | CnnScorer | ResNetScorer | DenseNetScorer, Field(discriminator="kind")
]


class BinarySettings(_Network):
    """Objective for two classes with one score for each sample."""

    kind: Literal["binary"] = Field(
        description="one score for each sample, for two classes: algorithms for the area under the ROC curve, such as "
        "codasca, train it for that, all others by cross-entropy"
    )
    scorer: Scorer = Field(
        default_factory=lambda: LinearScorerSettings(kind="linear"), description="model of the score"
    )
    positive: list[NonNegativeInt] | None = Field(
        default=None,
        min_length=1,
        description="the classes that count as positive, by number from 0; null: the second of two",
    )
    output: Literal["none", "sigmoid", "l2"] = Field(
        default="none",
        description="transformation of the scorer's output before the area under the ROC curve is maximised. none: the "
        "output itself; sigmoid: to (0, 1), for networks; l2: divided by the norm of the batch's outputs. "
        "Cross-entropy uses the output itself",
    )

    @model_validator(mode="after")
    def _fits_a_linear_scorer(self) -> Self:
        if self.scorer.kind != "linear":
            return self
        if self.output == "l2" and self.initial is None:
            raise ValueError(
                "output: l2 divides outputs by their norm, but a linear scorer begins with outputs of 0, whose norm "
                "is 0; use output: none, or begin with the model of an earlier run (initial)"
            )
        if self.device != "cpu":
            raise ValueError(
                f"device: {self.device} is for networks, but a linear scorer is computed by the cpu; leave it out"
            )
        return self


class OwnSettings(_Common):
    """An objective from outside the project."""

    kind: Literal["own"] = Field(
        description="from outside the project: a subclass of fenchel.Objective, or a fenchel.TorchObjective"
    )
    name: str = Field(pattern=r"^[\w.]+:\w+$", description="the class or object, as package.module:Name")
    parameters: dict[str, JsonValue] = Field(
        default={}, description="keyword arguments of the class, beside shard, l2 and dtype"
    )


ObjectiveSettings: TypeAlias = Annotated[
    LinearSettings | SmoothedHingeSettings | MlpSettings | CnnSettings | BinarySettings | OwnSettings,
    Field(discriminator="kind"),
]
"""The section ``objective``: which of them is meant follows from ``kind``."""
