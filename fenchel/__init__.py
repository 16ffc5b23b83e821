"""Fenchel: federated primal-dual learning over a real network.

This module exports the public names. A script or notebook runs a federation and inspects the result::

    import fenchel

    run = fenchel.up("quickstart", overrides=["rounds=5"])
    run.metrics  # one row for each round

Own algorithms derive from :class:`Algorithm` and :class:`ClientAlgorithm`, and own models from :class:`Objective`
(``docs/new-algorithm.md``, ``docs/objectives.md``). An :class:`Observer` receives the events of a run in progress
(``docs/trackers.md``).
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fenchel import trackers as trackers
    from fenchel.algorithms.client_half import ClientAlgorithm, answers
    from fenchel.algorithms.server_half import Algorithm
    from fenchel.common.arrays import Indices, Matrix, Vector
    from fenchel.common.data.shard import Shard
    from fenchel.common.errors import DataError, FenchelError, SettingsError
    from fenchel.common.objectives.metrics import Metrics
    from fenchel.common.objectives.networks.module import TorchObjective
    from fenchel.common.objectives.objective import Objective
    from fenchel.common.objectives.ranking import Ranking
    from fenchel.common.settings.algorithm import AlgorithmSettings
    from fenchel.common.settings.run import RunSettings
    from fenchel.common.wire.schema import ArraySpec, NumberSpec
    from fenchel.common.wire.values import SparseVector, Values
    from fenchel.deploy.launch.sweep import sweep
    from fenchel.deploy.launch.up import up, up_async
    from fenchel.estimators import FederatedClassifier, FederatedRegressor
    from fenchel.fleet.cohort import Cohort, Reduced, Replies
    from fenchel.fleet.fleet import Fleet
    from fenchel.fleet.question import Each
    from fenchel.report.run import Run
    from fenchel.server.telemetry.observer import Observer, Observers, StopRun

_HOMES = {
    "Algorithm": "fenchel.algorithms.server_half",
    "AlgorithmSettings": "fenchel.common.settings.algorithm",
    "ArraySpec": "fenchel.common.wire.schema",
    "ClientAlgorithm": "fenchel.algorithms.client_half",
    "Cohort": "fenchel.fleet.cohort",
    "DataError": "fenchel.common.errors",
    "Each": "fenchel.fleet.question",
    "FederatedClassifier": "fenchel.estimators",
    "FederatedRegressor": "fenchel.estimators",
    "FenchelError": "fenchel.common.errors",
    "Fleet": "fenchel.fleet.fleet",
    "Indices": "fenchel.common.arrays",
    "Matrix": "fenchel.common.arrays",
    "Metrics": "fenchel.common.objectives.metrics",
    "NumberSpec": "fenchel.common.wire.schema",
    "Objective": "fenchel.common.objectives.objective",
    "Observer": "fenchel.server.telemetry.observer",
    "Observers": "fenchel.server.telemetry.observer",
    "Ranking": "fenchel.common.objectives.ranking",
    "Reduced": "fenchel.fleet.cohort",
    "Replies": "fenchel.fleet.cohort",
    "Run": "fenchel.report.run",
    "RunSettings": "fenchel.common.settings.run",
    "SettingsError": "fenchel.common.errors",
    "Shard": "fenchel.common.data.shard",
    "SparseVector": "fenchel.common.wire.values",
    "StopRun": "fenchel.server.telemetry.observer",
    "TorchObjective": "fenchel.common.objectives.networks.module",
    "Values": "fenchel.common.wire.values",
    "Vector": "fenchel.common.arrays",
    "answers": "fenchel.algorithms.client_half",
    "sweep": "fenchel.deploy.launch.sweep",
    "up": "fenchel.deploy.launch.up",
    "up_async": "fenchel.deploy.launch.up",
}
"""Module of each public name. It is imported at the first access to the name, so that ``import fenchel`` is fast."""

__all__ = [
    "Algorithm",
    "AlgorithmSettings",
    "ArraySpec",
    "ClientAlgorithm",
    "Cohort",
    "DataError",
    "Each",
    "FederatedClassifier",
    "FederatedRegressor",
    "FenchelError",
    "Fleet",
    "Indices",
    "Matrix",
    "Metrics",
    "NumberSpec",
    "Objective",
    "Observer",
    "Observers",
    "Ranking",
    "Reduced",
    "Replies",
    "Run",
    "RunSettings",
    "SettingsError",
    "Shard",
    "SparseVector",
    "StopRun",
    "TorchObjective",
    "Values",
    "Vector",
    "answers",
    "sweep",
    "up",
    "up_async",
]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("fenchel")
    if name in ("estimators", "trackers"):
        return _imported(f"fenchel.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'fenchel' has no attribute {name!r}")
    found = getattr(_imported(_HOMES[name]), name)
    globals()[name] = found
    return found


def _imported(module: str) -> ModuleType:
    """Import a module, and raise ``MissingDependencyError`` if PyTorch or scikit-learn is missing for it."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        extra = (error.name or "").partition(".")[0]
        if extra not in ("torch", "sklearn"):
            raise
        from fenchel.common.errors import MissingDependencyError

        raise MissingDependencyError(
            f"{module} needs {extra}, which is not installed; install it with pip install 'fenchel[{extra}]'"
        ) from None


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
