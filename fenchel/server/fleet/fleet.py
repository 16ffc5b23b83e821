"""All clients of a run, as an algorithm addresses them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from fenchel.common.randomness import generator
from fenchel.common.settings.participation import AllClients, Sampler
from fenchel.server.fleet.client_record import ClientRecord
from fenchel.server.fleet.cohort import Cohort
from fenchel.server.fleet.quorum import nobody_left
from fenchel.server.fleet.roster import Roster
from fenchel.server.fleet.sampling import Shortage, draw


@dataclass(kw_only=True)
class Fleet(Roster):
    """The clients of a run, and the cohorts of them."""

    _shortage: Shortage = field(default_factory=Shortage)

    def admit(self, late_joiner: ClientRecord) -> Cohort:
        """Take a client in, between two rounds; return the cohort of it alone.

        The run does not wait for it beyond a deadline: it may come again.
        """
        self._renew([*self.members.values(), late_joiner])
        return Cohort(self, (late_joiner.name,), waits=False)

    def dismiss(self, member: ClientRecord) -> None:
        """Take a client out again that :meth:`admit` took in, before it was told anything."""
        self._renew([other for other in self.members.values() if other is not member])

    def _renew(self, members: Iterable[ClientRecord]) -> None:
        # In place, as the coordinator refers to them, too.
        ordered = sorted(members, key=lambda member: member.name)
        self.members.clear()
        for index, member in enumerate(ordered):
            member.index = index
            self.members[member.name] = member

    def all(self) -> Cohort:
        """Return everybody."""
        return Cohort(self, tuple(member.name for member in self.present))

    def sample(
        self, sampler: Sampler | None = None, *, weights: Mapping[str, float] | None = None, draw_name: str = "cohort"
    ) -> Cohort:
        """Draw a cohort for this round.

        Parameters
        ----------
        sampler
            How; default ``participation.sampler``.
        weights
            Weight of each client, for a weighted sampler; default: its number of samples.
        draw_name
            Tells several draws of one round apart.
        """
        present = self.present
        if not present:
            raise nobody_left(self.round, len(self.members), self.exhausted())
        sampler = sampler or self.participation.sampler
        if isinstance(sampler, AllClients):
            return self.all()
        if weights is None:
            values = [float(member.shard.samples) if member.shard else 0.0 for member in present]
        else:
            values = [weights[member.name] for member in present]
        random = generator(self.seed, "server", self.round, draw_name)
        lost = len(self.members) - len(present)
        absent = [i for i, member in enumerate(present) if not member.availability.drawn(self.round)]
        drawn = draw(sampler, np.array(values), self.round, random, lost=lost, absent=absent)
        self._shortage.tell(sampler, len(present), lost, self.round)
        return Cohort(self, tuple(present[i].name for i in drawn))
