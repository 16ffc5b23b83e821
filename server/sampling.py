"""How a cohort is drawn. Each draw depends on the run's seed and the round, and on nothing else."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from common.arrays import Vector
from common.errors import SettingsError
from common.settings.participation import (
    AllClients,
    Bernoulli,
    Cyclic,
    FixedSize,
    Fraction,
    Sampler,
    Weighted,
)

log = logging.getLogger("fenchel.server")


def draw(
    sampler: Sampler, weights: Vector, t: int, random: np.random.Generator, *, lost: int = 0
) -> Sequence[int]:
    """Draw the positions of a round's clients.

    Where the settings want more clients than there are, that is a mistake, unless there were enough before some of
    them were lost: then all that are left take part.

    Parameters
    ----------
    sampler
        The rule.
    weights
        Shape (n,), one non-negative weight for each client that is left; only :class:`Weighted` uses them.
    t
        The round, from 1; only :class:`Cyclic` uses it.
    random
        Source of the draw.
    lost
        How many other clients the run had before they were lost (``participation.on_lost_state: continue``).

    Returns
    -------
    Sequence[int]
        Increasing positions within 0..n-1; with replacement a position may repeat.

    Raises
    ------
    SettingsError
        More clients are wanted than there were.
    """
    n = len(weights)
    if isinstance(sampler, AllClients):
        return range(n)
    if isinstance(sampler, Bernoulli):
        while not len(chosen := np.flatnonzero(random.random(n) < sampler.probability)):
            pass
        return [int(position) for position in chosen]
    if isinstance(sampler, Cyclic):
        count = _at_most("groups", sampler.groups, n, lost)
        groups = np.array_split(np.arange(n), count)
        return [int(position) for position in groups[(t - 1) % count]]
    if isinstance(sampler, Weighted):
        return _sorted(_weighted(sampler, weights, random, lost))
    size = (
        _at_most("size", sampler.size, n, lost)
        if isinstance(sampler, FixedSize)
        else fraction_size(sampler, n)
    )
    return _sorted(random.choice(n, size, replace=False))


def fraction_size(sampler: Fraction, n: int) -> int:
    """Return the number of clients that a fraction of ``n`` means, at least one."""
    return max(1, int(np.floor(sampler.fraction * n + 0.5)))


@dataclass
class Shortage:
    """Tells people, once after each loss, that fewer clients are left than the settings want.

    Attributes
    ----------
    left
        How many there were when it was last told.
    """

    left: int | None = None

    def tell(self, sampler: Sampler, left: int, lost: int, t: int) -> None:
        """Log that cohorts (or the number of groups) are smaller from round ``t`` on, unless that was told."""
        if isinstance(sampler, Cyclic):
            what, wanted = "groups", sampler.groups
        elif isinstance(sampler, FixedSize) or (isinstance(sampler, Weighted) and not sampler.replacement):
            what, wanted = "clients a round", sampler.size
        else:
            return
        if left < wanted and left != self.left:
            self.left = left
            log.warning(
                "participation.sampler: %d %s are wanted, but %d of %d clients are lost; from round %d on it is %d",
                wanted,
                what,
                lost,
                left + lost,
                t,
                left,
            )


def _weighted(sampler: Weighted, weights: Vector, random: np.random.Generator, lost: int) -> np.ndarray:
    n = len(weights)
    positive = int(np.count_nonzero(weights > 0))
    if not np.isfinite(weights).all() or (weights < 0).any() or not positive:
        raise SettingsError("weights for sampling must be finite, not negative, and not all zero")
    size = sampler.size if sampler.replacement else _at_most("size", sampler.size, positive, lost)
    return random.choice(n, size, replace=sampler.replacement, p=weights / weights.sum())


def _at_most(key: str, wanted: int, left: int, lost: int) -> int:
    if wanted > left + lost:
        raise SettingsError(
            f"participation.sampler.{key}: {wanted} given, but only {left + lost} clients can be drawn; lower it"
            + (", or sample with replacement (kind: weighted, replacement: true)" if key == "size" else "")
        )
    return min(wanted, left)


def _sorted(chosen: np.ndarray) -> list[int]:
    return sorted(int(position) for position in chosen)
