"""The base of every section of the settings, and the wording of what is wrong in one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from common.errors import SettingsError


class Section(BaseModel):
    """A part of the settings: immutable, and strict about unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True, allow_inf_nan=False)


def yaml_value(text: str) -> Any:
    """Return what a YAML text says.

    Raises
    ------
    yaml.YAMLError
        It is not YAML, or holds what no value can be made of: a day that does not exist, a number of thousands of
        digits, sections in sections without end.
    """
    try:
        return yaml.safe_load(text)
    except (ValueError, RecursionError) as error:
        raise yaml.YAMLError(str(error)) from None


def _place(location: tuple[int | str, ...], values: Any) -> str:
    """Return the dotted key of an error, without the names of alternatives that pydantic inserts."""
    key = []
    for number, part in enumerate(location):
        inside = isinstance(values, Mapping) and part in values
        if inside or (isinstance(values, list | tuple) and isinstance(part, int) and part < len(values)):
            key.append(str(part))
            values = values[part]
        elif isinstance(values, Mapping) and number == len(location) - 1:
            key.append(str(part))  # a key that is missing
    return ".".join(key)


def _given(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def settings_error(error: ValidationError, values: Mapping[str, Any], source: str) -> SettingsError:
    """Word a validation error for the person who wrote the settings.

    Parameters
    ----------
    error
        What pydantic found.
    values
        What was validated.
    source
        Where the settings came from: a file name, or ``"settings"``.

    Returns
    -------
    SettingsError
        One line for each key: the key, what was given, what is allowed.
    """
    lines = []
    for problem in error.errors():
        key = _place(problem["loc"], values)
        if problem["type"] == "extra_forbidden":
            lines.append(
                f"{key}: unknown key (given {_given(problem['input'])}); check its spelling and its place"
            )
        elif problem["type"] == "missing":
            lines.append(f"{key}: required, but not given")
        elif problem["type"] == "value_error":
            # A check of our own: its words say what was given.
            own = problem["msg"].removeprefix("Value error, ")
            lines.append(f"{key}: {own}" if key else own)
        else:
            lines.append(f"{key}: {problem['msg']} (given {_given(problem['input'])})")
    return SettingsError(f"{source}: " + "\n  ".join(lines if len(lines) == 1 else ["", *lines]))
