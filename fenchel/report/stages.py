"""Mean durations of the stages of calls, by client and phase."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fenchel.common.storage.call_columns import STAGES
from fenchel.report import columns


@dataclass(frozen=True)
class Stages:
    """Mean seconds of the answered calls of one client in one phase.

    Attributes
    ----------
    client, phase
        Client id and name of the phase.
    answered
        Number of answered calls.
    seconds
        Mean seconds of each stage, by its column in ``STAGES``; nan if any of the calls lacks the value.
    whole
        Mean seconds from queueing until the end of the request.
    """

    client: str
    phase: str
    answered: int
    seconds: dict[str, float]
    whole: float

    @property
    def remainder(self) -> float:
        """Mean seconds that no stage accounts for."""
        return self.whole - float(np.nansum(list(self.seconds.values())))


def stages_of(calls: pa.Table) -> list[Stages]:
    """Return the mean durations for each client and phase with an answered call, sorted by client and phase.

    Parameters
    ----------
    calls
        Rows of ``calls.parquet``.
    """
    if not calls.num_rows or "outcome" not in calls.column_names:
        return []
    calls = calls.filter(pc.is_in(calls["outcome"], pa.array(["counted", "confirmed"])))
    calls = calls.filter(np.isfinite(columns.column(calls, "total_s")))
    if not calls.num_rows:
        return []
    (clients, client), (phases, phase) = (columns.grouped(calls, key) for key in ("client", "phase"))
    pairs, pair = np.unique(client * len(phases) + phase, return_inverse=True)
    counts = np.bincount(pair)
    means = {name: np.bincount(pair, weights=columns.column(calls, name)) / counts for name, *_ in STAGES}
    wholes = np.bincount(pair, weights=columns.until_over(calls)) / counts
    found = [
        Stages(
            client=clients[number // len(phases)],
            phase=phases[number % len(phases)],
            answered=int(counts[k]),
            seconds={stage: float(values[k]) for stage, values in means.items()},
            whole=float(wholes[k]),
        )
        for k, number in enumerate(pairs)
    ]
    return sorted(found, key=lambda stages: (stages.client, stages.phase))
