"""A plaintext run of HyFDCA in one process, and what its two halves held after each round."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
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
from fenchel.algorithms.hyfdca.settings import HyFDCASettings, entries_of, picked_units
from fenchel.algorithms.server_half import Algorithm
from fenchel.client.local_data import LocalData, OwnFile
from fenchel.client.session import Session
from fenchel.client.worker import Worker
from fenchel.common.arrays import Indices, Vector
from fenchel.common.errors import DataError
from fenchel.common.settings.run import RunSettings, from_json, validate
from fenchel.common.storage.run_folder import RunFolder
from fenchel.common.version import PROTOCOL
from fenchel.common.wire.values import Values
from fenchel.deploy.launch.in_process import MemoryStream
from fenchel.deploy.launch.names import client_names
from fenchel.proto import fenchel_pb2 as pb
from fenchel.server.coordinator import Coordinator
from fenchel.server.fleet.cohort import Cohort
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
    """What everybody held after a round. Samples and features are known by their numbers.

    Attributes
    ----------
    t, cohort
        The round, and who was drawn for it.
    w
        w_0, shape (M,).
    dual
        alpha_0, shape (N,); ``None`` where the line search keeps it with the clients only.
    duals
        alpha_k of each client, in the order of its rows.
    contributions, scores
        The server's caches: what_k in the order of the client's columns, ip_k in that of its rows.
    synced
        Who did the last aggregation.
    missed, away
        Line search: steps that somebody missed, and who is behind.
    figures
        Of the row: gap and others.
    """

    t: int
    cohort: tuple[str, ...]
    w: Vector
    dual: Vector | None
    duals: dict[str, Vector]
    contributions: dict[str, Vector]
    scores: dict[str, Vector]
    synced: frozenset[str]
    missed: int
    away: frozenset[str]
    figures: dict[str, float]


@dataclass
class Witness:
    """Does a run and watches.

    Attributes
    ----------
    settings
        Of the run; ``algorithm.privacy`` is none.
    files
        Of each client, if clients bring files of their own.
    fails
        Which answers never reach the server: the client does its work, then fails.
    executor
        Where clients compute; ``None``: on the event loop.
    before
        Called in a client before it answers, with its name, the round and the phase.
    """

    settings: RunSettings
    files: Mapping[str, OwnFile] = field(default_factory=dict)
    fails: Trouble = lambda client, t, phase: False
    before: Callable[[str, int, str], None] = lambda client, t, phase: None
    executor: Executor | None = None
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
            asyncio.run(self._federation(folder))
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
        state, settings = self.clients[name].state, self.algorithm
        groups = state.groups if settings.picks_blocks else np.repeat(state.groups, state.sizes)
        units = picked_units(settings, self.settings.seed, name, t, groups, state.quotas.tolist())
        picked: Indices = state.order[entries_of(state.sizes, units) if settings.picks_blocks else units]
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

    # The fleet

    async def _federation(self, folder: RunFolder) -> None:
        assert isinstance(self.settings.clients, int)
        coordinator = Coordinator(self.settings, folder)
        local_data = LocalData()
        async with asyncio.TaskGroup() as tasks:
            for name in client_names(self.settings.clients):
                tasks.create_task(self._client(coordinator, name, local_data))
            tasks.create_task(coordinator.conduct())

    async def _client(self, coordinator: Coordinator, name: str, shared: LocalData) -> None:
        request = pb.JoinRequest(protocol=PROTOCOL, client=name, instance=name.encode(), own_data=bool(self.files))
        while not (reply := await coordinator.admission.join(request)).HasField("assignment"):
            pass
        settings = from_json(reply.settings)
        local_data = LocalData(self.files[name]) if self.files else shared
        holding = local_data.of(settings, reply.assignment.index, reply.assignment.clients)
        # A journal in memory: files would take most of the time.
        session = Session(name, settings, holding, None)
        stream = MemoryStream()
        serving = asyncio.create_task(coordinator.admission.work(name, name.encode(), stream.other_side()))
        try:
            await Worker(session, self.executor).work(stream)
        finally:
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)
