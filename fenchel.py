"""Fenchel: federated primal-dual learning over a real network.

This module is the public face. A script or notebook brings a federation up and looks at the result::

    import fenchel

    run = fenchel.up("experiments/quickstart.yaml", overrides=["rounds=5"])
    run.metrics  # a row a round

An algorithm of one's own derives from :class:`Algorithm` and :class:`ClientAlgorithm`, a model of one's own
from :class:`Objective` (``docs/new-algorithm.md``, ``docs/objectives.md``).
"""

from __future__ import annotations

from client.algorithm import ClientAlgorithm, answers
from common.algorithms import AlgorithmSettings
from common.arrays import Indices, Matrix, Vector
from common.data.shard import Shard
from common.errors import DataError, FenchelError, SettingsError
from common.expectation import ArraySpec, NumberSpec
from common.objectives.metrics import Metrics
from common.objectives.objective import Objective
from common.objectives.ranking import Ranking
from common.settings.run import RunSettings
from common.values import SparseVector, Values
from deploy.launch import up
from report.run import Run
from server.algorithm import Algorithm
from server.cohort import Cohort, Each
from server.fleet import Fleet
from server.replies import Reduced, Replies

__all__ = [
    "Algorithm",
    "AlgorithmSettings",
    "ArraySpec",
    "ClientAlgorithm",
    "Cohort",
    "DataError",
    "Each",
    "FenchelError",
    "Fleet",
    "Indices",
    "Matrix",
    "Metrics",
    "NumberSpec",
    "Objective",
    "Ranking",
    "Reduced",
    "Replies",
    "Run",
    "RunSettings",
    "SettingsError",
    "Shard",
    "SparseVector",
    "Values",
    "Vector",
    "answers",
    "up",
]
