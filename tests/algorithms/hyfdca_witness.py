"""A plaintext run of HyFDCA in one process, and what its two halves held after each round."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import scipy.sparse as sp
from threadpoolctl import threadpool_limits

from fenchel.algorithms.client_half import ClientAlgorithm, ClientContext
from fenchel.algorithms.hyfdca.client import HyFDCAClient
from fenchel.algorithms.hyfdca.server import HyFDCA
from fenchel.algorithms.hyfdca.settings import HyFDCASettings, sampled
from fenchel.algorithms.server_half import Algorithm
from fenchel.common.arrays import Indices, Vector
from fenchel.common.data.shard import Shard
from fenchel.common.errors import DataError
from fenchel.common.settings.run import RunSettings, validate
from fenchel.common.storage.run_folder import RunFolder
from fenchel.common.wire.values import Values
from fenchel.fleet.cohort import Cohort
from fenchel.testing import Federation
from tests.algorithms.hyfdca_oracle import Hybrid, Party, Problem

ROWS: Mapping[str, Any] = {
    "name": "breast_cancer",
    "test_split": "scikit-learn",
    "test_seed": 0,
    "classes": ["malignant", "benign"],
    "scale": ["standard", "unit-rows"],
}
"""The data of the specification's observations (5.2): N = 455, M = 30, rows of norm 1."""

Trouble = Callable[[str, int, str], bool]
"""Whether a client fails in a round and phase."""


def settings_of(
    algorithm: Mapping[str, Any],
    *,
    grid: tuple[int, int] = (3, 3),
    rounds: int = 20,
    loss: str = "hinge",
    l2: float = 0.01,
    samples: int | None = None,
    ragged: bool = False,
    sampler: Mapping[str, Any] | None = None,
    **sections: Any,
) -> RunSettings:
    """Settings of a plaintext run on ``ROWS``, with K sample groups and Q feature groups; keywords replace sections."""
    partition = {"kind": "ragged" if ragged else "grid", "sample_groups": grid[0], "feature_groups": grid[1]}
    basis: dict[str, Any] = {
        "name": "hyfdca",
        "seed": 7,
        "rounds": rounds,
        "clients": grid[0] * grid[1],
        "data": {**ROWS, "partition": partition} | ({} if samples is None else {"samples": samples}),
        "objective": {"kind": loss, "l2": l2},
        "algorithm": {
            "name": "hyfdca",
            "privacy": "none",
            "layout": "ragged" if ragged else "rectangular",
            **algorithm,
        },
        "participation": {"sampler": dict(sampler or {"kind": "all"})},
        "evaluation": {"server": False, "clients": False},
    }
    return validate(basis | sections)


@dataclass(frozen=True)
class Moment:
    """What everybody held after a round. Samples and features are known by their numbers."""

    t: int
    cohort: tuple[str, ...]
    w: Vector  # w_0, shape (M,)
    dual: Vector | None  # alpha_0, shape (N,); ``None`` where the line search keeps it with the clients only
    duals: dict[str, Vector]  # alpha_k of each client, in the order of its rows
    contributions: dict[str, Vector]  # the server's cache of what_k, in the order of the client's columns
    scores: dict[str, Vector]  # the server's cache of ip_k, in the order of the client's rows
    synced: frozenset[str]  # who did the last aggregation
    missed: int  # line search: steps that somebody missed
    away: frozenset[str]  # line search: who is behind
    figures: dict[str, float]  # of the row: gap and others


@dataclass
class Witness:
    """Does a plaintext run and watches."""

    settings: RunSettings
    shards: Sequence[Shard] = ()  # what clients hold in place of the partition's parts
    fails: Trouble = lambda client, t, phase: False  # which answers are lost: the client does its work, then fails
    executor: Executor | None = None  # where clients compute; ``None``: on the event loop
    before: Callable[[str, int, str], None] = lambda client, t, phase: None
    """Called in a client before it answers, with its name, the round and the phase."""
    moments: list[Moment] = field(default_factory=list)
    clients: dict[str, HyFDCAClient] = field(default_factory=dict)
    model: Vector = field(init=False)
    phases: list[tuple[int, str, str]] = field(default_factory=list)
    final: Moment = field(init=False)

    def run(self, parent: Path) -> Witness:
        """Do all rounds; what was seen is in the attributes."""
        folder = RunFolder.create(parent, self.settings.name)
        with (
            threadpool_limits(1),
            patch("fenchel.server.coordinator.server_half", lambda name: self._server_half()),
            patch("fenchel.client.session.client_half", lambda name, allowed: self._client_half()),
        ):
            # Files of journals would take most of the time.
            Federation(self.settings, folder, executor=self.executor, shards=self.shards or None, journals=False).run()
        return self

    @property
    def algorithm(self) -> HyFDCASettings:
        assert isinstance(self.settings.algorithm, HyFDCASettings)
        return self.settings.algorithm

    @property
    def gaps(self) -> Vector:
        """P - D of the model with which each round began, and of the final one: by rounds done."""
        return np.array([each.figures.get("gap", np.nan) for each in [*self.moments, self.final]])

    @property
    def dual_objectives(self) -> Vector:
        return np.array([each.figures.get("dual_objective", np.nan) for each in [*self.moments, self.final]])

    @property
    def problem(self) -> Problem:
        """What is solved, for the oracle."""
        parties: dict[str, Party] = {}
        labels: dict[int, Any] = {}
        for name, client in self.clients.items():
            shard, x = client.shard, client.shard.features
            held = np.arange(x.shape[1]) if shard.features_held is None else shard.features_held
            parties[name] = Party(self.rows(name), held, x.toarray() if isinstance(x, sp.csr_array) else x)
            labels |= dict(zip(self.rows(name).tolist(), shard.labels.tolist(), strict=True))
        y = np.array([labels[n] for n in range(len(labels))])
        objective: Any = self.settings.objective
        targets = 2.0 * y - 1 if self.settings.data.task == "classification" else y
        smoothing = getattr(objective, "smoothing", 1.0)
        return Problem(parties, targets, objective.kind, objective.l2, smoothing)

    def rows(self, name: str) -> Indices:
        """Numbers of a client's samples, in the order of its rows."""
        return np.array([int(number) for number in self.clients[name].shard.identifiers])

    def picks(self, name: str, t: int) -> Indices:
        """D_k as positions among the client's rows, as it draws them."""
        state, seed = self.clients[name].state, self.settings.seed
        drawn = sampled(self.algorithm, seed, name, t, state.groups, state.sizes, state.quotas.tolist())
        picked: Indices = state.order[drawn.entries]
        return picked

    def simulation(self) -> Iterator[tuple[Moment, Hybrid]]:
        """The same run by the oracle, with the same cohorts and picks: what was seen after each round, and it."""
        settings = self.algorithm
        preset = "linesearch" if settings.preset == "auto" else settings.preset
        sparse = settings.messages == "sparse"
        oracle = Hybrid(self.problem, preset, settings.averaging, settings.trust, sparse)
        for moment in self.moments:
            picks = {k: self.picks(k, moment.t) for k in moment.cohort}
            oracle.round(moment.cohort, picks, settings.step_size_at(moment.t))
            yield moment, oracle

    def alpha(self, moment: Moment) -> Vector:
        """alpha_0 as those know it who are up to date, shape (N,); nan where nobody is."""
        alpha = np.full(1 + max(int(self.rows(k).max()) for k in self.clients), np.nan)
        for name in moment.synced:
            alpha[self.rows(name)] = moment.duals[name]
        return alpha

    def alpha_0(self, moment: Moment) -> Vector:
        """alpha_0, shape (N,), wherever it is kept."""
        return self.alpha(moment) if moment.dual is None else moment.dual

    def of_rows(self, name: str, aligned: Vector) -> Vector:
        """Put a client's entries in the order of its rows."""
        own = np.empty(len(aligned))
        own[self.clients[name].state.order] = aligned
        return own

    # The two halves

    def _server_half(self) -> type[Algorithm]:
        witness = self

        class Watched(HyFDCA):
            drawn: tuple[str, ...] = ()

            def sample(self) -> Cohort:
                cohort = super().sample()
                self.drawn = cohort.clients
                return cohort

            async def round(self, t: int) -> None:
                await super().round(t)
                while any(member.connected and member.outstanding for member in self.fleet.members.values()):
                    await asyncio.sleep(0)  # the line search tells the clients its step, and does not wait
                witness.moments.append(self.moment(t))

            async def finish(self) -> None:
                await super().finish()
                witness.final = self.moment(0)
                witness.model = self.model

            def moment(self, t: int) -> Moment:
                state: Any = self.state
                slices, dual = self.hybrid.alignment.slices, None
                if state.dual is not None:
                    dual = np.empty(len(state.dual))
                    for name in witness.clients:
                        own = witness.of_rows(name, state.dual[slices[name].positions])
                        dual[witness.rows(name)] = own
                away = frozenset(state.away)
                synced = frozenset(state.synced) if dual is not None else frozenset(witness.clients) - away
                return Moment(
                    t,
                    self.drawn,
                    self.model.copy(),
                    dual,
                    {k: witness.of_rows(k, c.state.dual) for k, c in witness.clients.items()},
                    dict(state.contributions),
                    {k: witness.of_rows(k, scores) for k, scores in state.scores.items()},
                    synced,
                    len(state.missed),
                    away,
                    self.metrics(),
                )

        return Watched

    def _client_half(self) -> type[ClientAlgorithm]:
        witness = self

        class WatchedClient(HyFDCAClient):
            def __init__(self, place: ClientContext) -> None:
                super().__init__(place)
                witness.clients[place.client] = self

            def answer(self, phase: str, t: int, values: Values, *, finite: bool = False) -> Values:
                witness.phases.append((t, phase, self.client))
                witness.before(self.client, t, phase)
                reply = super().answer(phase, t, values, finite=finite)
                if witness.fails(self.client, t, phase):
                    raise DataError("the disk is full")
                return reply

        return WatchedClient
