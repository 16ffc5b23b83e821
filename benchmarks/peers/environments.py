"""A virtual environment for each of the other systems, apart from Fenchel's."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
from dataclasses import dataclass
from pathlib import Path

import platformdirs

from benchmarks.program import progress

_STAMP = "fenchel-peer.json"
_VERSIONS = (
    "import json, sys, importlib.metadata as m; print(json.dumps({n: m.version(n) for n in sys.argv[1:]}))"
)


@dataclass(frozen=True)
class Environment:
    """A virtual environment.

    Attributes
    ----------
    name
        Of its folder.
    requirements
        What pip installs, with versions.
    shown
        The packages whose versions the table names.
    """

    name: str
    requirements: tuple[str, ...]
    shown: tuple[str, ...]

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
        """Whether it holds what it should."""
        if not self.requirements:
            return True
        stamp = self.folder / _STAMP
        return stamp.exists() and json.loads(stamp.read_text()) == list(self.requirements)

    def install(self) -> None:
        """Make it.

        Raises
        ------
        RuntimeError
            pip failed; the text ends with its last words.
        """
        if self.ready:
            return
        progress(f"installing {', '.join(self.requirements)} into {self.folder}")
        (self.folder / _STAMP).unlink(missing_ok=True)
        venv.create(self.folder, with_pip=True)
        pip = [str(self.python), "-m", "pip", "install", "--quiet", *self.requirements]
        done = subprocess.run(pip, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if done.returncode:
            raise RuntimeError(f"{' '.join(pip)} failed:\n{done.stdout[-3000:]}")
        (self.folder / _STAMP).write_text(json.dumps(list(self.requirements)))

    def versions(self) -> dict[str, str]:
        """Return the versions of the packages that the table names."""
        done = subprocess.run(
            [str(self.python), "-c", _VERSIONS, *self.shown], stdout=subprocess.PIPE, text=True, check=True
        )
        versions: dict[str, str] = json.loads(done.stdout)
        return versions


FENCHEL = Environment("fenchel", (), ("fenchel", "grpcio", "numpy"))
"""The environment of this process; it is not made here."""

FLOWER = Environment("flower", ("flwr==1.41.0", "numpy==2.4.6"), ("flwr", "grpcio", "numpy"))
NVFLARE = Environment("nvflare", ("nvflare==2.9.0", "numpy==2.4.6"), ("nvflare", "grpcio", "numpy"))
APPFL = Environment(
    "appfl",
    ("appfl==1.12.0", "torch==2.15.0", "torchvision==0.29.2", "numpy==2.4.6"),
    ("appfl", "torch", "grpcio", "numpy"),
)
