"""Wall-clock time of a run as a sum of setup, rounds, evaluation, rest and pauses."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

import numpy as np

from fenchel.report.columns import Floats, column
from fenchel.report.resumption import epochs_of
from fenchel.report.run import Run


@dataclass(frozen=True)
class WallTime:
    """Seconds of a run by the server's clock, from the start of joining until the model was saved.

    The time of an unfinished run ends with its last recorded round.

    Attributes
    ----------
    setup
        Time before the first round, in which clients join and the algorithm is set up, and the time between each
        resumption and the next round or reconnection of clients. It begins with the first instruction if the start of
        the server process is unknown.
    rounds
        Time of all rounds.
    evaluation
        Time of evaluations after rounds.
    rest
        Time between rounds and after the last one: tables, waits for checkpoints, the algorithm's final phase.
    paused
        Time between the last round that was kept and the next resumption. No server ran, or its work was lost.
    """

    setup: float
    rounds: float
    evaluation: float
    rest: float
    paused: float

    @property
    def total(self) -> float:
        """Sum of all parts in seconds."""
        return math.fsum(getattr(self, field.name) for field in fields(self))

    def parts(self) -> dict[str, float]:
        """Return the seconds by label, with pauses only if there were any."""
        names = {"set-up": self.setup, "rounds": self.rounds, "evaluation": self.evaluation, "rest": self.rest}
        return names | ({"paused": self.paused} if self.paused else {})


def wall_of(run: Run) -> WallTime:
    """Return the parts of a run's wall-clock time, as far as recorded."""
    metrics, steady = run.metrics_table, run.steady
    took = float((run.summary or {}).get("seconds") or 0.0)  # duration in seconds of the last server process
    started, seconds, evaluation = (
        np.nan_to_num(column(metrics, name)) for name in ("started_unix", "seconds", "evaluation_s")
    )
    # The run has no round yet, or its table has no start times.
    if not metrics.num_rows or not started.all():
        known = float(seconds.sum()), float(evaluation.sum())
        return WallTime(max(took - sum(known), 0.0), *known, 0.0, 0.0)
    ended = started + seconds + evaluation
    begins = _begins(run, started, ended, took)
    setup = rest = paused = 0.0
    now, fresh = begins[0], True
    for start, end in zip(started, ended, strict=True):
        begun = begins[np.searchsorted(begins, start, side="right") - 1]
        if begun > now:
            paused += begun - now
            now, fresh = begun, True
        if fresh:
            setup += max(start - now, 0.0)
        else:
            rest += max(start - now, 0.0)
        now, fresh = max(now, end), False
    if begins[-1] > now:
        paused, now = paused + begins[-1] - now, begins[-1]
    if took and run.begun:
        rest += max(run.begun[-1] + took - now, 0.0)
    return WallTime(
        setup=float(setup + steady.seconds),
        rounds=float((seconds - steady.rounds).sum()),
        evaluation=float((evaluation - steady.evaluations).sum()),
        rest=float(rest),
        paused=float(paused),
    )


def _begins(run: Run, started: Floats, ended: Floats, took: float) -> Floats:
    """Return the start time of each server process, from the log, or the latest time that the tables allow."""
    calls = run.calls_table
    queued = column(calls, "queued_unix")
    first = float(np.nanmin([started[0], *queued[:1]]))
    resumed = _resumed_rounds(run)
    begins = list(run.begun)
    for place in resumed:
        before = ended[place - 1] if place else -math.inf
        if not any(before < begun <= started[place] for begun in begins):
            begins.append(float(started[place]))
    if not begins and took:
        begins = [float(ended[-1]) - took]  # a run without a resumption spent all unrecorded time in setup
    return np.array(sorted({*begins, *(() if begins and min(begins) <= first else (first,))}))


def _resumed_rounds(run: Run) -> list[int]:
    """Return the positions of the first rounds after restarts of the server."""
    calls = run.calls_table
    epochs, numbers = epochs_of(calls), column(calls, "round")
    rounds = column(run.metrics_table, "round")
    firsts = {float(numbers[epochs == epoch].min()) for epoch in np.unique(epochs[epochs > 0])}
    return [place for place, t in enumerate(rounds) if t in firsts]
