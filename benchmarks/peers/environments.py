"""A virtual environment for each of the other systems, apart from Fenchel's."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import platformdirs

from benchmarks.program import progress

_STAMP = "fenchel-peer.json"
_VERSIONS = "import json, sys, importlib.metadata as m; print(json.dumps({n: m.version(n) for n in sys.argv[1:]}))"


class InstallationError(Exception):
    """A package that cannot be installed here."""


@dataclass(frozen=True)
class Environment:
    """A virtual environment."""

    name: str  # of its folder
    requirements: tuple[str, ...]  # what pip installs, with ranges of versions
    shown: tuple[str, ...]  # the packages whose versions the table names

    @property
    def folder(self) -> Path:
        """Where it is: in the cache of the user account, or below ``$FENCHEL_PEERS``."""
        if not self.requirements:
            return Path(sys.prefix)
        root = os.environ.get("FENCHEL_PEERS") or Path(platformdirs.user_cache_path("fenchel")) / "peers"
        return Path(root) / self.name

    @property
    def python(self) -> Path:
        """Its interpreter."""
        return self.folder / "bin" / "python"

    @property
    def ready(self) -> bool:
        """True if the environment holds what it should."""
        if not self.requirements:
            return True
        stamp = self.folder / _STAMP
        return stamp.exists() and json.loads(stamp.read_text()) == list(self.requirements)

    def install(self) -> None:
        """Make it."""
        if self.ready:
            return
        progress(f"installing {', '.join(self.requirements)} into {self.folder}")
        (self.folder / _STAMP).unlink(missing_ok=True)
        venv.create(self.folder, with_pip=True)
        pip = [str(self.python), "-m", "pip", "install", "--quiet", *self.requirements]
        done = subprocess.run(pip, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if done.returncode:
            raise InstallationError(f"{' '.join(pip)} failed:\n{done.stdout[-3000:]}")
        (self.folder / _STAMP).write_text(json.dumps(list(self.requirements)))

    def versions(self) -> dict[str, str]:
        """Return the versions of the packages that the table names."""
        done = subprocess.run(
            [str(self.python), "-c", _VERSIONS, *self.shown], stdout=subprocess.PIPE, text=True, check=True
        )
        versions: dict[str, str] = json.loads(done.stdout)
        return versions


def install(environments: Sequence[Environment]) -> dict[str, str]:
    """Make the environments that can be made; return the others' names, with what pip said.

    Pip takes packages from where its own settings say, as the versions that ``PIP_CONSTRAINT`` may name.
    """
    failures = {}
    for each in environments:
        try:
            each.install()
        except InstallationError as error:
            failures[each.name] = str(error)
    return failures


FENCHEL = Environment("fenchel", (), ("fenchel", "grpcio", "numpy"))
"""The environment of this process; it is not made here."""

# Ranges: which versions there are differs between machines, and the table names those that were measured.
_NUMPY = "numpy>=2,<3"
FLOWER = Environment("flower", ("flwr>=1.41,<2", _NUMPY), ("flwr", "grpcio", "numpy"))
NVFLARE = Environment("nvflare", ("nvflare>=2.9,<3", _NUMPY), ("nvflare", "grpcio", "numpy"))
APPFL = Environment(
    "appfl", ("appfl>=1.12,<2", "torch>=2.4,<3", "torchvision>=0.19,<1", _NUMPY), ("appfl", "torch", "grpcio", "numpy")
)
