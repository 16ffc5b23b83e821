"""Hybrid FedAvg and the HyFEM-like algorithm once more, as plain loops over dense arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp

from fenchel.algorithms.hybrid.hybrid_fedavg import LocalDescentSettings
from fenchel.algorithms.hybrid.hyfem_like import HyFEMLikeSettings
from fenchel.common.arrays import Dense, Indices, Vector
from fenchel.common.data.source import DataSource
from fenchel.common.objectives.factory import build_objective
from fenchel.common.objectives.linear import LinearObjective
from fenchel.common.randomness import generator
from fenchel.common.settings.run import RunSettings
from fenchel.deploy.launch.names import client_names
from fenchel.fleet.sampling import draw


def dense(features: Any) -> Dense:
    return features.toarray() if isinstance(features, sp.csr_array) else features


def step(
    objective: LinearObjective,
    v: Vector,
    rows: Indices,
    step_size: float,
    pull: float = 0.0,
    anchor: Vector | None = None,
) -> Vector:
    """One step on the batch, as it stands in the pseudocode."""
    x, y = dense(objective.features)[rows], objective.targets[rows]
    direction = objective.l2 * v
    for each in range(rows.size):
        slope = objective.score_loss.derivative(x[each : each + 1] @ v, y[each : each + 1])[0]
        direction = direction + slope * x[each] / rows.size
    return v - step_size * (direction if anchor is None else direction + pull * (v - anchor))


def simulated(settings: RunSettings) -> Vector:
    """The final model of a run."""
    own = settings.algorithm
    assert isinstance(own, LocalDescentSettings)
    pull = own.proximity if isinstance(own, HyFEMLikeSettings) else None
    assert isinstance(settings.clients, int)
    source = DataSource.open(settings.data, settings.seed)
    objectives = []
    for index in range(settings.clients):
        objective = build_objective(settings.objective, source.shard(index, settings.clients))
        assert isinstance(objective, LinearObjective)
        objectives.append(objective)
    names = client_names(settings.clients)
    sizes = np.array([float(objective.samples) for objective in objectives])
    w: Vector = np.zeros(source.problem.features)
    local: list[Vector] = [np.zeros(objective.dimension) for objective in objectives]
    for t in range(1, settings.rounds + 1):
        cohort = draw(settings.participation.sampler, sizes, t, generator(settings.seed, "server", t, "cohort"))
        for k in cohort:
            held = objectives[k].features_held
            v = w[held] if pull is None else local[k]
            anchor = None if pull is None else w[held]
            batches = objectives[k].batches(
                generator(settings.seed, names[k], t, "batches"), steps=own.local_steps, batch_size=own.batch_size
            )
            for rows in batches:
                v = step(objectives[k], v, rows, own.step_size_at(t), pull or 0.0, anchor)
            local[k] = v
        updated = w.copy()
        for m in range(w.size):
            holders = [k for k in cohort if m in objectives[k].features_held]
            if holders:
                values = [local[k][np.searchsorted(objectives[k].features_held, m)] for k in holders]
                weights = sizes[holders] if own.weighting == "samples" else None
                updated[m] = np.average(values, weights=weights)
        w = updated
    return w
