"""How a cohort is drawn.

Each draw depends on the run's seed and the round, and on who is lost or has not answered for long
(``availability.py``).
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
    """Draw the positions of a round's clients.

    Where the settings want more clients than there are, that is a mistake, unless there were enough before some of
    them were lost: then all that are left take part.

    Where clients compete for places (:class:`FixedSize`, :class:`Fraction`, :class:`Weighted`), those that
    are absent get the places that the others leave. Elsewhere they take nobody's.

    Parameters
    ----------
    weights
        Shape (n,), one non-negative weight for each client that is left; only :class:`Weighted` uses them.
    t
        The round, from 1; only :class:`Cyclic` uses it.
    lost
        How many other clients the run had before they were lost (``participation.on_lost_state: continue``), or had
        spent their privacy budgets.
    absent
        Positions of those that have not answered for long.

    Returns
    -------
    Sequence[int]
        Increasing positions within 0..n-1; with replacement a position may repeat.
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
    """Whether there is a number of places, so that who is drawn keeps somebody else out."""
    return isinstance(sampler, FixedSize | Fraction | Weighted)


def fraction_size(sampler: Fraction, n: int) -> int:
    """Return the number of clients that a fraction of ``n`` means, at least one."""
    return max(1, int(np.floor(sampler.fraction * n + 0.5)))


@dataclass
class SmallCohortWarning:
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
                "participation.sampler: %d %s are wanted, but %d of %d clients are lost or spent; from round %d on it "
                "is %d",
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
            "the weights by which the algorithm has clients drawn must be finite, not "
            f"negative and not all zero, but they are {weights.min():g} to {weights.max():g}; correct what it gives to "
            "sample(weights=)",
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
            f"participation.sampler.{key}: {wanted} given, but only {left + lost} clients can be drawn; lower it"
            + (", or sample with replacement (kind: weighted, replacement: true)" if key == "size" else "")
        )
    return min(wanted, left)


def _sorted(chosen: np.ndarray) -> list[int]:
    return sorted(int(position) for position in chosen)
