"""Algorithms by name.

A name stands for one of three things:

- an algorithm that comes with Fenchel: its module in ``fenchel.algorithms`` has the name, with underscores
  (``mb-sgd``: ``mb_sgd.py``), and defines ``XSettings``, ``X`` and ``XClient``; or a folder has the name, with
  ``settings.py``, ``server.py`` and ``client.py``;
- an entry point of an installed package, in the group ``fenchel.algorithms``: ``name = "package.module:X"``;
- ``package.module:X`` itself, where ``X`` names its settings as ``X.Settings``, and ``XClient`` is beside it.

Nothing is imported before it is asked for.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Mapping
from functools import cache
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any

from fenchel.common.errors import SettingsError
from fenchel.common.settings.algorithm import AlgorithmSettings
from fenchel.common.settings.section import did_you_mean

HOME = "fenchel.algorithms"
"""The package of the algorithms that come with Fenchel, and the group of entry points that adds others."""

_PARTS = ("settings", "server", "client")
"""Parts of an algorithm, whose modules have these names if it has a folder of its own."""


def algorithm_settings(name: str) -> type[AlgorithmSettings]:
    """Return the settings class of an algorithm."""
    if is_outside(name):
        found = getattr(attribute(_reference(name)), "Settings", None)
        if not (isinstance(found, type) and issubclass(found, AlgorithmSettings)):
            raise ValueError(
                f"{name}: expected a class with an attribute Settings that derives from fenchel.AlgorithmSettings; "
                "give the server half of an algorithm"
            )
        settings: type[AlgorithmSettings] = found
        return settings
    home = _builtin().get(name)
    own = home and _settings_in(importlib.import_module(home["settings"]), name)
    if not own:
        meant = did_you_mean(name, names())
        raise ValueError(
            f"there is no algorithm {name!r}{meant and f': {meant}'}; "
            f"known: {', '.join(names())}; one of your own is named package.module:Class"
        )
    return own


def half(name: str, side: str) -> Any:
    """Return what an algorithm's module defines as its half of one ``side``, ``server`` or ``client``."""
    suffix = "Client" if side == "client" else ""
    if is_outside(name):
        return attribute(_reference(name) + suffix)
    stem = algorithm_settings(name).__name__.removesuffix("Settings")
    return attribute(f"{_builtin()[name][side]}:{stem}{suffix}")


def is_outside(name: str) -> bool:
    """Return whether an algorithm's name refers to code outside Fenchel."""
    return ":" in name or (name not in _builtin() and name in _installed())


def names() -> tuple[str, ...]:
    """Return the names of the algorithms that come with Fenchel and of those that installed packages add."""
    return (*builtin_settings(), *sorted(_installed()))


@cache
def builtin_settings() -> Mapping[str, type[AlgorithmSettings]]:
    """Return the settings classes of the algorithms that come with Fenchel, by name."""
    found = {name: _settings_in(importlib.import_module(home["settings"]), name) for name, home in _builtin().items()}
    return {name: settings for name, settings in found.items() if settings is not None}


def asked_phases(settings: AlgorithmSettings) -> tuple[str, ...]:
    """Return the phases that an algorithm asks, in alphabetical order: those whose handler may return something."""
    if settings.phases:
        return settings.phases
    found = half(settings.name, "client")
    handlers = [each for _, each in inspect.getmembers(found) if hasattr(each, "answers_phase")]
    returning = [each for each in handlers if each.__annotations__.get("return", Any) not in (None, "None")]
    return tuple(sorted(each.answers_phase for each in returning))


def keeps_no_state(settings: AlgorithmSettings) -> bool:
    """Return whether the client half of an algorithm is known to keep no state; False if only a client can tell."""
    if settings.phases:
        return False
    try:
        return bool(half(settings.name, "client").stateless())
    except SettingsError:
        return False


def attribute(reference: str) -> Any:
    """Import ``package.module:Name``."""
    module_name, _, name = reference.partition(":")
    if not module_name or module_name.startswith("."):
        raise SettingsError(
            f"{reference!r}: expected a module by its full name, such as package.module:Class", key="algorithm.name"
        )
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise SettingsError(
            f"{reference!r}: the module {error.name!r} was not found; install it, or start in its folder",
            key="algorithm.name",
        ) from None
    if not hasattr(module, name):
        raise SettingsError(
            f"{reference!r}: the module {module_name!r} has no {name!r}; check the name", key="algorithm.name"
        )
    return getattr(module, name)


def _reference(name: str) -> str:
    return name if ":" in name else _installed()[name]


def _settings_in(module: ModuleType, name: str) -> type[AlgorithmSettings] | None:
    sections = (
        each for each in vars(module).values() if isinstance(each, type) and issubclass(each, AlgorithmSettings)
    )
    return next((each for each in sections if each.model_fields["name"].default == name), None)


@cache
def _builtin() -> dict[str, dict[str, str]]:
    """Return the modules of ``fenchel.algorithms`` and its folders by the name that each would have in settings.

    Each name has the modules of its settings, its server half and its client half, which may be the same.
    """
    found = {}
    for path in importlib.import_module(HOME).__path__:
        for module in pkgutil.iter_modules([path]):
            home = f"{HOME}.{module.name}"
            inner = [home]
            if module.ispkg:
                inner = [f"{home}.{each.name}" for each in pkgutil.iter_modules([str(Path(path, module.name))])]
            parts = {part: f"{home}.{part}" for part in _PARTS}
            if set(parts.values()) <= set(inner):
                found[_name(home)] = parts
            else:
                found |= {_name(each): dict.fromkeys(_PARTS, each) for each in inner}
    return found


def _name(module: str) -> str:
    return module.rpartition(".")[2].replace("_", "-")


@cache
def _installed() -> dict[str, str]:
    return {point.name: point.value for point in metadata.entry_points(group=HOME)}
