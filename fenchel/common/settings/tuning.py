"""The settings of a search for good parameters: what varies, how often, and what is compared."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, TypeAlias

import yaml
from pydantic import Discriminator, Field, NonNegativeInt, PositiveInt, Tag, model_validator

from fenchel.common.errors import SettingsError
from fenchel.common.settings.reading import read_mapping, validated
from fenchel.common.settings.run import shipped_or_own
from fenchel.common.settings.section import RUN_NAME, Section

if TYPE_CHECKING:
    from optuna import Trial

Bounds: TypeAlias = tuple[float, float]


class Interval(Section):
    """Numbers between two bounds."""

    integer: bool = Field(False, description="whole numbers only, both bounds among them")

    @property
    def extremes(self) -> tuple[Any, ...]:
        """The bounds."""
        low, high = getattr(self, self._form)
        return (int(low), int(high)) if self.integer else (low, high)

    @property
    def _form(self) -> str:
        return "log_uniform" if isinstance(self, LogUniform) else "uniform"

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        name, (low, high) = self._form, getattr(self, self._form)
        if not low < high:
            raise ValueError(f"{name}: the first bound must be below the second, given [{low:g}, {high:g}]")
        if self.integer and not (low.is_integer() and high.is_integer()):
            raise ValueError(f"{name}: with integer: true both bounds must be whole, given [{low:g}, {high:g}]")
        if isinstance(self, LogUniform) and low <= 0:
            raise ValueError(f"{name}: the lowest value must be positive, given {low:g}")
        return self

    def suggest(self, trial: Trial, key: str) -> float | int:
        """Return the value that Optuna suggests for the parameter ``key`` in a trial."""
        suggest = trial.suggest_int if self.integer else trial.suggest_float
        return suggest(key, *self.extremes, log=isinstance(self, LogUniform))


class Uniform(Interval):
    """Numbers between two bounds, all equally likely."""

    uniform: Bounds = Field(description="lowest and highest value")


class LogUniform(Interval):
    """Positive numbers whose logarithm is uniform: every order of magnitude is equally likely."""

    log_uniform: Bounds = Field(description="lowest and highest value, both positive")


class Choice(Section):
    """Choice among listed values, all equally likely."""

    choice: tuple[Any, ...] = Field(min_length=1, description="values, of any type that the setting takes")

    @property
    def extremes(self) -> tuple[Any, ...]:
        """All values, as a choice has no bounds: the check before a search tries each of them."""
        return self.choice

    @property
    def categories(self) -> list[bool | int | float | str | None]:
        """The values as Optuna stores them: lists and sections as JSON."""
        return [
            value if value is None or isinstance(value, bool | int | float | str) else json.dumps(value, default=str)
            for value in self.choice
        ]

    def suggest(self, trial: Trial, key: str) -> Any:
        """Return the value that Optuna suggests for the parameter ``key`` in a trial."""
        categories = self.categories
        return self.choice[categories.index(trial.suggest_categorical(key, categories))]


_FORMS = ("uniform", "log_uniform", "choice")


def _form(value: Any) -> str | None:
    """Return the tag of the form that a distribution has; ``None`` if it has none, or more than one."""
    fields = type(value).model_fields if isinstance(value, Section) else value
    found = [form for form in _FORMS if form in fields] if isinstance(fields, Mapping) else []
    return f"form {found[0]}" if len(found) == 1 else None


# A tag contains a space, so that no tag equals a key when an error's location is translated into dotted keys.
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


class Pruning(Section):
    """Rule that stops a trial early: its figure of a round is worse than the median of the trials before it."""

    trials: NonNegativeInt = Field(5, description="number of completed trials before any trial is stopped")
    rounds: NonNegativeInt = Field(1, description="number of first rounds in which a trial is not stopped")


class TuningSettings(Section):
    """A search over the settings of a run."""

    settings: Path = Field(description="settings file of the run, relative to this file")
    name: str = Field("tuning", pattern=RUN_NAME, description="a name for the tuning folder")
    seed: int = Field(0, ge=0, lt=1 << 63, description="seed of the sampler; the runs keep their own")
    trials: PositiveInt | None = Field(
        None, description="number of runs; a grid needs none, because it tries all combinations"
    )
    sampler: Literal["tpe", "random", "grid", "nsga2"] = Field("tpe", description="Optuna's sampler of parameters")
    objectives: dict[str, Literal["minimize", "maximize"]] = Field(
        {"objective": "minimize"},
        min_length=1,
        description="figures by which runs are compared: name, and minimize or maximize",
    )
    pruning: Pruning | None = Field(None, description="early stopping of trials; null: none")
    worst_loss: float | None = Field(None, description="final objective above which a trial counts as diverged")
    overrides: dict[str, Any] = Field(
        default_factory=dict, description="settings of all trials that differ from the file: dotted key, value"
    )
    parameters: dict[str, Distribution] = Field(
        min_length=1, description="parameters that each trial draws: dotted key of a setting, distribution"
    )

    @property
    def total(self) -> int:
        """Number of trials."""
        combinations = math.prod(len(each.extremes) for each in self.parameters.values())
        if self.trials is None:
            return combinations
        return min(self.trials, combinations) if self.sampler == "grid" else self.trials

    @model_validator(mode="after")
    def _belongs_together(self) -> Self:
        if self.sampler == "grid":
            for key, each in self.parameters.items():
                if not isinstance(each, Choice):
                    raise ValueError(f"sampler grid takes lists of values alone: give {key} as {{choice: [...]}}")
        elif self.trials is None:
            raise ValueError(f"trials is missing, but sampler {self.sampler} needs it; give the number of trials")
        if self.pruning is not None and len(self.objectives) > 1:
            raise ValueError(
                f"pruning needs one objective, given {len(self.objectives)}: leave pruning out, or give one"
            )
        if "name" in self.parameters:
            raise ValueError("parameters.name: each trial is named after its number; leave it out")
        return self

    def to_yaml(self) -> str:
        """Return the settings as YAML, defaults included."""
        return yaml.safe_dump(self.model_dump(mode="json"), sort_keys=False)


def load_tuning(path: Path) -> TuningSettings:
    """Read a tuning file, or a shipped one by its name; the settings file that it names is then found from anywhere."""
    path = shipped_or_own(path)
    values = read_mapping(path)
    if "algorithm" in values and "parameters" not in values:
        raise SettingsError(
            "the file has the settings of a run; expected a tuning file, which names a file of settings "
            "(settings: FILE) and the values to try (parameters)",
            source=path,
        )
    tuning = validated(TuningSettings, values, str(path))
    return tuning.model_copy(update={"settings": path.parent / tuning.settings})
