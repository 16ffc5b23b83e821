"""The settings of a search for good parameters: what varies, how often, and how the best is chosen."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Self, TypeAlias

import numpy as np
import yaml
from pydantic import (
    Discriminator,
    Field,
    NonNegativeFloat,
    PositiveFloat,
    PositiveInt,
    Tag,
    field_validator,
    model_validator,
)

from fenchel.common.errors import SettingsError
from fenchel.common.settings.reading import read_mapping, validated
from fenchel.common.settings.run import shipped_or_own
from fenchel.common.settings.section import RUN_NAME, Section

Bounds: TypeAlias = tuple[float, float]


class Uniform(Section):
    """A number between two bounds, all equally likely."""

    uniform: Bounds = Field(description="lowest and highest value")
    integer: bool = Field(False, description="whole numbers only, both bounds among them")

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        _check_bounds("uniform", self.uniform, self.integer)
        return self

    def draw(self, random: np.random.Generator) -> float | int:
        """Return a value."""
        low, high = self.uniform
        if self.integer:
            return int(random.integers(int(low), int(high), endpoint=True))
        return float(random.uniform(low, high))


class LogUniform(Section):
    """A positive number whose logarithm is uniform: every order of magnitude is equally likely."""

    log_uniform: Bounds = Field(description="lowest and highest value, both positive")
    integer: bool = Field(False, description="whole numbers only, both bounds among them")

    @model_validator(mode="after")
    def _positive_and_in_order(self) -> Self:
        _check_bounds("log_uniform", self.log_uniform, self.integer)
        if self.log_uniform[0] <= 0:
            raise ValueError(f"log_uniform: the lowest value must be positive, given {self.log_uniform[0]:g}")
        return self

    def draw(self, random: np.random.Generator) -> float | int:
        """Return a value: ``10 ** U[log10 low, log10 high]``.

        For whole numbers the bounds are widened by a half and the value is rounded, so that ``k`` is drawn
        with probability proportional to ``log((k + 1/2) / (k - 1/2))``, about ``1 / k``, at the bounds, too.
        """
        low, high = self.log_uniform
        if self.integer:
            drawn = 10.0 ** random.uniform(np.log10(low - 0.5), np.log10(high + 0.5))
            return int(np.clip(np.rint(drawn), low, high))
        drawn = 10.0 ** random.uniform(np.log10(low), np.log10(high))
        return float(np.clip(drawn, low, high))  # rounding may step over a bound


class Choice(Section):
    """One of some values, all equally likely."""

    choice: tuple[Any, ...] = Field(min_length=1, description="values, of any type that the setting takes")

    def draw(self, random: np.random.Generator) -> Any:
        """Return one of the values."""
        return self.choice[int(random.integers(len(self.choice)))]


def _check_bounds(name: str, bounds: Bounds, integer: bool) -> None:
    low, high = bounds
    if not low < high:
        raise ValueError(f"{name}: the first bound must be below the second, given [{low:g}, {high:g}]")
    if integer and not (low.is_integer() and high.is_integer()):
        raise ValueError(f"{name}: with integer: true both bounds must be whole, given [{low:g}, {high:g}]")


_FORMS = ("uniform", "log_uniform", "choice")


def _form(value: Any) -> str | None:
    """Return the tag of the form that a distribution has; ``None`` if it has none, or more than one."""
    fields = type(value).model_fields if isinstance(value, Section) else value
    found = [form for form in _FORMS if form in fields] if isinstance(fields, Mapping) else []
    return f"form {found[0]}" if len(found) == 1 else None


# The tags are no keys of a distribution: an error's place is worded from keys.
Distribution = Annotated[
    Annotated[Uniform, Tag("form uniform")]
    | Annotated[LogUniform, Tag("form log_uniform")]
    | Annotated[Choice, Tag("form choice")],
    Discriminator(
        _form,
        custom_error_type="distribution",
        custom_error_message="expected one of {uniform: [LOW, HIGH]}, {log_uniform: [LOW, HIGH]} and {choice: [...]}",
    ),
]


class Selection(Section):
    """What trials are compared by, and how one is chosen."""

    latencies: tuple[NonNegativeFloat, ...] = Field(
        (0.0, 0.2575, 0.8),
        min_length=1,
        description="round-trip times in seconds that the runtime of a round is computed for",
    )
    round_trips: PositiveFloat | None = Field(
        None, description="round trips a round; null: counted in each trial's calls"
    )
    loss: str = Field(
        "auto",
        description="column of metrics.parquet; auto: the first of objective, primal_objective and train_loss "
        "that has values",
    )
    accuracy: str = Field(
        "auto",
        description="column of metrics.parquet; auto: the first of holdout_accuracy, test_accuracy and "
        "train_accuracy that has values",
    )
    last: PositiveInt = Field(5, description="so many of the last losses are averaged")
    reduction: float = Field(
        0.9, gt=0, le=1, description="share of the loss reduction whose reaching is timed in rounds"
    )
    growth: float = Field(
        2.0, ge=1, description="a trial whose last losses are above so many times its first has diverged"
    )
    worst_loss: float | None = Field(
        None, description="a trial that ends above this loss has diverged, too (such as the loss of the zero model)"
    )
    zeta: float = Field(0.5, gt=0, le=1, description="distinguishing coefficient of grey relational analysis")


class TuningSettings(Section):
    """A random search over the settings of a run."""

    settings: Path = Field(description="settings file of the run, relative to this file")
    name: str = Field("tuning", pattern=RUN_NAME, description="a name for the tuning folder")
    seed: int = Field(0, ge=0, lt=1 << 63, description="seed of the draws; the runs keep their own")
    trials: PositiveInt = Field(description="how many runs are done")
    overrides: dict[str, Any] = Field(
        default_factory=dict, description="settings that all trials have other than the file: dotted key, value"
    )
    parameters: dict[str, Distribution] = Field(
        min_length=1, description="what each trial draws: dotted key of a setting, distribution"
    )
    selection: Selection = Selection()

    @field_validator("parameters")
    @classmethod
    def _not_the_name(cls, parameters: dict[str, Distribution]) -> dict[str, Distribution]:
        if "name" in parameters:
            raise ValueError("name is not a parameter: each trial is named after its number")
        return parameters

    def to_yaml(self) -> str:
        """Return the settings as YAML, defaults included."""
        return yaml.safe_dump(self.model_dump(mode="json"), sort_keys=False)


def load_tuning(path: Path) -> TuningSettings:
    """Read a tuning file, or a shipped one by its name; the settings file that it names is then found from anywhere."""
    path = shipped_or_own(path)
    values = read_mapping(path)
    if "algorithm" in values and "parameters" not in values:
        raise SettingsError(
            "these are the settings of a run; a tuning file names such a file (settings: FILE) and says what "
            "varies (parameters)",
            source=path,
        )
    tuning = validated(TuningSettings, values, str(path))
    return tuning.model_copy(update={"settings": path.parent / tuning.settings})
