"""Text, settings and summary of a run folder, as far as reports need them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from fenchel.common.errors import CheckpointError
from fenchel.common.settings.section import yaml_value
from fenchel.report.formatting import problem_text


class _Summary(BaseModel):
    """Part of ``summary.json`` that reports use (docs/run-folder.md)."""

    model_config = ConfigDict(strict=True)

    completed: bool = False
    rounds: int = 0
    seconds: float = 0.0
    reason: str | None = None
    figures: dict[str, float] = {}


def read_text(path: Path) -> str:
    """Return the text of a file of a run folder.

    Raises
    ------
    CheckpointError
        If the file is missing, or cannot be read as text.
    """
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise CheckpointError(
            f"the file cannot be read ({error}); check its permissions, or copy the run folder again", source=path
        ) from None


def read_summary(path: Path) -> dict[str, Any] | None:
    """Return the content of ``summary.json``, or ``None`` if the file does not exist.

    Raises
    ------
    CheckpointError
        If the file cannot be read, or is damaged.
    """
    if not path.exists():
        return None
    try:
        values: dict[str, Any] = json.loads(read_text(path))
        _Summary.model_validate(values)
    except ValidationError as error:
        raise CheckpointError(
            f"the file is damaged or was edited ({problem_text(error)}); copy it again", source=path
        ) from None
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"the file is damaged or was edited ({error}); copy it again", source=path) from None
    return values


def values_of(text: str, path: Path) -> dict[str, Any]:
    """Parse the text of a settings file without validation.

    Raises
    ------
    CheckpointError
        If the text is not a mapping in YAML.
    """
    try:
        values = yaml_value(text)
    except yaml.YAMLError as error:
        raise CheckpointError(
            f"the file is not valid YAML ({' '.join(str(error).split())}); copy the run folder again", source=path
        ) from None
    if not isinstance(values, dict):
        raise CheckpointError("the file is not a mapping of settings; copy the run folder again", source=path)
    return values


def flat(values: Mapping[Any, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested settings by dotted keys."""
    found: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, dict) and value:
            found |= flat(value, f"{prefix}{key}.")
        else:
            found[f"{prefix}{key}"] = value
    return found
