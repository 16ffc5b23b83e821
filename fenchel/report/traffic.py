"""Which bytes went where: by phase or client, direction and layer."""

from __future__ import annotations

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
"""The columns of each layer, to clients and from clients; each layer contains the one before it."""


@dataclass(frozen=True)
class TrafficRow:
    """The bytes of one phase, or of one client; evaluation is a phase, too."""

    name: str  # of the phase or client
    calls: int  # number of instructions
    down: dict[Layer, float]  # down, up: bytes to clients and from clients, by layer; nan where a layer was not counted
    up: dict[Layer, float]


def carried_by(calls: pa.Table, key: str) -> list[TrafficRow]:
    """Return the bytes of the calls for each value of a text column, in order of their first calls.

    calls: rows of ``calls.parquet``.
    """
    if not calls.num_rows or key not in calls.column_names:
        return []
    names, first, code = np.unique(
        [str(name) for name in calls[key].to_pylist()], return_index=True, return_inverse=True
    )
    numbers = np.bincount(code, minlength=names.size)
    sums = {
        layer: tuple(_sums(columns.column(calls, column), code, names.size) for column in pair)
        for layer, pair in LAYERS.items()
    }
    return [
        TrafficRow(
            name=str(names[k]),
            calls=int(numbers[k]),
            down={layer: float(pair[0][k]) for layer, pair in sums.items()},
            up={layer: float(pair[1][k]) for layer, pair in sums.items()},
        )
        for k in np.argsort(first)
    ]


def _sums(values: Floats, code: NDArray[np.int64], size: int) -> Floats:
    """Return the sum of each group; a call without an answer (nan) is counted with the client's next one."""
    known = np.isfinite(values)
    sums = np.bincount(code[known], weights=values[known], minlength=size)
    return np.where(np.bincount(code[known], minlength=size) > 0, sums, np.nan)
