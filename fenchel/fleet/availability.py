"""The failure detector of a client: whether phases wait for it, and whether it is drawn (``participation.patience``).

Phases wait by the clock: what counts is deadlines that were missed just now. Draws are repeatable: what counts is
only what the run has recorded of its rounds, never who is connected. So an absence that is shorter than the deadlines
changes no draw, and a server that is resumed draws as it would have drawn.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, field

log = logging.getLogger("fenchel.server")

ALL_PHASES = ""
"""Stands for all phases together: a client that is away misses the deadlines of all of them."""
CHRONIC = "*"
"""Stands for all phases of a client that misses deadlines again and again, with answers in time in between."""

_CHANCES_SHARE = 0.05
_PAUSE_SHARE = 0.25
_CHRONIC_FACTOR = 3  # times the patience


@dataclass(frozen=True, slots=True)
class Absence:
    """Rounds in a row in which a client was asked, and no answer of it counted.

    Attributes
    ----------
    missed
        How many.
    since
        The first of them.
    back
        The round from which on it may be drawn again.
    """

    missed: int = 0
    since: int = 0
    back: int = 0

    def after(self, t: int, patience: int | None) -> Absence:
        """Return the absence after one more missed round ``t``.

        From ``patience`` such rounds on the client is left out for a quarter of the time that it has been
        missing, and at least for a round; then it has another chance. So a client that is away for good takes the
        place of another for ever fewer rounds, and one that is there again has waited for a quarter of its absence at
        most until it may be drawn.

        Parameters
        ----------
        patience
            ``participation.patience``; ``None``: no client is left out.
        """
        missed, since = self.missed + 1, self.since if self.missed else t
        if patience is None or missed < patience:
            return Absence(missed, since)
        return Absence(missed, since, t + 1 + max(round(_PAUSE_SHARE * (t - since)), 1))


@dataclass
class Availability:
    """How one client keeps deadlines.

    Misses are counted for all phases together, and for each: who is slow in one phase may be quick in
    another. A client is waited for again once it answers in time or comes back on a new connection: coming
    back speaks for it once, until it answers in time, as anybody can come back before every deadline.
    Otherwise it gets another chance now and then, for which at most a twentieth of the time is spent: it may
    long be well, and only slower than the others.

    Who stalls now and then never misses many in a row, and would cost a deadline each time. So all misses are
    counted, too, until the client has been waited for, without one, for twenty times its last deadline. After
    three times the patience nothing but another chance speaks for it any more.

    Attributes
    ----------
    client
        Its id.
    missed
        Deadlines missed in a row, by phase, and of :data:`ALL_PHASES`; since the client came back, where that spoke for
        it. Under :data:`CHRONIC`, while it is suspected for that, all of them.
    suspected
        Phases that do not wait for the client; :data:`ALL_PHASES`, :data:`CHRONIC`: none does.
    absence
        The rounds that it has missed lately, from which draws follow; kept in checkpoints.
    stream
        On which the client was seen last, by number.
    """

    client: str = ""
    missed: dict[str, int] = field(default_factory=dict)
    suspected: set[str] = field(default_factory=set)
    absence: Absence = field(default_factory=Absence)
    stream: int = 0
    _trusted: set[str] = field(default_factory=set)  # where coming back spoke for it since its last answer in time
    _chance_from: float = 0.0
    _spell: float = 0.0  # seconds from the last miss until then
    _total_misses: int = 0  # deadlines missed since it was last waited for so long without one

    def record_miss(self, phase: str, stream: int, patience: int | None, deadline: float) -> list[str]:
        """Note a deadline that was missed; return which phases do not wait from now on, for misses in a row.

        Parameters
        ----------
        patience
            How many it may miss in a row; ``None``: any number.
        deadline
            Seconds that were waited.
        """
        self.returned(stream)
        news = []
        for which in (ALL_PHASES, phase):
            self.missed[which] = self.missed.get(which, 0) + 1
            if patience is not None and self.missed[which] >= patience and which not in self.suspected:
                self.suspected.add(which)
                news.append(which)
        now = time.monotonic()
        if self._has_mended(now - deadline):
            self._total_misses = 0
            self._trust_again(CHRONIC)
        self._total_misses += 1
        self._spell = deadline / _CHANCES_SHARE
        self._chance_from = now + self._spell
        if patience is not None and self._total_misses >= _CHRONIC_FACTOR * patience:
            self.missed[CHRONIC] = self._total_misses
            if CHRONIC not in self.suspected:
                self.suspected.add(CHRONIC)
                log.warning(
                    "client %s misses deadlines again and again: %d so far (participation.patience). It is still "
                    "asked, but the run no longer waits for it; it has another chance after %g s",
                    self.client,
                    self._total_misses,
                    self._spell,
                )
        return news

    def record_reply(self, phase: str) -> bool:
        """Note an answer in time; return whether the client was suspected in this phase, and is not any more."""
        was = self._is_suspected(phase)
        often = CHRONIC in self.suspected and not self._has_mended(time.monotonic())
        for which in (ALL_PHASES, phase) if often else (ALL_PHASES, phase, CHRONIC):
            self._trust_again(which)
        return was and not often

    def _trust_again(self, which: str) -> None:
        self.missed.pop(which, None)
        self.suspected.discard(which)
        self._trusted.discard(which)

    def returned(self, stream: int) -> bool:
        """Suspect the client no longer where it has come back and that speaks for it; return whether it does."""
        if stream == self.stream:
            return False
        self.stream = stream
        again = self.suspected - self._trusted - {CHRONIC}
        for which in again:
            self.missed[which] = 0  # kept: an answer in time must be noted
        self.suspected -= again
        self._trusted |= again
        return bool(again)

    def answered_round(self) -> None:
        """Note a round in which an answer of the client counted, or showed that it is there."""
        self.absence = Absence()

    def missed_round(self, t: int, patience: int | None) -> bool:
        """Note a round in which the client was asked and did not answer; return whether its patience has just run out.

        Parameters
        ----------
        patience
            Rounds that it may miss in a row; ``None``: any number.
        """
        self.absence = self.absence.after(t, patience)
        return self.absence.missed == patience

    def drawn(self, t: int) -> bool:
        """Return whether cohorts of round ``t`` are drawn with the client; without it only as far as others suffice."""
        return t >= self.absence.back

    def awaited(self, phase: str) -> bool:
        """Whether a phase that begins now waits for the client."""
        return not self._is_suspected(phase) or time.monotonic() >= self._chance_from

    def _is_suspected(self, phase: str) -> bool:
        return not self.suspected.isdisjoint({ALL_PHASES, CHRONIC, phase})

    def _has_mended(self, now: float) -> bool:
        """Return whether it was waited for long enough without a miss; if suspected, only from its chance on."""
        return now >= self._chance_from + (self._spell if CHRONIC in self.suspected else 0.0)
