"""Federations that train a scorer on given shards: what the tests of CODASCA and its relatives run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fenchel.common.data.shard import Shard
from fenchel.common.settings.run import RunSettings
from tests.algorithms.codasca_oracle import Machines, Part
from tests.algorithms.mlr import Problem, Run

Array = NDArray[Any]


@dataclass(frozen=True)
class Scored(Problem):
    """Shards with two classes, and a scorer."""

    def settings(self, folder: Path, algorithm: Mapping[str, Any], **sections: Any) -> RunSettings:
        basis = {
            "objective": {"kind": "binary", "dtype": "float64", "l2": self.l2},
            "evaluation": {"server": False, "clients": False},
        }
        return super().settings(folder, algorithm, **basis | sections)


def scored(parts: Sequence[Part]) -> Scored:
    """The machines of the oracle as a federation."""
    shards = [
        Shard(part.x, (part.y > 0).astype(np.int64), 2, part.x.shape[1], np.arange(part.y.size)) for part in parts
    ]
    return Scored(tuple(shards), l2=0.0)


def random_parts(sizes: Sequence[int], features: int, seed: int, *, shift: float = 0.5) -> list[Part]:
    """Machines of different distributions, with at least one positive and one negative sample each."""
    draw = np.random.default_rng(seed)
    parts = []
    for size in sizes:
        y = np.where(draw.random(size) < draw.uniform(0.15, 0.6), 1.0, -1.0)
        y[:2] = 1.0, -1.0
        centre = shift * draw.standard_normal(features)
        x = centre + 0.7 * draw.standard_normal((size, features)) + 0.5 * y[:, None] * draw.random(features)
        parts.append(Part(x, y))
    return parts


def uniform(parts: Sequence[Part], gamma: float) -> Machines:
    """The oracle's machines, with weights 1/K."""
    return Machines(list(parts), np.full(len(parts), 1 / len(parts)), gamma)


def point(state: Any) -> Array:
    """u = (w, a, b, alpha) of a server's state, shape (n,)."""
    return np.concatenate([state.model, state.auxiliary])


def points(run: Run) -> list[Array]:
    """u after each round."""
    return [point(run.states[t]) for t in sorted(run.states)]


def imbalance(run: Run) -> float:
    """How far the server's c is from the weighted sum of all clients' c^k."""
    state = run.states[max(run.states)]
    controls = kept(run, "control")
    return float(np.abs(state.control - state.weights @ controls).max())


def kept(run: Run, name: str) -> Array:
    """A vector of every client's state, shape (K, n)."""
    return np.array(run.client_states(name))


def plain_signs(directions: Array) -> Array:
    """Directions with the signs of the paper: the gradient of alpha as it is."""
    result: Array = directions * np.append(np.ones(directions.shape[-1] - 1), -1.0)
    return result
