"""Base of algorithms whose problem is fixed by the clients at the start, so that late joiners are not supported."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fenchel.algorithms.server_half import Algorithm, ServerContext
from fenchel.common.arrays import Vector
from fenchel.fleet.cohort import Cohort
from fenchel.fleet.quorum import nobody_left


class FixedFleet(Algorithm):
    """Server half whose problem is restricted to the remaining clients when some are lost."""

    @dataclass
    class State(Algorithm.State):
        """Global model, and lost clients.

        Attributes
        ----------
        lost
            Mask of the clients that have left the problem, shape (N,), in the order of client ids.
        """

        lost: NDArray[np.bool_]

    state: Any

    def __init__(self, context: ServerContext) -> None:
        super().__init__(context)
        self.place = {client: place for place, client in enumerate(self.fleet.members)}

    def initial_state(self, model: Vector) -> Any:
        """Return the state with the fields of :meth:`beginning`."""
        return self.State(**self.beginning(model))

    def beginning(self, model: Vector) -> dict[str, Any]:
        """Return the fields of ``State`` before round 1. A subclass adds those of its own ``State``."""
        return {"model": model, "lost": np.zeros(len(self.fleet.members), np.bool_)}

    async def summed(
        self, cohort: Cohort, phase: str, weights: Mapping[str, float], **request: Any
    ) -> tuple[WeightedSums, Cohort]:
        """Send a request; return the replies summed with the clients' weights, and the clients that answered."""
        sums = WeightedSums()
        answered = await cohort.visit(phase, lambda client, reply: sums.add(weights[client], reply), **request)
        return sums, answered

    @property
    def clients(self) -> int:
        """Number of remaining clients."""
        return int(np.count_nonzero(~self.state.lost))

    def lost(self) -> NDArray[np.bool_]:
        """Return the mask of lost clients, shape (N,), in the order of client ids."""
        return np.array([member.lost is not None for member in self.fleet.members.values()])

    def newly_lost(self) -> list[str] | None:
        """Update the mask of lost clients; return the ids of newly lost ones, or ``None`` if there are none.

        Raises
        ------
        LostStateError
            If a client is lost, and ``participation.on_lost_state`` is ``stop``.
        RunStoppedError
            If all clients are lost.
        """
        self.fleet.check_lost()
        before, lost = self.state.lost, self.lost()
        if np.array_equal(before, lost):
            return None
        if lost.all():
            raise nobody_left(self.fleet.round, lost.size)
        self.state.lost = lost
        return [client for client, place in self.place.items() if lost[place] and not before[place]]


class WeightedSums:
    """Weighted sums of the clients' values, in float64, added in the order of the calls of :meth:`add`."""

    def __init__(self) -> None:
        self._totals: dict[str, Any] = {}
        self.weight = 0.0  # sum of the clients' weights

    def add(self, weight: float, values: Mapping[str, Any]) -> None:
        """Add a client's values, multiplied by its weight."""
        self.weight += weight
        for name, value in values.items():
            part = weight * np.asarray(value, np.float64)
            if name in self._totals:
                self._totals[name] += part
            else:
                self._totals[name] = part

    def sum(self, name: str) -> NDArray[np.float64]:
        """Return the weighted sum of a value."""
        total: NDArray[np.float64] = self._totals[name]
        return total

    def mean(self, name: str) -> NDArray[np.float64]:
        """Return the weighted mean of a value."""
        mean: NDArray[np.float64] = self.sum(name) / self.weight
        return mean
