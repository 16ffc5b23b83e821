"""Choice of an engine by its name and the user's settings."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from fenchel.common.errors import MissingDependencyError, SettingsError
from fenchel.common.settings.reading import read_mapping, validated
from fenchel.deploy.launch.launchers.interface import Launcher

ENGINES = ("local", "ssh", "slurm", "ray", "docker", "kubernetes")
"""Names of the engines, as ``--on`` takes them. The module of an engine's launcher has the same name."""


def launcher_type(on: str) -> type[Launcher]:
    """Return the launcher of an engine, whose module only runs on that engine import."""
    found: type[Launcher] = getattr(import_module(f"{__package__}.{on}"), f"{on.capitalize()}Launcher")
    return found


def launcher(
    on: str,
    *,
    engine: str | Path | Mapping[str, Any] | None = None,
    hosts: str | Sequence[str] | None = None,
    cpus: float | None = None,
    gpus: float | None = None,
) -> Launcher | None:
    """Return the launcher of an engine, or ``None`` for the engine ``local``.

    Parameters
    ----------
    on
        Name of the engine, one of :data:`ENGINES`.
    engine
        Settings of the engine, as a YAML file or a mapping. The arguments below replace the keys of the same name.
    hosts
        Hosts of the engine ``ssh``: a list, a text with commas or blanks, or the path of a file with such a text.
    cpus
        Number of processors for each client process.
    gpus
        Number of GPUs for each client process.

    Raises
    ------
    SettingsError
        If there is no such engine, or the engine's settings are invalid.
    MissingDependencyError
        If this machine lacks software that the engine requires.
    """
    if on not in ENGINES:
        raise SettingsError(f"the engine {on!r} is unknown; use one of {', '.join(ENGINES)}", key="--on")
    kind: Any = launcher_type(on)
    if lacks := kind.missing():
        raise MissingDependencyError("; ".join(lacks), key=f"--on {on}")
    source = str(engine) if isinstance(engine, str | Path) else f"--on {on}"
    given = read_mapping(Path(engine)) if isinstance(engine, str | Path) else dict(engine or {})
    options = {"hosts": None if hosts is None else _hosts(hosts), "cpus": cpus, "gpus": gpus}
    given |= {name: value for name, value in options.items() if value is not None}
    for name in given:
        if name not in kind.Settings.model_fields:
            known = ", ".join(kind.Settings.model_fields) or "none"
            raise SettingsError(f"not a setting of the engine {on}; its settings: {known}", key=name, source=source)
    settings = validated(kind.Settings, given, source)
    return None if on == "local" else kind(settings)


def _hosts(given: str | Sequence[str]) -> list[str]:
    """Return the hosts in the given order, including repeated hosts."""
    if not isinstance(given, str):
        return list(given)
    text = given
    if not re.search(r"[,\s]", given) and Path(given).is_file():
        text = re.sub(r"#.*", "", Path(given).read_text(errors="replace"))
    return re.split(r"[,\s]+", text.strip(", \n\t"))
