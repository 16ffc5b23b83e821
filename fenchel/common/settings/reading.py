"""From a file or a mapping to a section of settings."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import ValidationError

from fenchel.common.errors import SettingsError
from fenchel.common.settings.section import Section, settings_error, yaml_value

_S = TypeVar("_S", bound=Section)


def read_mapping(path: Path) -> dict[str, Any]:
    """Read a YAML file that holds a mapping of settings."""
    try:
        values = yaml_value(path.read_text())
    except OSError as error:
        raise SettingsError(
            f"the file cannot be read ({error.strerror}); check the path and its permissions", source=path
        ) from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise SettingsError(f"the file is not valid YAML: {error}", source=path) from None
    if not isinstance(values, dict):
        found = "nothing" if values is None else "a list" if isinstance(values, list) else "a single value"
        raise SettingsError(f"the file has {found}; expected a mapping of settings", source=path)
    return values


def validated(section: type[_S], values: Mapping[str, Any], source: str) -> _S:
    """Make a section of a mapping; the error names each key that is wrong, what was given and what is allowed.

    Parameters
    ----------
    source
        Where the settings came from: a file name, or ``"settings"``.
    """
    try:
        return section.model_validate(dict(values))
    except ValidationError as error:
        raise settings_error(error, values, source) from None
