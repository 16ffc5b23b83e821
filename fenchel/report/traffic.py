"""Traffic by phase or client, direction and layer."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

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
class Traffic:
    """Traffic of n phases, one of which may be the evaluation, or of n clients.

    Attributes
    ----------
    names
        Names of the phases or clients.
    calls
        Numbers of instructions, shape (n,), int64.
    layers
        Bytes by layer and direction (``down``, ``up``), shape (n,) each; nan if a layer was not counted.
    """

    names: list[str]
    calls: NDArray[np.int64]
    layers: dict[Layer, dict[str, Floats]]


def by_layer(table: pa.Table) -> dict[Layer, dict[str, Floats]]:
    """Return the bytes of each row by layer and direction (``down``, ``up``). Rows are rounds or calls."""
    return {
        layer: {way: columns.column(table, name) for way, name in zip(("down", "up"), pair, strict=True)}
        for layer, pair in LAYERS.items()
    }


def totals(metrics: pa.Table) -> dict[str, float]:
    """Return the bytes of all rounds, without evaluation, by layer and direction, such as ``wire_down``.

    Socket bytes are nan if any round lacks them, because a total that lacks rounds would be misleading.
    """
    return {
        f"{layer}_{way}": float(np.nansum(values) if layer != "socket" else values.sum() if values.size else math.nan)
        for layer, ways in by_layer(metrics).items()
        for way, values in ways.items()
    }


def carried_by(calls: pa.Table, key: str) -> Traffic:
    """Return the traffic of calls by the values of a text column, in the order of their first calls.

    Parameters
    ----------
    calls
        Rows of ``calls.parquet``.
    """
    names, group = columns.grouped(calls, key)
    # Socket bytes of a call without a reply are nan, and are counted in the client's next call with one.
    layers = {
        layer: {way: columns.sums_by(values, group, len(names)) for way, values in ways.items()}
        for layer, ways in by_layer(calls).items()
    }
    return Traffic(names, np.bincount(group), layers)


def by_client(calls: pa.Table) -> Traffic:
    """Return the traffic of the clients in descending wire bytes, evaluation included."""
    found = carried_by(calls, "client")
    order = np.argsort(-sum(found.layers["wire"].values()), kind="stable")
    layers = {layer: {way: values[order] for way, values in ways.items()} for layer, ways in found.layers.items()}
    return Traffic([found.names[k] for k in order], found.calls[order], layers)
