"""What the client halves of the algorithms for the area under the ROC curve share (CODASCA specification, section 2).

The point is u = (w, a, b, alpha), shape (n,) with n = d + 3: one vector for the scorer and the three numbers of the
min-max function. Directions are those of the operator G(u) = (grad_v F, -grad_alpha F), so that every entry descends,
and control variates have one sign for primal and dual variables: that of the last entry is opposite to the paper's.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from client.algorithm import ClientAlgorithm, Place, answers
from common.algorithms.staged import StagedSettings
from common.arrays import Indices, Vector
from common.objectives.auc import AUXILIARY
from common.objectives.binary import BinaryObjective, require_scores
from common.values import Values


class StagedClient(ClientAlgorithm):
    """Counts its samples, draws batches, and knows the direction of a step."""

    settings: StagedSettings
    objective: BinaryObjective

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        require_scores(place.objective, place.settings.name)

    @property
    def length(self) -> int:
        """n = d + 3."""
        return self.objective.dimension + AUXILIARY

    def zeros(self) -> Vector:
        """Return a vector of the length of a point."""
        return np.zeros(self.length, self.objective.dtype)

    @answers("count")
    def count(self) -> Values:
        """Set-up phase: return n_k and n_k^+."""
        return {"samples": self.objective.samples, "positives": self.objective.positives}

    def batches(self, steps: int) -> Iterator[Indices]:
        """Draw this round's batches, of size B."""
        if self.settings.batches == "stratified":
            return self._stratified(steps)
        return self.objective.batches(
            self.generator("batches"),
            steps=steps,
            batch_size=self.settings.batch_size,
            draw=self.settings.batches,
        )

    def _stratified(self, steps: int) -> Iterator[Indices]:
        """Draw batches with a fixed number of positive samples; one occurs twice only if there are too few."""
        objective, random = self.objective, self.generator("batches")
        objective.require(objective.samples)
        size = self.settings.batch_size or objective.samples
        wanted = self.settings.positives_of_batch(objective.samples, objective.positives)
        classes = np.flatnonzero(objective.positive), np.flatnonzero(~objective.positive)
        for _ in range(steps):
            yield np.concatenate(
                [
                    random.choice(rows, count, replace=count > rows.size)
                    for rows, count in zip(classes, (wanted, size - wanted), strict=True)
                    if count
                ]
            )

    def large_batch(self, size: int | None, purpose: str) -> Indices:
        """Draw distinct samples for what is done once a stage; all of them with ``None``."""
        if size is None or size >= self.objective.samples:
            return self.objective.all_rows
        return self.generator(purpose).choice(self.objective.samples, size, replace=False)

    def direction(self, u: Vector, batch: Indices, prior: float) -> tuple[float, Vector]:
        """Return the mean of F, and G without the proximal term, shape (n,); the caller owns it.

        Parameters
        ----------
        u
            The point, shape (n,).
        batch
            Rows of the shard.
        prior
            p.
        """
        value, g = self.objective.saddle_gradient(u, batch, prior)
        if self.settings.dual_step == "plug-in":
            a, b, alpha = u[-AUXILIARY:]
            g[-1] = 2 * (alpha - (b - a))
        return value, g

    def pulled(self, g: Vector, u: Vector, centre: Vector) -> Vector:
        """Add gamma (v - v_0) to the part of ``g`` that belongs to v = (w, a, b)."""
        gamma = self.settings.proximal_weight
        if gamma:
            g[:-1] += gamma * (u[:-1] - centre[:-1])
        return g

    def moved(self, u: Vector, direction: Vector, eta: float) -> Vector:
        """Take a step, ``u - eta direction``, in place; both vectors are of shape (n,) and change.

        If the settings say so, entries of the direction are clipped, weights decay and alpha has a floor.
        """
        clip, decay, floor = (
            self.settings.gradient_clip,
            self.settings.weight_decay,
            self.settings.dual_floor,
        )
        if clip is not None:
            np.clip(direction[:-AUXILIARY], -clip, clip, out=direction[:-AUXILIARY])
        if decay:
            direction[:-1] += decay * u[:-1]
        u -= eta * direction
        if floor is not None:
            u[-1] = max(u[-1], floor)
        return u
