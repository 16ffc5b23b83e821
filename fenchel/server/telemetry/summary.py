"""Outcome of a run."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Summary:
    """Outcome of a completed, failed or interrupted run; ``summary.json`` has the same fields.

    Attributes
    ----------
    run
        Id of the run: the name of its folder.
    completed
        True if all rounds were done, the privacy budget was spent, or an observer ended the run.
    rounds
        Number of the last completed round.
    seconds
        Wall-clock time in seconds of this server process's part of the run, including the wait for clients to join.
    reason
        Reason if the run failed, was interrupted, or ended as completed before its last round; otherwise empty.
    figures
        Figures of the last evaluation and, for a completed run, the algorithm's own for the final model.
    """

    run: str
    completed: bool
    rounds: int
    seconds: float
    reason: str
    figures: dict[str, float]
