"""Outcome of a run."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Summary:
    """Outcome of a run, also of one that failed; ``summary.json`` has the same fields."""

    run: str
    """Id of the run: the name of its folder."""
    completed: bool
    """True if all rounds were done, or the privacy budget was spent."""
    rounds: int
    """Rounds done."""
    seconds: float
    """Wall-clock time of the rounds that this process did."""
    reason: str
    """Why the run stopped early, or was complete before its last round; otherwise empty."""
    figures: dict[str, float]
    """The last evaluation and, of a completed run, the algorithm's own figures of the final model."""
