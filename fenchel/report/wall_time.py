"""The whole wall-clock time of a run as an equation: set-up, rounds, evaluation, the rest, and pauses."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

import numpy as np

from fenchel.report.columns import Floats, column
from fenchel.report.resumption import epochs_of
from fenchel.report.run import Run


@dataclass(frozen=True)
class WallTime:
    """Seconds of a run by the server's clock, from when it began to wait for clients until the model was saved.

    Of a run that is not over, or was killed, until its last round that is recorded.

    Attributes
    ----------
    setup
        Before the first round: clients join, the algorithm is set up. After a resumption again, with the time until the
        clients were back. If nothing says when a resumed run began, from its first instruction on.
    rounds
        Of all rounds.
    evaluation
        After rounds.
    rest
        Between rounds and after the last one: tables, checkpoints that were waited for, how the algorithm finishes.
    paused
        Before each resumption, since the last round that was kept: nobody conducted the run, or it did what was lost.
    """

    setup: float
    rounds: float
    evaluation: float
    rest: float
    paused: float

    @property
    def total(self) -> float:
        """All of it."""
        return math.fsum(getattr(self, field.name) for field in fields(self))

    def parts(self) -> dict[str, float]:
        """Return the seconds by what people call them; pauses only where there was one."""
        names = {"set-up": self.setup, "rounds": self.rounds, "evaluation": self.evaluation, "rest": self.rest}
        return names | ({"paused": self.paused} if self.paused else {})


def wall_of(run: Run) -> WallTime:
    """Return where the whole time of a run went, as far as it is recorded."""
    metrics, steady = run.metrics_table, run.steady
    took = float((run.summary or {}).get("seconds") or 0.0)  # of the process that ended the run
    started, seconds, evaluation = (
        np.nan_to_num(column(metrics, name)) for name in ("started_unix", "seconds", "evaluation_s")
    )
    # No round yet, or a table that does not say when they began.
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
    """Return when each server process began, in order: by the log, or else as late as the tables allow."""
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
        begins = [float(ended[-1]) - took]  # never resumed: all that is not recorded is set-up
    return np.array(sorted({*begins, *(() if begins and min(begins) <= first else (first,))}))


def _resumed_rounds(run: Run) -> list[int]:
    """Return the places of the rounds that were the first after the server had been started again."""
    calls = run.calls_table
    epochs, numbers = epochs_of(calls), column(calls, "round")
    rounds = column(run.metrics_table, "round")
    firsts = {float(numbers[epochs == epoch].min()) for epoch in np.unique(epochs[epochs > 0])}
    return [place for place, t in enumerate(rounds) if t in firsts]
