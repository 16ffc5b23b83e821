"""Who has not answered for so long that cohorts are drawn without it.

A client that is away for good would otherwise be drawn as often as the others, and each time take the place
of one that is there. Only what the run has recorded of its rounds counts, never who is connected: an absence
that is shorter than the deadlines changes no draw, and a server that is resumed draws as it would have drawn.
"""

from __future__ import annotations

from dataclasses import dataclass

_PAUSE_SHARE = 0.25


@dataclass(frozen=True, slots=True)
class Attendance:
    """How a client has answered lately."""

    missed: int = 0  # rounds in a row in which it was asked, and no answer of it counted
    since: int = 0  # the first of them
    back: int = 0  # the round from which on it may be drawn again

    def after(self, t: int, patience: int | None) -> Attendance:
        """Return what it is after round ``t``, in which no answer counted either.

        From ``patience`` such rounds on the client is left out for a quarter of the time that it has been
        missing, and at least for a round; then it has another chance. So it takes places for ever fewer
        rounds, and once it is there again it has waited for a quarter of its absence at most until it may be
        drawn.

        patience: ``participation.patience``; ``None``: nobody is left out.
        """
        missed, since = self.missed + 1, self.since if self.missed else t
        if patience is None or missed < patience:
            return Attendance(missed, since)
        return Attendance(missed, since, t + 1 + max(round(_PAUSE_SHARE * (t - since)), 1))

    def is_out(self, t: int) -> bool:
        """Whether the cohorts of round ``t`` are drawn without the client, as far as the others suffice."""
        return t < self.back
