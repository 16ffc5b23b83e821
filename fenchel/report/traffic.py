"""Traffic by phase or client, direction and layer."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pyarrow as pa

from fenchel.report import columns
from fenchel.report.columns import Floats

Layer = Literal["payload", "wire", "socket"]
LAYERS: dict[Layer, tuple[str, str]] = {
    "payload": ("bytes_down", "bytes_up"),
    "wire": ("wire_down", "wire_up"),
    "socket": ("socket_down", "socket_up"),
}
"""Columns of each layer, to and from clients. Each layer includes the one before it."""


@dataclass(frozen=True)
class TrafficRow:
    """Traffic of one phase, which may be the evaluation, or of one client.

    Attributes
    ----------
    name
        Name of the phase or client.
    calls
        Number of instructions.
    down, up
        Bytes to and from clients by layer; nan if a layer was not counted.
    """

    name: str
    calls: int
    down: dict[Layer, float]
    up: dict[Layer, float]


def bytes_by_round(metrics: pa.Table) -> dict[Layer, dict[str, Floats]]:
    """Return the bytes of each round, without evaluation, by layer and direction (``down``, ``up``)."""
    return {
        layer: {way: columns.column(metrics, name) for way, name in zip(("down", "up"), pair, strict=True)}
        for layer, pair in LAYERS.items()
    }


def bytes_by_client(calls: pa.Table) -> tuple[list[str], dict[Layer, dict[str, Floats]]]:
    """Return the clients in descending wire bytes, and their bytes by layer and direction, evaluation included."""
    clients = carried_by(calls, "client")
    clients.sort(key=lambda one: -(one.down["wire"] + one.up["wire"]))
    layers = {
        layer: {
            "down": np.array([one.down[layer] for one in clients], np.float64),
            "up": np.array([one.up[layer] for one in clients], np.float64),
        }
        for layer in LAYERS
    }
    return [one.name for one in clients], layers


def totals(metrics: pa.Table) -> dict[str, float]:
    """Return the bytes of all rounds, without evaluation, by layer and direction, such as ``wire_down``.

    Socket bytes are nan if any round lacks them, because a total that lacks rounds would be misleading.
    """
    return {
        f"{layer}_{way}": float(values.sum() if layer == "socket" else np.nansum(values)) if values.size else math.nan
        for layer, ways in bytes_by_round(metrics).items()
        for way, values in ways.items()
    }


def carried_by(calls: pa.Table, key: str) -> list[TrafficRow]:
    """Return the traffic of calls by the values of a text column, in the order of their first calls.

    Parameters
    ----------
    calls
        Rows of ``calls.parquet``.
    """
    if not calls.num_rows:
        return []
    names, group = columns.grouped(calls, key)
    numbers = np.bincount(group)
    # Socket bytes of a call without a reply are nan, and are counted in the client's next call with one.
    sums = {
        layer: tuple(columns.sums_by(columns.column(calls, column), group, len(names)) for column in pair)
        for layer, pair in LAYERS.items()
    }
    return [
        TrafficRow(
            name=name,
            calls=int(numbers[k]),
            down={layer: float(down[k]) for layer, (down, _) in sums.items()},
            up={layer: float(up[k]) for layer, (_, up) in sums.items()},
        )
        for k, name in enumerate(names)
    ]
