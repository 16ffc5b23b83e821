"""What algorithms share in whose problem each client has a weight, so that nobody can join once the run has begun."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fenchel.algorithms.server_half import Algorithm, ServerContext
from fenchel.fleet.quorum import nobody_left


class FixedFleet(Algorithm):
    """An algorithm whose problem becomes that of the clients that are left, once some are lost."""

    @dataclass
    class State(Algorithm.State):
        """The global model, and which clients are out of the run.

        Attributes
        ----------
        lost
            Who has no part in any of this any more, shape (N,), in the order of client ids.
        """

        lost: NDArray[np.bool_]

    state: Any

    def __init__(self, context: ServerContext) -> None:
        super().__init__(context)
        self.place = {client: place for place, client in enumerate(self.fleet.members)}

    @property
    def clients(self) -> int:
        """How many clients are left."""
        return int(np.count_nonzero(~self.state.lost))

    def lost(self) -> NDArray[np.bool_]:
        """Return which clients are lost by now, shape (N,)."""
        return np.array([member.lost is not None for member in self.fleet.members.values()])

    def newly_lost(self) -> list[str] | None:
        """Note which clients are lost; return the ids of the new ones, or ``None`` if nothing has changed."""
        self.fleet.check_lost()
        before, lost = self.state.lost, self.lost()
        if np.array_equal(before, lost):
            return None
        if lost.all():
            raise nobody_left(self.fleet.round, lost.size)
        self.state.lost = lost
        return [client for client, place in self.place.items() if lost[place] and not before[place]]


class WeightedSums:
    """Sums over clients of what they sent, each times its weight, in float64 and in the order of client ids."""

    def __init__(self) -> None:
        self._totals: dict[str, Any] = {}
        self.weight = 0.0  # sum of the weights

    def add(self, weight: float, values: Mapping[str, Any]) -> None:
        """Add what a client sent."""
        self.weight += weight
        for name, value in values.items():
            part = weight * np.asarray(value, np.float64)
            if name in self._totals:
                self._totals[name] += part
            else:
                self._totals[name] = part

    def sum(self, name: str) -> NDArray[np.float64]:
        """Return the weighted sum of what was sent under a name."""
        total: NDArray[np.float64] = self._totals[name]
        return total

    def mean(self, name: str) -> NDArray[np.float64]:
        """Return that sum over the sum of the weights."""
        mean: NDArray[np.float64] = self.sum(name) / self.weight
        return mean
