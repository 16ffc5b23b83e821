"""Where the server shows how a run goes on, to others than its clients."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

OutletName: TypeAlias = Literal["live page", "metrics", "traces", "tracker"]

_OUTLETS: Mapping[OutletName, tuple[str, str]] = {
    "live page": (
        "whoever reaches the address: there is no password and no encryption",
        "the run's id and settings, figures, times, bytes, names of clients and how they stand",
    ),
    "metrics": (
        "whoever reaches the address: there is no password and no encryption",
        "the run's id and algorithm, figures, times, bytes, how many clients stand how; no client's name",
    ),
    "traces": (
        "whoever runs the collector, and the network between unless the address begins with https",
        "the run's id and algorithm, phases, rounds, times, names of clients that trace, too",
    ),
    "tracker": (
        "users of the tracking server, and the network between unless the address begins with https",
        "the run's id and settings, figures, times, bytes; no client's name",
    ),
}
"""Who can read an exporter of the server, and what it shows (docs/monitoring.md)."""


@dataclass
class Exporter:
    """Where the server shows how a run goes on, to others than its clients; never a model, and never data.

    Attributes
    ----------
    name
        Which one.
    address
        Where it is served, or sent to.
    """

    name: OutletName
    address: str

    def to_json(self) -> dict[str, str]:
        """Return its line in the account."""
        readers, shows = _OUTLETS[self.name]
        return {"exporter": self.name, "address": self.address, "readers": readers, "shows": shows}
