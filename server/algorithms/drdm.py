"""DRDM, server half.

Krouka, Ben Issaid, Bennis, "Distributionally Robust Federated Learning with Client Drift Minimization", Algorithms 1 to
3, with the parenthesis of the server's update where it belongs (DRDM specification, sections 2.2 to 2.6 and 6.1).
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from common.algorithms.drdm import DRDMSettings
from common.arrays import Dense, Vector
from common.values import Values
from server.algorithm import Conduct
from server.algorithms.sampled_by_weight import CohortMean, SampledByWeight
from server.cohort import Cohort, Each

log = logging.getLogger("fenchel.server")


class DRDM(SampledByWeight):
    """Local steps that correct the clients' drift, cohorts drawn by weights that grow with the loss."""

    @dataclass
    class State(SampledByWeight.State):
        """More of the server's state.

        Attributes
        ----------
        drift
            H, shape (d,), float64: the mean of all clients' h_i, whoever took part; with ``lambda-table`` their sum,
            weighed by the lambda of the last round.
        table
            h_i of every client, shape (N, d), with ``lambda-table``; else (0, d). In the dtype of the model, as the
            clients keep theirs, so that both round alike.
        """

        drift: NDArray[np.float64]
        table: Dense

    Settings = DRDMSettings
    settings: DRDMSettings
    state: State

    def __init__(self, conduct: Conduct) -> None:
        super().__init__(conduct)
        loud = self.settings.dual_estimator == "plain" and self.m < self.clients
        if loud and self.settings.correction.startswith("lambda"):
            log.warning(
                "with dual_estimator: plain and fewer than all clients a round, lambda never settles, and correction: "
                "%s follows it; use dual_estimator: control-variate",
                self.settings.correction,
            )

    def initial_state(self, model: Vector) -> State:
        """H = 0, as the clients begin with h_i = 0."""
        rows = len(self.fleet.members) if self.settings.correction == "lambda-table" else 0
        return self.State(
            **self.beginning(model),
            drift=np.zeros(model.shape),
            table=np.zeros((rows, model.size), model.dtype),
        )

    async def round(self, t: int) -> None:
        """Phase A: train D^(s) and move the model; phase B: ask U^(s) for losses at the snapshot and move lambda.

        With Delta_i and Delta'_i, how far client i has come after tau and after k' steps:

            H <- H + sum_i share_i Delta_i        w       <- w + mean_D(Delta_i)  + H
            H' = H + sum_i share_i Delta'_i       snapshot = w + mean_D(Delta'_i) + H'     (with the old w and H)

        A client that was drawn more than once counts more in the means, and once in the sums. Its new h_i counts if and
        only if its reply did.
        """
        await self.part_with_lost()
        w, state = self.model, self.state
        n, k = self.training_cohort(t), self.snapshot_step(t)
        share = self.shares()
        end, snapshot = CohortMean.zeros(w), CohortMean.zeros(w)
        drift = self.current_drift()
        snapshot_drift = drift.copy()

        def take(client: str, reply: Values) -> None:
            nonlocal drift, snapshot_drift
            change = cast(Vector, reply["change"])
            snapshot_change = cast(Vector, reply.get("snapshot_change", change))
            end.add(change, n[client])
            snapshot.add(snapshot_change, n[client])
            drift += share[self.place[client]] * change
            snapshot_drift += share[self.place[client]] * snapshot_change
            if len(state.table):
                state.table[self.place[client]] += change

        cohort = Cohort(self.fleet, tuple(n))
        answered = await cohort.visit(
            "train", take, model=w, snapshot_step=k, returns=self.displacements(w, k), **self._scales()
        )
        state.drift = drift
        self.model = self.moved(w, end.value + drift)
        self.visited(answered)
        await self.dual_step(t, self.moved(w, snapshot.value + snapshot_drift))

    async def part_with_lost(self) -> bool:
        """Take out of H the h_i of clients that were lost, so that H is again the sum over those that are left.

        With a table H does without them, as their lambda_i is 0. Otherwise nobody knows their h_i any more, and H and
        every h_i begin at 0 again, together (section 2.7): a promise that each client keeps before it trains again.
        """
        parted = await super().part_with_lost()
        if parted and self.settings.correction == "lambda-table":
            self.state.table[self.state.lost] = 0
        elif parted and self.settings.correction != "none":
            self.state.drift = np.zeros_like(self.state.drift)
            await self.fleet.all().tell("forget_drift")
            log.warning(
                "the drifts of lost clients are not known with correction: %s, so all drifts begin at 0 again and the "
                "run goes on; with correction: lambda-table that would not be necessary",
                self.settings.correction,
            )
        return parted

    def shares(self) -> NDArray[np.float64]:
        """Return what each h_i counts for in H, shape (N,): 1/N, lambda_i, or nothing (section 2.4)."""
        if self.settings.correction == "lambda-table":
            return self.state.weights
        return np.where(self.state.lost | (self.settings.correction == "none"), 0.0, 1 / self.clients)

    def current_drift(self) -> NDArray[np.float64]:
        """Return H before the round, a new array of shape (d,); from the table, since lambda may have changed."""
        drift = self.state.drift.copy()
        if self.settings.correction == "lambda-table":
            drift[:] = 0
            for weight, h in zip(self.state.weights, self.state.table, strict=True):
                drift += weight * h
        return drift

    def _scales(self) -> dict[str, Any]:
        """omega_i = max(N lambda_i, omega_min), for ``lambda-scaled``: each client is told its own."""
        if self.settings.correction != "lambda-scaled":
            return {}
        scales = np.maximum(self.clients * self.state.weights, self.settings.omega_min)
        return {"scale": Each({client: float(scales[place]) for client, place in self.place.items()})}
