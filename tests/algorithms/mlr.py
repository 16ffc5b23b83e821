"""Regularised softmax regression on given shards, with given cohorts: what oracles need.

The data and the cohorts of the reproducible run of docs/specifications/feddcd.md (section 6), the digits of
section 8, and a federation in one process that uses them and remembers the server's state after every round.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from scipy.optimize import minimize
from sklearn.datasets import load_digits
from threadpoolctl import threadpool_limits

from fenchel.algorithms.registry import server_half
from fenchel.common.arrays import Indices, Vector
from fenchel.common.data.shard import Shard
from fenchel.common.objectives.factory import build_objective
from fenchel.common.objectives.objective import Objective
from fenchel.common.randomness import generator
from fenchel.common.settings.objective import LinearSettings
from fenchel.common.settings.run import RunSettings, validate
from fenchel.common.storage import store
from fenchel.common.storage.run_folder import RunFolder
from fenchel.deploy.launch.names import client_names
from fenchel.fleet.cohort import Cohort
from fenchel.server import checkpoint as checkpoints
from fenchel.testing import Faults, Federation

SETS = ((0, 1), (2, 3), (0, 2), (1, 3))
"""The cohorts of the reproducible run, one a round, by number of client; then from the beginning again."""

BATCHES = {"local_epochs": 2, "batch_size": 3, "step_size": 0.2}
"""Local steps: of the reproducible run, four for the clients with 4, 5 and 6 samples, six for the one with 7."""


@dataclass(frozen=True)
class Problem:
    """F(w) = sum_i p_i f_i(w), f_i(w) = mean loss of client i's samples + (l2/2) ||w||^2."""

    shards: tuple[Shard, ...]  # what each client holds
    l2: float  # rho, the weight of the ridge
    weighted: bool = False  # whether p_i = N n_i / n; otherwise p_i = 1

    @property
    def clients(self) -> int:
        """N."""
        return len(self.shards)

    @cached_property
    def objectives(self) -> list[Objective]:
        """f_i of each client."""
        settings = LinearSettings(kind="softmax", l2=self.l2)
        return [build_objective(settings, shard) for shard in self.shards]

    @property
    def weights(self) -> Vector:
        """p_i of each client, shape (N,)."""
        samples = np.array([shard.samples for shard in self.shards], float)
        return samples / samples.mean() if self.weighted else np.ones(self.clients)

    def value(self, w: Vector) -> float:
        """F(w)."""
        return float(sum(p * f.value(w) for p, f in zip(self.weights, self.objectives, strict=True)))

    def gradient(self, w: Vector) -> Vector:
        """The gradient of F at ``w``, shape (d,)."""
        of_clients = [p * f.gradient(w) for p, f in zip(self.weights, self.objectives, strict=True)]
        total: Vector = np.sum(of_clients, axis=0)
        return total

    @cached_property
    def optimum(self) -> Vector:
        """w*, the minimiser of F, shape (d,)."""
        start = np.zeros(self.objectives[0].dimension)
        found = minimize(
            self.value,
            start,
            jac=self.gradient,
            method="L-BFGS-B",
            options={"maxiter": 20_000, "maxcor": 50, "ftol": 0.0, "gtol": 1e-10},
        )
        return np.asarray(found.x)

    def gap(self, w: Vector) -> float:
        """(F(w) - F*) / N."""
        return (self.value(w) - self.value(self.optimum)) / self.clients

    def settings(self, folder: Path, algorithm: Mapping[str, Any], **sections: Any) -> RunSettings:
        """Settings of a run on this problem, whose shards clients are given."""
        basis = {
            "name": "mlr",
            "rounds": len(SETS),
            "clients": self.clients,
            "data": {"name": "own", "classes": list(range(self.shards[0].classes))},
            "objective": {"kind": "softmax", "l2": self.l2},
            "algorithm": dict(algorithm),
            "evaluation": {"server": False, "clients": False},
        }
        return validate(basis | sections)


def reproducible(*, weighted: bool = False) -> Problem:
    """The data of the reproducible run: N = 4, K = 3 classes, 3 features, rho = 0.1; no random numbers."""
    return Problem(tuple(_reproducible_shard(i) for i in range(4)), l2=0.1, weighted=weighted)


def _reproducible_shard(i: int) -> Shard:
    j, k = np.arange(4 + i)[:, None], np.arange(3)[None, :]
    features = ((7 * i + 5 * j + 3 * k**2 + i * j * k) % 11) / 5 - 1
    labels = (i + j[:, 0] % 2) % 3
    return Shard(features, labels, classes=3, total_features=3, samples_held=np.arange(4 + i))


def two_class_digits(*, clients: int = 20, l2: float = 0.1, seed: int = 0) -> Problem:
    """Digits, pixels / 16 and a bias; each client holds two classes, in unequal numbers (section 4.1).

    Every client draws two classes; every sample goes to a random client among those that hold its class.
    Every fifth sample is left out.
    """
    digits = load_digits()
    train = np.arange(len(digits.target)) % 5 != 0
    features = np.column_stack([digits.data[train] / 16, np.ones(train.sum())])
    labels = digits.target[train].astype(np.int64)
    random = np.random.default_rng(seed)
    held: list[set[int]] = [set()]
    while set().union(*held) != set(range(10)):
        held = [set(random.choice(10, 2, replace=False).tolist()) for _ in range(clients)]
    owner = np.array([random.choice([i for i in range(clients) if label in held[i]]) for label in labels])
    shards = [
        Shard(features[rows], labels[rows], classes=10, total_features=65, samples_held=rows)
        for rows in (np.flatnonzero(owner == i) for i in range(clients))
    ]
    return Problem(tuple(shards), l2=l2)


@dataclass
class Run:
    """A run that is over."""

    settings: RunSettings
    folder: RunFolder
    states: dict[int, Any] = field(default_factory=dict)  # of the server after each round, by round
    federation: Federation | None = None

    @property
    def models(self) -> list[Vector]:
        """The model after each round."""
        return [self.states[t].model for t in sorted(self.states)]

    @property
    def model(self) -> Vector:
        """The final model."""
        return self.models[-1]

    @property
    def calls(self) -> pa.Table:
        """A row an instruction."""
        return pq.read_table(self.folder.calls)

    def floats(self) -> tuple[int, int]:
        """How many floats of float64 travelled up, and how many down."""
        up, down = (sum(self.calls[name].to_pylist()) for name in ("bytes_up", "bytes_down"))
        assert up % 8 == down % 8 == 0
        return up // 8, down // 8

    def client_states(self, name: str) -> list[Vector]:
        """A vector of every client's state: the one that counts, not that of an answer that came too late."""
        assert isinstance(self.settings.clients, int)
        dimension = self.model.size
        states: list[Vector] = []
        for client, member in checkpoints.load(self.folder.checkpoint).members.items():
            if not member["base"]:
                states.append(np.zeros(dimension))
                continue
            file = self.folder.journals / self.folder.id / client / f"{member['base']:020d}.state"
            vector = store.read(file)[f"state/{name}"]
            assert isinstance(vector, np.ndarray)
            states.append(vector)
        assert len(states) == self.settings.clients
        return states


def drawn(problem: Problem, i: int, t: int) -> list[Indices]:
    """Return the batches of :data:`BATCHES` that client i draws in round t; the seed is 3."""
    draws, samples = generator(3, f"client-00{i}", t, "batches"), problem.objectives[i].samples
    orders = [draws.permutation(samples) for _ in range(2)]
    return [order[start : start + 3] for order in orders for start in range(0, samples, 3)]


def locally(problem: Problem, i: int, t: int, x: Vector, eta: float = 0.2, mu: float = 0.0) -> tuple[Vector, int]:
    """Return where the local steps of :data:`BATCHES`, pulled to x by mu, lead client i in round t; and how many."""
    w, batches = x, drawn(problem, i, t)
    for batch in batches:
        w = w - eta * (problem.objectives[i].batch_gradient(w, batch) + mu * (w - x))
    return w, len(batches)


def train(
    problem: Problem,
    parent: Path,
    algorithm: Mapping[str, Any],
    *,
    cohorts: Sequence[Sequence[int]] | None = None,
    faults: Faults | None = None,
    executor: Executor | None = None,
    on_round: Callable[[int], None] = lambda t: None,
    **sections: Any,
) -> Run:
    """Run an algorithm in this process.

    cohorts: numbers of clients for each round, from the beginning again after the last; ``None``: as
        ``participation.sampler`` says.
    executor: where clients compute; ``None``: on the event loop.
    on_round: told the number of each round that is done.
    sections: settings that replace the defaults of :meth:`Problem.settings`.
    """
    settings = problem.settings(parent, algorithm, **sections)
    run = Run(settings, RunFolder.create(parent, "run"))
    half: Any = server_half(settings.algorithm.name)

    class Scripted(half):  # type: ignore[misc]
        """The algorithm's own server half, with given cohorts, and an eye on its state."""

        def sample(self) -> Cohort:
            if cohorts is None:
                drawn: Cohort = super().sample()
                return drawn
            names = client_names(problem.clients)
            numbers = cohorts[(self.fleet.round - 1) % len(cohorts)]
            return Cohort(self.fleet, tuple(names[i] for i in sorted(numbers)))

        async def round(self, t: int) -> None:
            await super().round(t)
            run.states[t] = copy.deepcopy(self.state)
            on_round(t)

    federation = Federation(settings, run.folder, executor=executor, shards=problem.shards)
    if faults is not None:
        federation.faults = faults
    run.federation = federation
    with pytest.MonkeyPatch.context() as patch, threadpool_limits(1):
        patch.setattr("fenchel.server.coordinator.server_half", lambda name: Scripted)
        federation.run()
    return run
