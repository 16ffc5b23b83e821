"""Choice of an engine by its name and the user's settings."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from fenchel.common.errors import MissingDependencyError, SettingsError
from fenchel.common.settings.reading import read_mapping, validated
from fenchel.deploy.launch.launchers.docker import DockerLauncher
from fenchel.deploy.launch.launchers.interface import Launcher
from fenchel.deploy.launch.launchers.kubernetes import KubernetesLauncher
from fenchel.deploy.launch.launchers.local import LocalLauncher
from fenchel.deploy.launch.launchers.ray import RayLauncher
from fenchel.deploy.launch.launchers.slurm import SlurmLauncher
from fenchel.deploy.launch.launchers.ssh import SshLauncher

LAUNCHERS: Mapping[str, type[Launcher]] = MappingProxyType(
    {
        "local": LocalLauncher,
        "ssh": SshLauncher,
        "slurm": SlurmLauncher,
        "ray": RayLauncher,
        "docker": DockerLauncher,
        "kubernetes": KubernetesLauncher,
    }
)
"""Launcher of each engine, by the name that ``--on`` takes."""


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
        Name of the engine, one of :data:`LAUNCHERS`.
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
    if on not in LAUNCHERS:
        raise SettingsError(f"the engine {on!r} is unknown; use one of {', '.join(LAUNCHERS)}", key="--on")
    kind: Any = LAUNCHERS[on]
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
