"""The ``data`` section: which samples a run learns from, how they are prepared, and who holds them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeAlias

from pydantic import BeforeValidator, Field, PositiveFloat, model_validator

from fenchel.common.settings.section import Section

NAME_PATTERN = r"^[a-z0-9][a-z0-9._-]*$"
"""Pattern of the names of data sets, which become names of folders."""

Scaling: TypeAlias = Literal["unit-interval", "standard", "normalise", "unit-rows"]
"""One preparation step of the features."""


def _no_boolean(value: Any) -> Any:
    """Refuse what YAML makes of ``yes``, ``no``, ``true`` and ``FALSE`` without quotes, as it does not say which."""
    if isinstance(value, bool):
        found = str(value).lower()
        raise ValueError(
            f'expected a whole number, or text (given {found}); put a name such as "yes" or "FALSE" in quotes'
        )
    return value


ClassName: TypeAlias = Annotated[int | str, BeforeValidator(_no_boolean)]
"""A class as the data file writes it: ``3``, ``-1`` or ``"malignant"``."""


def _without(value: Any, former: Mapping[str, Any]) -> Any:
    """Leave out settings that the folders of earlier runs have, where they say what is done now in any case."""
    if not isinstance(value, Mapping):
        return value
    return {key: each for key, each in value.items() if (key, each) not in former.items()}


class IidPartition(Section):
    """Random partition of the samples into parts whose sizes differ by at most one."""

    kind: Literal["iid"] = Field("iid", description="Random parts of equal size.")


class ClassesPartition(Section):
    """Partition in which every client holds samples of the same number of classes."""

    kind: Literal["classes"] = Field(description="A fixed number of classes per client.")
    per_client: int = Field(
        ge=1,
        description="Classes per client. The number of clients that hold a class is proportional to its "
        "size; its samples are shared evenly among them.",
    )
    samples: int | None = Field(
        None,
        ge=1,
        description="Samples of each client, the same for all; the remaining samples are not used. null: all samples "
        "are dealt, and clients have about equal numbers.",
    )

    @model_validator(mode="after")
    def _a_sample_of_each(self) -> Self:
        if self.samples is not None and self.samples < self.per_client:
            raise ValueError(
                f"samples: {self.samples} given, but a client with {self.per_client} classes needs at least one "
                "sample of each; give more samples, or fewer classes"
            )
        return self


class LabelShardsPartition(Section):
    """Partition into shards of equal size of the samples sorted by label; clients receive shards at random."""

    kind: Literal["label-shards"] = Field(description="Sort by label, cut into shards, deal them (McMahan 2017).")
    per_client: int = Field(2, ge=1, description="Shards per client.")


class DirichletPartition(Section):
    """Partition of each class among the clients in proportions drawn from a Dirichlet distribution."""

    kind: Literal["dirichlet"] = Field(description="Divide each class by Dirichlet proportions.")
    alpha: float = Field(ge=1e-4, description="Concentration: 0.1 gives very unequal clients, 100 nearly equal ones.")
    min_samples: int = Field(
        1, ge=1, description="Samples that every client gets at least; the largest clients give them up."
    )


class ZipfPartition(Section):
    """Partition in which the number of samples of client i is proportional to ``i ** -exponent``."""

    kind: Literal["zipf"] = Field(description="Sizes by Zipf's law, optionally classes by Dirichlet (DRDM).")
    exponent: float = Field(ge=0, le=10, description="Exponent z: sizes are proportional to i**-z; 0 is equal sizes.")
    alpha: float | None = Field(
        None,
        ge=1e-4,
        description="Concentration of the class proportions that each client draws for itself; null deals "
        "the samples at random, whatever their class.",
    )


class GridPartition(Section):
    """Partition of both samples and features into a grid, with one cell for each client."""

    kind: Literal["grid"] = Field(description="Sample groups times feature groups, one client for each pair.")
    sample_groups: int = Field(ge=1, description="Number of sample groups, K; equal sizes, drawn at random.")
    feature_groups: int = Field(
        ge=1,
        description="Number of feature groups, Q. Clients 0..K-1 hold the first one, the next K the second, "
        "and so on; a bias feature belongs to the last.",
    )
    layout: Literal["contiguous", "quadrants"] = Field(
        "contiguous", description="Feature groups: blocks of adjacent columns, or the four quarters of a square image."
    )

    @model_validator(mode="after")
    def _quadrants_are_four(self) -> Self:
        if self.layout == "quadrants" and self.feature_groups != 4:
            raise ValueError(f"feature_groups: {self.feature_groups} given, but layout quadrants needs exactly 4")
        return self


class RaggedPartition(Section):
    """Partition into groups of samples, and of each sample's non-zero values among the clients of its group."""

    kind: Literal["ragged"] = Field(
        description="Each sample's non-zero values dealt at random to the clients of its group (HyFDCA, News20)."
    )
    sample_groups: int = Field(ge=1, description="Number of sample groups, K.")
    feature_groups: int = Field(ge=1, description="Clients in a group, Q; their shares differ by one value at most.")


class ClassGroupsPartition(Section):
    """Separate partition of positive and negative classes: each client holds a group of both (CODASCA)."""

    kind: Literal["class-groups"] = Field(
        description="A group of positive and a group of negative classes for each client (CODASCA). No class is on two "
        "clients, unless a side has fewer classes than there are clients, which then share them. "
        "objective.positive names the positive classes."
    )

    @model_validator(mode="before")
    @classmethod
    def _of_earlier_versions(cls, value: Any) -> Any:
        return _without(value, {"order": "shuffled", "positive_shares": None})


class SiteSettings(Section):
    """Size of a site, its rate of positive samples, and the noise and shift of its instruments."""

    size: PositiveFloat = Field(
        description="Size in proportion to that of the other sites: its number of patients, for instance."
    )
    imratio: float = Field(ge=0, le=1, description="Part of its samples that is positive.")
    noise: float = Field(
        0.0, ge=0, description="Standard deviation of Gaussian noise added to each prepared feature of its samples."
    )
    shift: float = Field(
        0.0, description="Number added to each prepared feature of its samples, such as the brightness of images."
    )


class SitesPartition(Section):
    """Partition into sites, one for each client, with sizes, rates of positive samples and instruments of their own."""

    kind: Literal["sites"] = Field(
        description="Sites of given sizes and rates of positive samples, such as hospitals; the remaining samples are "
        "not used. objective.positive names the positive classes."
    )
    sites: tuple[SiteSettings, ...] = Field(
        min_length=1,
        description="The sites, one for each client, each with its `size`, `imratio`, `noise` (0) and `shift` (0).",
    )
    samples: int | None = Field(None, ge=1, description="Samples of all sites together; null: as many as there are.")


class ColumnPartition(Section):
    """Partition by a column of the data file, which names the client of each sample."""

    kind: Literal["column"] = Field(description="Holders named by a column of the data file.")
    column: str = Field(
        "client",
        min_length=1,
        description="Column of a CSV or Parquet file, or array of a NumPy archive: strings or whole numbers. Its "
        "values, sorted, are clients 0, 1, and so on. The column is not a feature.",
    )


Partition: TypeAlias = Annotated[
    IidPartition
    | ClassesPartition
    | LabelShardsPartition
    | DirichletPartition
    | ZipfPartition
    | ClassGroupsPartition
    | SitesPartition
    | ColumnPartition
    | GridPartition
    | RaggedPartition,
    Field(discriminator="kind"),
]
"""Any way of giving samples and features to clients."""


class ImbalanceSettings(Section):
    """Random removal of each client's positive samples until their fraction is ``imratio``; others are unchanged."""

    imratio: float = Field(
        gt=0,
        lt=1,
        description="Fraction of positive samples of each client afterwards (positives / all), rounded down to whole "
        "samples; a client with fewer positives keeps them. objective.positive names the positive classes.",
    )

    @model_validator(mode="before")
    @classmethod
    def _of_earlier_versions(cls, value: Any) -> Any:
        return _without(value, {"of": "client"})


class BinariseSettings(Section):
    """Reduction of a problem with several classes to two classes."""

    positive: tuple[ClassName, ...] = Field(
        min_length=1,
        description="Classes that become class 1; all others become class 0. [3] is three against the rest, "
        "[0, 2, 4, 6, 8] is even against odd.",
    )


class NormaliseSettings(Section):
    """Constants for scaling features, known before the run, in place of statistics of the training samples."""

    mean: float | tuple[float, ...] | dict[str, float] = Field(
        0.0,
        description="Numbers subtracted from the features: one number for all, a list in the order of the columns, or "
        "a mapping from column names, where other columns stay unchanged.",
    )
    std: PositiveFloat | tuple[PositiveFloat, ...] | dict[str, PositiveFloat] = Field(
        1.0, description="Divisors of the differences, in the form of mean."
    )


class ExtractorSettings(Section):
    """Frozen network whose output, without its last layer, replaces the pixels of an image as features."""

    network: Literal["resnet18"] = Field(
        "resnet18", description="ResNet-18 without its last layer: 512 features of an image."
    )
    file: Path = Field(
        description="File of its weights, a state dict written by torch.save, with the names of torchvision; needed on "
        "each machine that loads data. $FENCHEL_EXTRACTOR takes precedence. No code in the file is run."
    )
    sha256: str | None = Field(
        None,
        pattern=r"^[0-9a-f]{64}$",
        description="SHA-256 of the file, so that all machines have the same one; null: no check.",
    )
    size: int = Field(
        224,
        ge=32,
        le=1024,
        description="Rows and columns to which images are resized. ImageNet weights expect 224; smaller is "
        "faster, and worse.",
    )


class DataSettings(Section):
    """A data set, its preparation, and its partition among the clients."""

    name: str | None = Field(
        None,
        pattern=NAME_PATTERN,
        max_length=64,
        description="A named data set; `fenchel data list` shows them. Exactly one of name and file is needed.",
    )
    file: Path | None = Field(
        None,
        description="Your own file: LIBSVM, CSV, Parquet or NPZ; its path is relative to the settings file or the "
        "current folder. Exactly one of name and file is needed.",
    )
    label: str | None = Field(
        None, description="Column of the file that holds the label; null takes the column `label`, else the last one."
    )
    task: Literal["classification", "regression"] = Field(
        "classification", description="Whether labels name classes or are numbers to predict."
    )
    classes: tuple[ClassName, ...] | None = Field(
        None,
        min_length=2,
        description="All class names, in the order of their numbers; null takes those that occur, sorted.",
    )
    columns: Annotated[tuple[str, ...], Field(min_length=1)] | Annotated[int, Field(gt=0)] | None = Field(
        None,
        description="With name: own, all features of the problem in order: their column names or, for LIBSVM and NPZ "
        "files, whose columns have none, their number. A file may then hold them in another order, or only some of "
        "them. null: every file holds all features in the same order.",
    )
    binarise: BinariseSettings | None = Field(None, description="Make two classes of many; null keeps them.")
    test_fraction: float | None = Field(
        None,
        ge=0,
        lt=1,
        description="Part of the samples that becomes the test set, drawn within each class. Only for data "
        "without a published test set; null is 0.2 there.",
    )
    test_split: Literal["fenchel", "scikit-learn"] = Field(
        "fenchel",
        description="Draw of the test set. scikit-learn: samples, and their order, of its "
        "train_test_split(test_size=test_fraction, random_state=test_seed, stratify=labels), to reproduce results "
        "measured with it; classes must then have the same numbers (see classes).",
    )
    test_seed: int | None = Field(
        None,
        ge=0,
        lt=1 << 32,
        description="Seed of the draw of the test set; null is the seed of the run. With a number, runs of "
        "different seeds are tested on the same samples.",
    )
    samples: int | None = Field(
        None, ge=1, description="Number of training samples to use, drawn within each class; null: all."
    )
    imbalance: ImbalanceSettings | None = Field(
        None, description="Make positive samples rare, with any partition of whole samples; null: leave them."
    )
    extractor: ExtractorSettings | None = Field(
        None, description="A frozen network that turns images into features, once, before everything else; null: none."
    )
    scale: Literal["none"] | Scaling | tuple[Scaling, ...] = Field(
        "none",
        description="Preparation of the features, one step or a list applied in order. unit-interval: "
        "pixels divided by their largest possible value, other columns from training minimum to maximum. "
        "standard: training mean 0, population standard deviation 1. normalise: the same with given constants. "
        "unit-rows: each sample divided by its Euclidean norm.",
    )
    normalise: NormaliseSettings | None = Field(
        None, description="Constants of the step normalise in scale; null if there is no such step."
    )
    bias: float | None = Field(
        None, description="Value of a constant feature appended after scaling; null appends none."
    )
    partition: Partition = Field(
        default_factory=lambda: IidPartition(kind="iid"), description="Distribution of the data over the clients."
    )
    holdout: float = Field(
        0.0, ge=0, lt=1, description="Part of each client's samples that it keeps as its own test set."
    )
    client_tests: Literal["none", "own-distribution"] = Field(
        "none",
        description="Test samples of the clients. own-distribution: each client also gets a part of the test set, in "
        "proportion to its number of samples and with the same class proportions; none: only the client's "
        "holdout, if there is one.",
    )

    @property
    def scalings(self) -> tuple[Scaling, ...]:
        """The preparation steps in order, whichever way ``scale`` was written."""
        if isinstance(self.scale, tuple):
            return self.scale
        return () if self.scale == "none" else (self.scale,)

    @property
    def asks_for_positives(self) -> str:
        """The key that needs to know which classes are positive; empty: none does."""
        if self.imbalance is not None:
            return "data.imbalance"
        if isinstance(self.partition, ClassGroupsPartition | SitesPartition):
            return f"data.partition.kind: {self.partition.kind}"
        return ""

    @property
    def leaves_out(self) -> str:
        """The key by which clients train on other samples than the training set has; empty: none does."""
        if isinstance(self.partition, ClassesPartition) and self.partition.samples is not None:
            return f"data.partition.samples: {self.partition.samples}"
        if isinstance(self.partition, SitesPartition):
            return "data.partition.kind: sites"
        if self.imbalance is not None:
            return f"data.imbalance.imratio: {self.imbalance.imratio}"
        return ""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if problem := next(self._contradictions(), None):
            raise ValueError(problem)
        return self

    def _contradictions(self) -> Iterator[str]:
        kind = self.partition.kind
        no_whole_samples = isinstance(self.partition, GridPartition | RaggedPartition)
        if (self.name is None) == (self.file is None):
            given = "both" if self.name is not None else "neither"
            yield f"name, file: exactly one is needed, {given} given"
        if self.name is not None and self.label is not None:
            yield f"label: {self.label!r} given, but a named data set knows its label; only with file"
        if self.columns is not None and self.name != "own":
            yield "columns: only allowed with name: own, where clients bring files of their own"
        for key, values in (("columns", self.columns), ("scale", self.scalings), ("classes", self.classes)):
            if isinstance(values, tuple) and (repeated := _repeated(values)):
                yield f"{key}: {repeated!r} is listed twice, but may occur only once"
        if (self.normalise is not None) != ("normalise" in self.scalings):
            yield "scale, normalise: a step normalise and its constants go together; give both, or neither"
        if self.bias == 0:
            yield "bias: 0 given, but a feature that is always 0 has no effect; use null or a number"
        if self.task == "regression":
            yield from self._classes_wanted()
        if self.imbalance is not None and isinstance(self.partition, SitesPartition):
            yield "imbalance: each site of partition.kind: sites has an imratio of its own; leave imbalance out"
        if self.imbalance is not None and no_whole_samples:
            yield f"imbalance: with partition.kind: {kind} several clients hold the same samples; leave it out"
        if self.name == "own":
            for key in ("imbalance", "binarise", "samples", "test_fraction", "test_seed", "test_split", "partition"):
                if getattr(self, key) != type(self).model_fields[key].get_default(call_default_factory=True):
                    remedy = "use holdout" if key.startswith("test_") else "leave it out"
                    yield f"{key}: not allowed with name: own, where clients use their whole files; {remedy}"
        if self.file is None and isinstance(self.partition, ColumnPartition):
            yield (
                f"partition.column: {self.partition.column!r} given, but only a file has such a column; give file "
                "instead of name"
            )
        if self.extractor is not None and (wrong := [step for step in self.scalings if step != "unit-rows"]):
            yield (
                f"scale: {wrong[0]} given, but with an extractor the pixels are scaled as its network expects, "
                "and what it makes of them only sample by sample: use none or unit-rows"
            )
        if no_whole_samples:
            split = f"partition.kind: {kind}"
            if self.holdout:
                yield f"holdout: {self.holdout} given, but with {split} no client holds whole samples to test on; use 0"
            if self.client_tests != "none":
                yield f"client_tests: with {split} no client holds whole samples; only none is allowed"
        if self.extractor is not None and (self.columns is not None or no_whole_samples):
            split = "columns" if self.columns is not None else f"partition.kind: {kind}"
            yield f"extractor: a network needs whole images, which clients do not hold with {split}"
        if self.client_tests != "none" and self.holdout:
            yield (
                f"client_tests, holdout: both given ({self.client_tests}, {self.holdout}), but a client tests on "
                "one set; choose one"
            )
        if self.client_tests != "none" and self.name == "own":
            yield (
                "client_tests: with name: own there is no common test set; use holdout, with which each client "
                "keeps back samples of its own file"
            )

    def _classes_wanted(self) -> Iterator[str]:
        """Yield the settings that divide or name classes, which regression does not have."""
        for key in ("classes", "binarise", "imbalance"):
            if getattr(self, key) is not None:
                yield f"{key}: not allowed with task: regression, whose labels are numbers"
        drawn = isinstance(self.partition, ZipfPartition) and self.partition.alpha is not None
        by_class = ClassesPartition | DirichletPartition | ClassGroupsPartition | SitesPartition
        if drawn or isinstance(self.partition, by_class):
            yield (
                f"partition.kind: {self.partition.kind} divides classes, which task: regression does "
                "not have; allowed are iid, label-shards, zipf without alpha, column, grid, ragged"
            )
        if self.client_tests != "none":
            yield "client_tests: divides classes, which task: regression does not have; use holdout"


def _repeated(values: tuple[ClassName, ...]) -> str | None:
    """Return the first value that occurs more than once, as text."""
    return next((name for name, times in Counter(map(str, values)).items() if times > 1), None)
