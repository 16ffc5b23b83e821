"""DRFA, server half.

Deng, Kamani, Mahdavi, "Distributionally Robust Federated Averaging", NeurIPS 2020, as the DRDM paper describes it (DRDM
specification, section 2.8).
"""

from __future__ import annotations

from typing import cast

from common.algorithms.drdm import DRFASettings
from common.arrays import Vector
from common.expectation import Expected
from common.payload import Values
from common.projection import onto
from server.algorithms.drdm import Displacements, SampledByWeight
from server.fleet import Cohort


class DRFA(SampledByWeight):
    """Federated averaging whose cohorts are drawn by weights that grow with the loss."""

    Settings = DRFASettings
    settings: DRFASettings

    async def round(self, t: int) -> None:
        """w <- mean of the local models of D^(s); lambda moves by losses at the mean of their snapshots."""
        w = self.model
        times, k = self.training_cohort(t), self.snapshot_step(t)
        ends, snapshots = Displacements.zeros(w), Displacements.zeros(w)

        def take(client: str, reply: Values) -> None:
            end = cast(Vector, reply["change"])
            ends.add(end, times[client], 0.0)
            snapshots.add(cast(Vector, reply.get("snapshot_change", end)), times[client], 0.0)

        names = ("change",) if k == self.settings.local_steps else ("change", "snapshot_change")
        returns: dict[str, Expected] = dict.fromkeys(names, w)
        answered = await Cohort(self.fleet, tuple(times)).visit(
            "train", take, model=w, snapshot_step=k, returns=returns
        )
        snapshot = onto(self.settings.constraint, w + snapshots.mean)
        self.model = onto(self.settings.constraint, w + ends.mean)
        self.visited(answered.clients)
        await self.dual_step(t, snapshot)
