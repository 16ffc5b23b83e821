"""Sampling of cohorts.

A draw depends on the run's seed, the round, and the clients that are lost or have not answered for long
(``fenchel/fleet/availability.py``).
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fenchel.common.arrays import Vector
from fenchel.common.errors import SettingsError
from fenchel.common.settings.participation import AllClients, Bernoulli, Cyclic, FixedSize, Fraction, Sampler, Weighted

log = logging.getLogger("fenchel.server")


def draw(
    sampler: Sampler,
    weights: Vector,
    t: int,
    random: np.random.Generator,
    *,
    lost: int = 0,
    absent: Collection[int] = (),
) -> Sequence[int]:
    """Draw the positions of the clients of a cohort.

    If clients were lost and fewer are left than the sampler requires, all clients that are left take part.

    :class:`FixedSize`, :class:`Fraction` and :class:`Weighted` have a fixed number of places. Absent clients get only
    places that the others leave free. The other samplers draw absent clients like all others.

    Parameters
    ----------
    sampler
        Sampler.
    weights
        Non-negative weight of each client that is left, shape (n,). Only :class:`Weighted` uses them.
    t
        Number of the round, from 1. Only :class:`Cyclic` uses it.
    random
        Generator of the draw.
    lost
        Number of clients that are lost (``participation.on_lost_state: continue``) or without privacy budget.
    absent
        Positions of the clients that have not answered for long.

    Returns
    -------
    Sequence[int]
        Sorted positions in 0..n-1. With replacement a position can repeat.

    Raises
    ------
    SettingsError
        If the sampler requires more clients than the run has, including lost ones, or if the weights are invalid.
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
    here = np.ones(n, bool)
    here[list(absent)] = False
    if isinstance(sampler, Weighted):
        return _sorted(_weighted(sampler, weights, random, lost, here))
    size = _at_most("size", sampler.size, n, lost) if isinstance(sampler, FixedSize) else fraction_size(sampler, n)
    first = random.choice(np.flatnonzero(here), min(size, int(here.sum())), replace=False)
    others = random.choice(np.flatnonzero(~here), size - first.size, replace=False)
    return _sorted(np.concatenate([first, others]))


def has_places(sampler: Sampler) -> bool:
    """Return True if the sampler has a fixed number of places, so that one client takes the place of another."""
    return isinstance(sampler, FixedSize | Fraction | Weighted)


def fraction_size(sampler: Fraction, n: int) -> int:
    """Return the cohort size for a fraction of ``n`` clients: rounded to the nearest integer, and at least 1."""
    return max(1, int(np.floor(sampler.fraction * n + 0.5)))


@dataclass
class SmallCohortWarning:
    """Warning, once after each loss, that fewer clients are left than the sampler requires.

    Attributes
    ----------
    left
        Number of clients left at the last warning; ``None``: no warning yet.
    """

    left: int | None = None

    def tell(self, sampler: Sampler, left: int, lost: int, t: int) -> None:
        """Warn that cohorts are smaller, or groups fewer, than the sampler requires from round ``t`` on.

        The warning is repeated only when the number of clients ``left`` has changed.
        """
        if isinstance(sampler, Cyclic):
            what, wanted = "groups", sampler.groups
        elif isinstance(sampler, FixedSize) or (isinstance(sampler, Weighted) and not sampler.replacement):
            what, wanted = "clients a round", sampler.size
        else:
            return
        if left < wanted and left != self.left:
            self.left = left
            log.warning(
                "participation.sampler: the settings ask for %d %s, but %d of %d clients are lost or have spent their "
                "privacy budgets; from round %d on the run continues with %d",
                wanted,
                what,
                lost,
                left + lost,
                t,
                left,
            )


def _weighted(
    sampler: Weighted, weights: Vector, random: np.random.Generator, lost: int, here: NDArray[np.bool_]
) -> np.ndarray:
    n = len(weights)
    positive = int(np.count_nonzero(weights > 0))
    if not np.isfinite(weights).all() or (weights < 0).any() or not positive:
        raise SettingsError(
            f"the weights for drawing clients are {weights.min():g} to {weights.max():g}, but must be finite, not "
            "negative and not all zero; correct the argument of sample(weights=) in the algorithm",
            key="participation.sampler",
        )
    size = sampler.size if sampler.replacement else _at_most("size", sampler.size, positive, lost)
    first = np.where(here, weights, 0.0)
    if sampler.replacement:
        p = first if first.any() else weights
        return random.choice(n, size, p=p / p.sum())
    drawn = np.empty(0, np.int64)
    for part in (first, weights - first):
        places = min(size - drawn.size, int(np.count_nonzero(part)))
        if places:
            chosen = random.choice(n, places, replace=False, p=part / part.sum())
            drawn = np.concatenate([drawn, chosen])
    return drawn


def _at_most(key: str, wanted: int, left: int, lost: int) -> int:
    if wanted > left + lost:
        raise SettingsError(
            f"{wanted} given, but only {left + lost} clients can be drawn; lower "
            f"it{', or sample with replacement (kind: weighted, replacement: true)' if key == 'size' else ''}",
            key=f"participation.sampler.{key}",
        )
    return min(wanted, left)


def _sorted(chosen: np.ndarray) -> list[int]:
    return sorted(int(position) for position in chosen)
