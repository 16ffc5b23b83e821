"""Bounds on the numbers of HyFDCA, from which the widths of slots in a ciphertext follow."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, TypeAlias

from fenchel.algorithms.hyfdca.settings import HyFDCASettings
from fenchel.common.crypto.packing import Layout
from fenchel.common.errors import EncryptionError, SettingsError
from fenchel.common.objectives.losses import MarginLoss

Kind: TypeAlias = Literal["score", "dual", "norm", "primal", "figure"]
"""Kinds of encrypted values: inner products, dual variables and their changes, squared norms of rows, contributions to
the model, and sums over clients for monitoring and line search."""

_NAMES: Mapping[Kind, str] = {
    "score": "inner products",
    "dual": "dual variables",
    "norm": "squared norms of the rows",
    "primal": "contributions to the model",
    "figure": "monitored sums",
}

KINDS: tuple[Kind, ...] = tuple(_NAMES)

_SPARE = 2.0  # safety factor on the range of dual variables, for rounding and averaging
_MARGIN = 4.0  # safety factor on a bound that is proved only for full participation
_CLEAR_BLOCK = 1024  # number of samples in a block of a run without encryption


@dataclass(frozen=True)
class DualRanges:
    """Bounds from the settings and from the server's knowledge of the data.

    Attributes
    ----------
    settings
        Section ``algorithm`` of the settings.
    loss, l2
        Loss and regularisation of the objective.
    samples
        Total number of rows of all clients.
    clients
        Number of clients.
    holders
        Largest number of holders of a sample.
    longest_part
        Bound on the squared norm of a client's part of a row.
    largest_target
        Bound on the magnitude of targets, at least 1.
    ascends
        Whether the dual objective never decreases, so that it bounds the model.
    """

    settings: HyFDCASettings
    loss: MarginLoss
    l2: float
    samples: int
    clients: int
    holders: int
    longest_part: float
    largest_target: float = 1.0
    ascends: bool = False

    @cached_property
    def block(self) -> int:
        """Number of samples in a block, which is the content of one ciphertext.

        Raises
        ------
        SettingsError
            If ``algorithm.block`` exceeds the number of values that fit.
        """
        per_sample: tuple[Kind, ...] = ("score", "dual", "norm")
        fits = min(self._fitted(kind).slots for kind in per_sample) if self.settings.key_bits else _CLEAR_BLOCK
        wanted, picks = self.settings.block, self.settings.picks
        if wanted is not None:
            if wanted > fits:
                raise SettingsError(
                    f"{wanted} given, but a ciphertext holds at most {fits} values; use at most that many",
                    key="algorithm.block",
                )
            return wanted
        if self.settings.messages == "dense":
            return fits
        return 1 if self.settings.picking == "independent" else min(fits, picks or fits)

    @cached_property
    def layouts(self) -> dict[Kind, Layout]:
        """Layout of each kind of vector. All per-sample vectors have the same blocks."""
        if self.settings.key_bits is None:
            return dict.fromkeys(KINDS, Layout(2, 0, 1, 1))  # placeholder for runs without ciphertexts
        slots: dict[Kind, int] = {"score": self.block, "dual": self.block, "norm": self.block}
        return {kind: self._fitted(kind, slots.get(kind)) for kind in KINDS}

    def _fitted(self, kind: Kind, slots: int | None = None) -> Layout:
        largest, additions = self._bounds()[kind]
        assert self.settings.key_bits is not None
        # The line search divides differences of sums, which near the optimum are as small as the duality gap.
        precision = self.settings.encryption.fraction_bits * (2 if kind == "figure" else 1)
        try:
            return Layout.fit(self.settings.key_bits, precision, largest, additions, slots)
        except EncryptionError as error:
            from_scores = (
                ". The range of scores follows from the longest row, objective.l2 and the largest dual variable; set "
                "algorithm.encryption.largest_score to reduce it"
            )
            raise SettingsError(
                f"the {_NAMES[kind]} do not fit into a ciphertext: {error}"
                f"{from_scores if kind in ('score', 'figure') else ''}",
                key="algorithm.encryption",
            ) from None

    @property
    def largest_dual(self) -> float:
        """Largest magnitude of a dual variable, by the loss or in proportion to the targets."""
        if self._bounded:
            return 1.0
        return self.settings.encryption.largest_dual * self.largest_target

    @property
    def _bounded(self) -> bool:
        """True if the loss bounds dual variables: ``b = y alpha`` is in [0, 1]."""
        return math.isfinite(self.loss.domain[1])

    @property
    def _largest_change(self) -> float:
        """Largest magnitude of a change of a dual variable, which is the width of its range."""
        return self.largest_dual * (1.0 if self._bounded else 2.0)

    def _bounds(self) -> dict[Kind, tuple[float, int]]:
        """Return the largest magnitude and the number of added vectors for each kind."""
        row = self.holders * self.longest_part  # bound on ||x_i||^2, a sum over holders
        score = self.settings.encryption.largest_score or self._largest_score(row)
        # bound on |sum_i delta_i x_im| for changes delta_i, and on |sum_i alpha_i x_im|, as alpha_i is not larger
        contribution = self.samples * self._largest_change * math.sqrt(row)
        return {
            "score": (score, self.holders),
            "dual": (_SPARE * self.largest_dual, self.holders + 1),  # alpha_0 plus one change by each holder
            "norm": (self.longest_part, self.holders),
            "primal": (contribution, self.clients),
            "figure": (self._largest_figure(row, score), self.clients),
        }

    def _largest_figure(self, row: float, score: float) -> float:
        """Return a bound on the numbers that are summed over clients.

        They are means over samples of losses, conjugates and terms of the line search
        (``fenchel.common.objectives.coordinate.line_terms``). If the server does not know w, they include
        (lambda/2) ||w||^2, w^T v and ||v||^2, where v = A delta.
        """
        dual, change, target = self.largest_dual, self._largest_change, self.largest_target
        # The conjugate of the logistic loss is an entropy, with magnitude at most ln 2.
        curvature = self.loss.conjugate_curvature or 0.0
        bounds = [
            1 + score if self._bounded else (target + score) * (target + score) / 2,
            dual * target + curvature * dual * dual / 2,
            change * (target + curvature * dual),
            curvature * change * change,
        ]
        if self.settings.protect_primal:
            w, v = (math.sqrt(row) * each / self.l2 for each in (dual, change))
            bounds += [self.l2 / 2 * w * w, w * v, v * v]
        return max(bounds)

    def _largest_score(self, row: float) -> float:
        """Return a bound on |x_i^T w|, which also holds for a part of the features.

        |x_i^T w| = |sum_j alpha_j x_i^T x_j| / (lambda N) <= max |alpha| max ||x||^2 / lambda. If the dual objective
        never decreases, (lambda/2) ||w||^2 <= (1/N) sum_i -l_i*(-alpha_i) <= max l_i(0), which is at most 1 for losses
        with bounded dual variables. A margin covers rounds with absent clients.
        """
        score = self.largest_dual * row / self.l2
        if self.ascends and self._bounded:
            return min(score, _MARGIN * math.sqrt(2 * row / self.l2))
        return score
