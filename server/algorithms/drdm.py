"""DRDM, server half.

Krouka, Ben Issaid, Bennis, "Distributionally Robust Federated Learning with Client Drift Minimization", Algorithms 1 to
3, with the parenthesis of the server's update where it belongs (DRDM specification, sections 2.2 to 2.6 and 6.1).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import numpy as np

from common.algorithms.drdm import DRDMSettings, SampledByWeightSettings
from common.arrays import Dense, Vector
from common.expectation import Expected
from common.payload import Values
from common.projection import onto
from common.randomness import generator
from common.settings.participation import FixedSize
from server.algorithms.robust import Robust
from server.fleet import Cohort, Each


@dataclass
class Displacements:
    """Sums over a cohort of how far clients got from the global model; at the end of their steps, or at the snapshot.

    Attributes
    ----------
    counted
        Sum over the replies of n_i Delta_i, shape (d,): clients that were drawn more than once count more.
    distinct
        Sum of Delta_i over distinct clients, shape (d,), each scaled as the drifts are summed up.
    draws
        Sum of n_i.
    """

    counted: Vector
    distinct: Vector
    draws: int = 0

    @classmethod
    def zeros(cls, model: Vector) -> Displacements:
        """Return empty sums."""
        return cls(np.zeros_like(model), np.zeros_like(model))

    def add(self, change: Vector, times: int, scale: float) -> None:
        """Add a client's displacement."""
        self.counted += change.dtype.type(times) * change
        self.distinct += change.dtype.type(scale) * change
        self.draws += times

    @property
    def mean(self) -> Vector:
        """Mean displacement of the cohort, shape (d,)."""
        return self.counted / self.counted.dtype.type(self.draws)


class SampledByWeight(Robust):
    """What DRDM and DRFA share: cohorts drawn by lambda, and a snapshot of the global model at a random local step."""

    settings: SampledByWeightSettings

    def training_cohort(self, t: int) -> Counter[str]:
        """Draw D^(s): how often each client was drawn, by client id (section 2.5)."""
        if self.size is None:
            return Counter(self.fleet.all().clients)
        if self.settings.sampling == "uniform":
            return Counter(self.fleet.sample(FixedSize(size=self.size), draw_name="training cohort").clients)
        epsilon, state = self.settings.exploration, self.state
        present = [member.name for member in self.fleet.present]
        p = np.array([state.weights[self.place[client]] for client in present])
        p = (1 - epsilon) * p + epsilon / len(present)
        if not p.any():
            p[:] = 1.0
        p /= p.sum()
        random = generator(self.fleet.seed, "server", t, "training cohort")
        if self.settings.sampling == "with-replacement":
            return Counter(present[i] for i in random.choice(len(present), self.size, p=p))
        weighty = min(self.size, int(np.count_nonzero(p)))
        drawn = [int(i) for i in random.choice(len(present), weighty, replace=False, p=p)]
        others = np.setdiff1d(np.arange(len(present)), drawn)
        drawn += [int(i) for i in random.choice(others, min(self.size - weighty, len(others)), replace=False)]
        return Counter(present[i] for i in drawn)

    def snapshot_step(self, t: int) -> int:
        """Draw k', uniformly from 1 to tau: after so many local steps the snapshot is taken."""
        random = generator(self.fleet.seed, "server", t, "snapshot step")
        return int(random.integers(1, (self.settings.local_steps or 1) + 1))


class DRDM(SampledByWeight):
    """Local steps that correct the clients' drift, cohorts drawn by weights that grow with the loss."""

    @dataclass
    class State(Robust.State):
        """The server's state.

        Attributes
        ----------
        drift
            H, shape (d,): the mean of all h_i, with ``lambda-table`` weighed by lambda, as it was in the last round.
        table
            h_i of every client, shape (N, d), for ``lambda-table``; else (0, d).
        """

        drift: Vector
        table: Dense

    Settings = DRDMSettings
    settings: DRDMSettings
    state: State
    figures: ClassVar[tuple[str, ...]] = Robust.figures

    def initial_state(self, model: Vector) -> State:
        """H = 0, as the clients begin with h_i = 0."""
        rows = len(self.fleet.members) if self.settings.correction == "lambda-table" else 0
        return self.State(
            **self.beginning(model),
            drift=np.zeros_like(model),
            table=np.zeros((rows, model.size), model.dtype),
        )

    async def round(self, t: int) -> None:
        """Phase A: train D^(s) and move the model; phase B: ask U^(s) for losses at the snapshot and move lambda."""
        w, state = self.model, self.state
        times, k = self.training_cohort(t), self.snapshot_step(t)
        ends, snapshots = Displacements.zeros(w), Displacements.zeros(w)
        weigh = self._drift_weights()
        before = self._drift()

        def take(client: str, reply: Values) -> None:
            end = cast(Vector, reply["change"])
            ends.add(end, times[client], weigh[client])
            snapshots.add(cast(Vector, reply.get("snapshot_change", end)), times[client], weigh[client])
            if state.table.size:
                state.table[self.place[client]] += end

        cohort = Cohort(self.fleet, tuple(times))
        scales: dict[str, Any] = (
            {"scale": Each(self._scales(cohort))} if self.settings.correction == "lambda-scaled" else {}
        )
        answered = await cohort.visit(
            "train", take, model=w, snapshot_step=k, returns=self._returns(w, k), **scales
        )
        state.drift = before + ends.distinct  # H; at the snapshot it is another, which is not kept
        snapshot = onto(self.settings.constraint, w + snapshots.mean + before + snapshots.distinct)
        self.model = onto(self.settings.constraint, w + ends.mean + state.drift)
        self.visited(answered.clients)
        await self.dual_step(t, snapshot)

    def _drift_weights(self) -> dict[str, float]:
        """Return what the drifts h_i are weighed with in H: lambda_i, or 1/N (section 2.4)."""
        if self.settings.correction == "lambda-table":
            return {client: float(self.state.weights[place]) for client, place in self.place.items()}
        return dict.fromkeys(self.place, 1 / len(self.place))

    def _drift(self) -> Vector:
        """Return H before the round, shape (d,): of the table it is taken anew, since lambda has changed."""
        state = self.state
        if self.settings.correction != "lambda-table":
            return state.drift
        drift: Vector = state.weights.astype(state.table.dtype) @ state.table
        return drift

    def _returns(self, w: Vector, k: int) -> dict[str, Expected]:
        """At the last step the snapshot is the end, and is not sent twice."""
        names = ("change",) if k == self.settings.local_steps else ("change", "snapshot_change")
        return dict.fromkeys(names, w)

    def _scales(self, cohort: Cohort) -> dict[str, float]:
        """omega_i = max(N lambda_i, omega_min), for ``lambda-scaled``."""
        clients, least = len(self.place), self.settings.smallest_scale
        weights = self.state.weights
        return {client: max(clients * float(weights[self.place[client]]), least) for client in cohort.clients}
