"""The failure detector of a client, which decides whether phases wait for the client and cohorts include it.

Its threshold is ``participation.patience``. The decision to wait depends on the clock and on the deadlines that the
client has missed lately. Draws must be repeatable, so they depend on the recorded rounds alone, and never on open
connections. An absence that is shorter than the deadlines changes no draw, and a resumed server draws the same
cohorts.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, field

log = logging.getLogger("fenchel.server")

ALL_PHASES = ""
"""Key for all phases together, because a disconnected client misses the deadlines of all phases."""
CHRONIC = "*"
"""Key for a client that repeatedly misses deadlines, in any phase, with replies in time in between."""

_CHANCES_SHARE = 0.05
_PAUSE_SHARE = 0.25
_CHRONIC_FACTOR = 3  # ratio of all missed deadlines to the patience at which a client counts as chronically late


@dataclass(frozen=True, slots=True)
class Absence:
    """Consecutive rounds in which a client received requests and answered none in time.

    Attributes
    ----------
    missed
        Number of rounds missed.
    since
        First round missed.
    back
        First round in which the client may be drawn again.
    """

    missed: int = 0
    since: int = 0
    back: int = 0

    def after(self, t: int, patience: int | None) -> Absence:
        """Return the absence after one more missed round ``t``.

        After ``patience`` missed rounds, the client is left out for a quarter of its absence so far, at least one
        round, and then gets a trial. So a client that never returns takes the place of another ever more rarely. A
        client that returns waits for at most a quarter of its absence, or one round.

        Parameters
        ----------
        t
            Number of the round.
        patience
            ``participation.patience``; ``None``: no client is left out.
        """
        missed, since = self.missed + 1, self.since if self.missed else t
        if patience is None or missed < patience:
            return Absence(missed, since)
        return Absence(missed, since, t + 1 + max(round(_PAUSE_SHARE * (t - since)), 1))


@dataclass
class Availability:
    """Failure detector of one client.

    Missed deadlines are counted per phase and over all phases, because a client that is slow in one phase may be fast
    in another. A client with ``patience`` misses in a row is suspected, and phases do not wait for it. It is trusted
    again after a reply in time or after a reconnect. A reconnect counts once until the next reply in time, because a
    client could otherwise reconnect before every deadline. At times, a phase waits for a suspected client as a trial,
    because the client may have recovered and only be slower than the others. Trials take at most a twentieth of the
    time.

    A client that stalls now and then never misses many deadlines in a row, but costs a deadline each time. So all
    misses are counted, too, until the client has gone without a miss for twenty times its last deadline. At three times
    the patience it is suspected as :data:`CHRONIC`, and only a trial can end that.

    Attributes
    ----------
    client
        Id of the client.
    missed
        Number of deadlines missed in a row, by phase and under :data:`ALL_PHASES`. A reconnect that counts resets it to
        zero. Under :data:`CHRONIC`: number of all deadlines missed, if the client is suspected as chronically late.
    suspected
        Phases that do not wait for the client. With :data:`ALL_PHASES` or :data:`CHRONIC`, no phase does.
    absence
        Rounds missed lately, on which draws depend. Checkpoints contain it.
    stream
        Number of the stream on which the client was last seen.
    """

    client: str = ""
    missed: dict[str, int] = field(default_factory=dict)
    suspected: set[str] = field(default_factory=set)
    absence: Absence = field(default_factory=Absence)
    stream: int = 0
    # phases in which a reconnect has ended the suspicion since the last reply in time
    _trusted: set[str] = field(default_factory=set)
    _chance_from: float = 0.0
    _spell: float = 0.0  # time in seconds between the last miss and the next trial
    _total_misses: int = 0  # number of deadlines missed since the last long period without a miss

    def record_miss(self, phase: str, stream: int, patience: int | None, deadline: float) -> list[str]:
        """Record a missed deadline, and return the keys newly added to ``suspected`` for misses in a row.

        Possible keys are the phase and :data:`ALL_PHASES`. A new suspicion as :data:`CHRONIC` is logged here instead.

        Parameters
        ----------
        phase
            Name of the phase.
        stream
            Number of the client's stream.
        patience
            Misses in a row at which the client is suspected; ``None``: never.
        deadline
            Length of the deadline in seconds.
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
                    "client %s misses deadlines repeatedly: %d so far (participation.patience). It still receives "
                    "requests, but the run no longer waits for its replies, and gives it another chance after %g "
                    "s",
                    self.client,
                    self._total_misses,
                    self._spell,
                )
        return news

    def record_reply(self, phase: str) -> bool:
        """Record a reply in time. Return True if it ends the suspicion, so that the phase waits again."""
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
        """Record the number of the client's stream, and return True if a reconnect has ended a suspicion."""
        if stream == self.stream:
            return False
        self.stream = stream
        again = self.suspected - self._trusted - {CHRONIC}
        for which in again:
            self.missed[which] = 0  # keep the key, so that the next reply in time is recorded
        self.suspected -= again
        self._trusted |= again
        return bool(again)

    def answered_round(self) -> None:
        """Reset the absence after a round in which the client answered, even if with a failure."""
        self.absence = Absence()

    def missed_round(self, t: int, patience: int | None) -> bool:
        """Record a round in which the client did not answer. Return True if the count has just reached ``patience``.

        Parameters
        ----------
        t
            Number of the round.
        patience
            Missed rounds in a row at which the client is left out of draws; ``None``: never.
        """
        self.absence = self.absence.after(t, patience)
        return self.absence.missed == patience

    def drawn(self, t: int) -> bool:
        """Return True if the client is drawn like others in round ``t``, False if it gets only places left over."""
        return t >= self.absence.back

    def awaited(self, phase: str) -> bool:
        """Return True if a phase that begins now waits for the client."""
        return not self._is_suspected(phase) or time.monotonic() >= self._chance_from

    def _is_suspected(self, phase: str) -> bool:
        return not self.suspected.isdisjoint({ALL_PHASES, CHRONIC, phase})

    def _has_mended(self, now: float) -> bool:
        """Return True if the client has gone without a miss for long enough, counted from its trial if chronic."""
        return now >= self._chance_from + (self._spell if CHRONIC in self.suspected else 0.0)
