"""Which bytes went where: by phase or client, direction and layer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import pyarrow as pa

from fenchel.report import columns

Layer = Literal["payload", "wire", "socket"]
LAYERS: dict[Layer, tuple[str, str]] = {
    "payload": ("bytes_down", "bytes_up"),
    "wire": ("wire_down", "wire_up"),
    "socket": ("socket_down", "socket_up"),
}
"""The columns of each layer, to clients and from clients; each layer contains the one before it."""


@dataclass(frozen=True)
class TrafficRow:
    """The bytes of one phase, or of one client; evaluation is a phase, too.

    Attributes
    ----------
    name
        Of the phase or client.
    calls
        Number of instructions.
    down, up
        Bytes to clients and from clients, by layer; nan where a layer was not counted.
    """

    name: str
    calls: int
    down: dict[Layer, float]
    up: dict[Layer, float]


def carried_by(calls: pa.Table, key: str) -> list[TrafficRow]:
    """Return the bytes of the calls for each value of a text column, in order of their first calls.

    Parameters
    ----------
    calls
        Rows of ``calls.parquet``.
    """
    if not calls.num_rows or key not in calls.column_names:
        return []
    names, group = columns.grouped(calls, key)
    numbers = np.bincount(group)
    # A call without an answer (nan) is counted with the client's next one.
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
