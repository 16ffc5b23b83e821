"""Sampling of the dual coordinates that are updated in a round, and weights of their changes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from fenchel.algorithms.hyfdca.alignment import Alignment
from fenchel.algorithms.hyfdca.settings import HyFDCASettings, SampledBlock, sampled
from fenchel.common.arrays import Indices


@dataclass(frozen=True)
class SampledBlocks:
    """Sampled dual coordinates of all clients, which follow from the run's seed, so that server and clients agree.

    Attributes
    ----------
    settings, seed
        Section ``algorithm`` of the settings, and seed of the run.
    alignment
        Alignment of the samples.
    block
        Number of samples in a block.
    """

    settings: HyFDCASettings
    seed: int
    alignment: Alignment
    block: int

    def of(self, client: str, t: int) -> SampledBlock:
        """Return D_k of round ``t``."""
        held = self.alignment.slices[client]
        return sampled(self.settings, self.seed, client, t, held.group, held.sizes, self.quotas(client))

    def quotas(self, client: str) -> list[int]:
        """Return the numbers of units that the client samples in a round.

        With common sampling there is one for each of its groups, otherwise one in all. The list is empty if the client
        updates all its units.
        """
        held, wanted = self.alignment.slices[client], self.settings.picks
        if wanted is None:
            return []
        if self.settings.picking == "independent":
            return [wanted]
        quotas = []
        for group in np.unique(held.group):
            here = self.alignment.groups[group]
            size = int(self.alignment.block_sizes[here.blocks].sum())
            # All holders of a group need the same quota: H times the group's fraction of the samples of its largest
            # holder. So the quotas of a client add up to about H, or less if others hold more. Rounding adds a few.
            most = max(len(self.alignment.slices[other].positions) for other in here.clients)
            samples = max(1, round(size * min(1.0, wanted / most)))
            quotas.append(-(-samples // self.block) if self.settings.picks_blocks else samples)
        return quotas

    def touched(self, clients: Iterable[str], picked: Mapping[str, SampledBlock]) -> dict[str, Indices | None]:
        """Return the blocks of each client of the run that are in the union of the sampled blocks of ``clients``.

        ``None`` stands for all blocks, in runs with dense messages.
        """
        slices = self.alignment.slices
        union = np.zeros(self.alignment.blocks, bool)
        for client in clients:
            blocks = picked[client].blocks
            if blocks is None:
                return dict.fromkeys(slices)
            union[slices[client].blocks[blocks]] = True
        return {client: np.flatnonzero(union[held.blocks]) for client, held in slices.items()}

    def divisors(self, clients: Iterable[str], picked: Mapping[str, SampledBlock]) -> dict[str, Indices]:
        """Return the divisor of each sample's change, in aligned order (docs/specifications/hyfdca.md, 5.1, E9)."""
        slices, clients = self.alignment.slices, list(clients)
        if self.settings.averaging == "all":
            return {client: slices[client].holders for client in clients}
        count = np.zeros(self.alignment.samples, np.int64)
        for client in clients:
            positions = slices[client].positions
            active = self.settings.averaging == "active"
            count[positions if active else positions[picked[client].entries]] += 1
        return {client: np.maximum(count[slices[client].positions], 1) for client in clients}

    def damping(
        self,
        clients: Iterable[str],
        picked: Mapping[str, SampledBlock],
        divisors: Mapping[str, Indices],
        step_size: float,
    ) -> float:
        """Return sigma = max(1, sigma_t / 2), with which the dual objective never decreases.

        sigma_t is the sum of ``step_size / divisor`` over the sampled entries of all clients. Source:
        docs/specifications/hyfdca.md, section 3.2.
        """
        sigma = sum(float(np.sum(step_size / divisors[client][picked[client].entries])) for client in clients)
        return max(1.0, sigma / 2)
