"""How a cohort is drawn. Each draw depends on the run's seed and the round, and on nothing else."""

from __future__ import annotations

from collections.abc import Sequence

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


def draw(sampler: Sampler, weights: Vector, t: int, random: np.random.Generator) -> Sequence[int]:
    """Draw the positions of a round's clients.

    Parameters
    ----------
    sampler
        The rule.
    weights
        Shape (n,), one non-negative weight for each client; only :class:`Weighted` uses them.
    t
        The round, from 1; only :class:`Cyclic` uses it.
    random
        Source of the draw.

    Returns
    -------
    Sequence[int]
        Increasing positions within 0..n-1; with replacement a position may repeat.

    Raises
    ------
    SettingsError
        More clients are wanted than there are.
    """
    n = len(weights)
    if isinstance(sampler, AllClients):
        return range(n)
    if isinstance(sampler, Bernoulli):
        while not len(chosen := np.flatnonzero(random.random(n) < sampler.probability)):
            pass
        return [int(position) for position in chosen]
    if isinstance(sampler, Cyclic):
        _at_most(sampler.groups, n)
        groups = np.array_split(np.arange(n), sampler.groups)
        return [int(position) for position in groups[(t - 1) % sampler.groups]]
    if isinstance(sampler, Weighted):
        return _sorted(_weighted(sampler, weights, random))
    size = sampler.size if isinstance(sampler, FixedSize) else fraction_size(sampler, n)
    _at_most(size, n)
    return _sorted(random.choice(n, size, replace=False))


def fraction_size(sampler: Fraction, n: int) -> int:
    """Return the number of clients that a fraction of ``n`` means, at least one."""
    return max(1, int(np.floor(sampler.fraction * n + 0.5)))


def _weighted(sampler: Weighted, weights: Vector, random: np.random.Generator) -> np.ndarray:
    n = len(weights)
    positive = int(np.count_nonzero(weights > 0))
    if not np.isfinite(weights).all() or (weights < 0).any() or not positive:
        raise SettingsError("weights for sampling must be finite, not negative, and not all zero")
    if not sampler.replacement:
        _at_most(sampler.size, positive)
    return random.choice(n, sampler.size, replace=sampler.replacement, p=weights / weights.sum())


def _at_most(size: int, n: int) -> None:
    if size > n:
        raise SettingsError(
            f"participation.sampler: {size} clients a round are wanted, but only {n} can be drawn; "
            "lower the size, or sample with replacement"
        )


def _sorted(chosen: np.ndarray) -> list[int]:
    return sorted(int(position) for position in chosen)
