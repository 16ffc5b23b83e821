"""DRFA.

Deng, Kamani, Mahdavi, "Distributionally Robust Federated Averaging", NeurIPS 2020, as the DRDM paper
describes it (docs/specifications/drdm.md, section 2.8).
"""

from __future__ import annotations

from typing import Literal

from fenchel.algorithms.client_half import answers
from fenchel.algorithms.robust.drdm import SampledClient
from fenchel.algorithms.robust.sampled_by_weight import SampledByWeight
from fenchel.algorithms.robust.settings import SampledByWeightSettings
from fenchel.common.arrays import Vector
from fenchel.common.optim.projection import onto
from fenchel.common.wire.values import Values


class DRFASettings(SampledByWeightSettings):
    """Loss of the worst clients, averaging (Deng et al. 2020)."""

    name: Literal["drfa"] = "drfa"


class DRFA(SampledByWeight):
    """Server half: federated averaging with cohorts drawn by weights that grow with the loss."""

    Settings = DRFASettings
    settings: DRFASettings

    async def round(self, t: int) -> None:
        """Set w to the mean of the local models of D^(s), and update lambda by losses at their mean snapshot."""
        await self.part_with_lost()
        w = self.model
        change, snapshot_change = await self.trained(t, w)
        self.model = self.moved(w, change)
        await self.dual_step(t, self.moved(w, snapshot_change))


class DRFAClient(SampledClient):
    """Client half: local gradient steps from the global model, without state."""

    @answers("train")
    def train(self, model: Vector, snapshot_step: int) -> Values:
        """Take tau steps w <- Pi_W(w - eta grad l_k(w)); return the displacements after tau and after k' steps."""
        w, snapshot, eta = model.copy(), model, self.settings.step_size_at(self.round)
        for step, batch in enumerate(self.batches(), 1):
            w = onto(self.settings.constraint, w - eta * self.gradient(w, batch))
            if step == snapshot_step:
                snapshot = w
        return self.displacements(w - model, snapshot - model, snapshot_step)
