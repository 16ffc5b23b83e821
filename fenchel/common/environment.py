"""Computing environments. Together with the settings, they determine the last bits of a run's results."""

from __future__ import annotations

import platform
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, fields
from functools import lru_cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import scipy

from fenchel.common.crypto.residues.choice import backend_of
from fenchel.common.untrusted_text import sanitize
from fenchel.common.version import version
from fenchel.proto import fenchel_pb2 as pb

if TYPE_CHECKING:
    from threadpoolctl import ThreadpoolController

SERVER = ""
"""Id of the server among the participants, which differs from all client ids."""

# largest number of characters kept of a reported value: more than all instruction sets together
_LONGEST = 200
_VALUES = 5  # largest number of values shown for one attribute
_NAMED = 5  # largest number of clients named for one value; the rest are counted

INDIFFERENT = frozenset({"paillier"})
"""Attributes that do not influence results."""

Differences: TypeAlias = dict[str, dict[str, list[str]]]
"""Participants by attribute and value, for the attributes that differ between participants."""


@dataclass(frozen=True)
class Environment:
    """Computing environment of a process. Unknown values are empty.

    Attributes
    ----------
    fenchel, python, numpy, scipy
        Versions of Fenchel, Python, NumPy and SciPy.
    torch
        Version of PyTorch, empty if it is not loaded.
    blas
        Libraries of linear algebra with their versions. NumPy and SciPy each bring one.
    kernel
        Implementation that these libraries chose for this processor, such as ``Haswell``.
    simd
        Instruction sets that NumPy's own loops use beyond its baseline, such as ``X86_V3, X86_V4``.
    machine
        Kind of processor, such as ``x86_64``.
    threads
        Largest number of threads that a numerical library may use, 0 if it is not known.
    paillier
        Backend of Paillier that ``auto`` selects on this machine: ``gmp`` or ``ifma``.
    """

    fenchel: str = ""
    python: str = ""
    numpy: str = ""
    scipy: str = ""
    torch: str = ""
    blas: str = ""
    kernel: str = ""
    simd: str = ""
    machine: str = ""
    threads: int = 0
    paillier: str = ""

    @classmethod
    def current(cls) -> Environment:
        """Return the environment of this process, with the currently loaded libraries."""
        torch = sys.modules.get("torch")
        _load_linear_algebra()
        pools = _thread_pools(len(sys.modules)).info()
        algebra = [pool for pool in pools if pool["user_api"] == "blas"]
        configuration: Any = np.show_config(mode="dicts")
        return cls(
            fenchel=version(),
            python=platform.python_version(),
            numpy=np.__version__,
            scipy=scipy.__version__,
            torch="" if torch is None else str(torch.__version__),
            blas=_listed(f"{pool['internal_api']} {pool['version'] or 'unknown'}" for pool in algebra),
            kernel=_listed(pool["architecture"] for pool in algebra if pool.get("architecture")),
            simd=_listed(configuration.get("SIMD Extensions", {}).get("found", ())),
            machine=platform.machine(),
            threads=max((pool["num_threads"] for pool in pools), default=0),
            paillier=backend_of("fenchel"),
        )

    @classmethod
    def received(cls, message: pb.Environment) -> Environment:
        """Return the environment that a client reports, with values shortened and without control characters."""
        values = {each.name: getattr(message, each.name) for each in fields(cls)}
        values |= {name: sanitize(value, _LONGEST) for name, value in values.items() if isinstance(value, str)}
        return cls(**values)

    def message(self) -> pb.Environment:
        """Return this environment as a protocol message."""
        return pb.Environment(**asdict(self))

    def known(self) -> dict[str, str]:
        """Return the values as texts by attribute, without PyTorch if it is not loaded."""
        values = {name: str(value or "") for name, value in asdict(self).items()}
        return {name: value for name, value in values.items() if value or name != "torch"}


def one_thread() -> AbstractContextManager[object]:
    """Limit linear algebra to one thread, which keeps sums independent of the machine's number of cores."""
    # Late import, because importing threadpoolctl changes the environment of the process.
    from threadpoolctl import threadpool_limits

    _load_linear_algebra()
    limits: AbstractContextManager[object] = threadpool_limits(1)
    return limits


def _load_linear_algebra() -> None:
    """Load SciPy's library of linear algebra, because threadpoolctl finds loaded libraries only."""
    import_module("scipy.linalg")


@lru_cache(maxsize=1)
def _thread_pools(modules: int) -> ThreadpoolController:
    """Return the numerical libraries with threads. Their search takes milliseconds, and only imports bring new ones."""
    # Late import, because importing threadpoolctl changes the environment of the process.
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()


def _listed(values: Iterable[str]) -> str:
    return ", ".join(sorted(set(values)))


def differences(environments: Mapping[str, Environment], ignored: Collection[str] = INDIFFERENT) -> Differences:
    """Return the attributes in which environments differ.

    Parameters
    ----------
    environments
        Environments by participant, the id of a client or ``SERVER``.
    ignored
        Attributes that are not compared.

    Returns
    -------
    Differences
        For each such attribute, the participants by value, the server first.
    """
    found: Differences = {}
    for participant, environment in sorted(environments.items()):
        for attribute, value in environment.known().items():
            found.setdefault(attribute, {}).setdefault(value, []).append(participant)
    return {attribute: whose for attribute, whose in found.items() if len(whose) > 1 and attribute not in ignored}


def differences_text(found: Differences) -> str:
    """Return differences as text, such as ``kernel: Haswell (the server, north), SkylakeX (south)``."""
    return "; ".join(f"{attribute}: {values_text(whose)}" for attribute, whose in found.items())


def values_text(whose: Mapping[str, Sequence[str]]) -> str:
    """Return the values of one attribute as text, each with its first few participants."""
    first = [f"{value or 'unknown'} ({_names(names)})" for value, names in list(whose.items())[:_VALUES]]
    others = len(whose) - _VALUES
    return ", ".join(first) + (f" and {others:,} more values" if others > 0 else "")


def _names(participants: Sequence[str]) -> str:
    named = ", ".join(participant or "the server" for participant in participants[:_NAMED])
    others = len(participants) - _NAMED
    return named + (f" and {others:,} more" if others > 0 else "")
