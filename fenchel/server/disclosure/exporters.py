"""Telemetry exporters in the disclosure record: channels through which parties other than clients can watch a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

ExporterName: TypeAlias = Literal["dashboard", "metrics", "traces", "tracker"]

_EXPORTERS: Mapping[ExporterName, tuple[str, str]] = {
    "dashboard": (
        "anyone who can reach the address: there is no password and no encryption",
        "the run's id and settings, figures, times, bytes, names of clients and their states",
    ),
    "metrics": (
        "anyone who can reach the address: there is no password and no encryption",
        "the run's id and algorithm, figures, times, bytes, numbers of clients by state; no client's name",
    ),
    "traces": (
        "the operator of the collector, and the network between unless the address begins with https",
        "the run's id and algorithm, phases, rounds, times, names of clients that trace, too",
    ),
    "tracker": (
        "users of the tracking server, and the network between unless the address begins with https",
        "the run's id and settings, figures, times, bytes; no client's name",
    ),
}
"""Readers and contents of each exporter of the server (docs/monitoring.md)."""


@dataclass
class ExporterEntry:
    """One telemetry exporter of the server. Exporters never show models or data.

    Attributes
    ----------
    name
        Name of the exporter.
    address
        Address at which it is served, or to which it sends.
    """

    name: ExporterName
    address: str

    @classmethod
    def recorded(cls, entry: Mapping[str, str]) -> ExporterEntry:
        """Return the exporter that an entry of a disclosure record describes. Raise ``KeyError`` for an unknown name.

        Records of earlier versions call the dashboard ``live page``.
        """
        name = entry["exporter"].replace("live page", "dashboard")
        known: dict[str, ExporterName] = {each: each for each in _EXPORTERS}
        return cls(known[name], entry["address"])

    def to_json(self) -> dict[str, str]:
        """Return the entry of the disclosure record."""
        readers, shows = _EXPORTERS[self.name]
        return {"exporter": self.name, "address": self.address, "readers": readers, "shows": shows}
