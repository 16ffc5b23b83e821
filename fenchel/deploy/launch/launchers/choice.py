"""Choice of an engine, by its name and what the user says of it."""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fenchel.common.errors import MissingDependencyError, SettingsError
from fenchel.common.settings.reading import read_mapping, validated
from fenchel.deploy.launch.launchers.interface import Launcher

ENGINES = ("local", "ssh")


def launcher(
    on: str, *, engine: str | Path | Mapping[str, Any] | None = None, hosts: str | Sequence[str] | None = None
) -> Launcher | None:
    """Return the launcher of an engine; ``None`` for this machine.

    Parameters
    ----------
    on
        Name of the engine, one of :data:`ENGINES`.
    engine
        YAML file, or mapping, of what the engine needs.
    hosts
        Hosts of ``ssh``, in place of those in ``engine``: a list, a text with commas or blanks between them, or the
        path of a file that holds such a text.

    Raises
    ------
    SettingsError
        There is no such engine, or what is said of it cannot be accepted.
    MissingDependencyError
        This machine lacks what the engine needs.
    """
    if on not in ENGINES:
        raise SettingsError(f"there is no engine {on!r}; known: {', '.join(ENGINES)}", key="--on")
    if lacks := missing(on):
        raise MissingDependencyError("; ".join(lacks), key=f"--on {on}")
    source = str(engine) if isinstance(engine, str | Path) else "--engine"
    given = read_mapping(Path(engine)) if isinstance(engine, str | Path) else dict(engine or {})
    if hosts is not None:
        given["hosts"] = _hosts(hosts)
    if on == "local":
        if given:
            raise SettingsError("this machine needs no hosts and no engine file; name an engine with --on", key="--on")
        return None
    if "hosts" not in given:
        raise SettingsError("ssh needs hosts: name them with --hosts a,b,c, or in the engine file", key="--hosts")
    from fenchel.deploy.launch.launchers.ssh import SshLauncher, SshSettings

    return SshLauncher(validated(SshSettings, given, source))


def missing(on: str) -> list[str]:
    """Return what this machine lacks for an engine, each with what to do; empty where it can be used."""
    if on == "ssh" and shutil.which("ssh") is None:
        return ["ssh was not found: apt install openssh-client"]
    return []


def _hosts(given: str | Sequence[str]) -> list[str]:
    """Return hosts in the order given, each as often as it stands there."""
    if not isinstance(given, str):
        return list(given)
    text = given
    if not re.search(r"[,\s]", given) and Path(given).is_file():
        text = re.sub(r"#.*", "", Path(given).read_text(errors="replace"))
    return re.split(r"[,\s]+", text.strip(", \n\t"))
