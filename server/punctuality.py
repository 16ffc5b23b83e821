"""Whether phases wait for a client that misses one deadline after the other (``participation.patience``)."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

ANY = ""
"""Stands for all phases together: a client that is away misses the deadlines of all of them."""

_CHANCES_SHARE = 0.05


@dataclass
class Punctuality:
    """How one client keeps deadlines.

    Misses are counted for all phases together, and for each: who is slow in one phase may be quick in another. A client
    is waited for again once it answers in time or comes back on a new connection: coming back speaks for it once, until
    it answers in time, as anybody can come back before every deadline. Otherwise it gets another chance now and then,
    for which at most a twentieth of the time is spent: it may long be well, and only slower than the others.

    Attributes
    ----------
    missed
        Deadlines missed in a row, by phase, and of :data:`ANY`; since the client came back, where that spoke for it.
    overlooked
        Phases that do not wait for the client; :data:`ANY`: none does.
    stream
        On which the client was seen last, by number.
    """

    missed: dict[str, int] = field(default_factory=dict)
    overlooked: set[str] = field(default_factory=set)
    stream: int = 0
    _trusted: set[str] = field(
        default_factory=set
    )  # where coming back spoke for it since its last answer in time
    _chance_from: float = 0.0

    def miss(self, phase: str, stream: int, patience: int | None, deadline: float) -> list[str]:
        """Note a deadline that was missed; return which phases do not wait for the client from now on.

        Parameters
        ----------
        phase
            Whose deadline it was.
        stream
            How often the client has come.
        patience
            How many it may miss in a row; ``None``: any number.
        deadline
            Seconds that were waited.
        """
        self.returned(stream)
        news = []
        for which in (ANY, phase):
            self.missed[which] = self.missed.get(which, 0) + 1
            if patience is not None and self.missed[which] >= patience and which not in self.overlooked:
                self.overlooked.add(which)
                news.append(which)
        self._chance_from = time.monotonic() + deadline / _CHANCES_SHARE
        return news

    def keep(self, phase: str) -> bool:
        """Note an answer in time; return whether the client was overlooked in this phase."""
        was = self._is_overlooked(phase)
        for which in (ANY, phase):
            self.missed.pop(which, None)
            self.overlooked.discard(which)
            self._trusted.discard(which)
        return was

    def returned(self, stream: int) -> bool:
        """Overlook the client no longer where it has come back and that speaks for it; return whether it does."""
        if stream == self.stream:
            return False
        self.stream = stream
        again = self.overlooked - self._trusted
        for which in again:
            self.missed[which] = 0  # kept: an answer in time must be noted
        self.overlooked -= again
        self._trusted |= again
        return bool(again)

    def awaited(self, phase: str) -> bool:
        """Whether a phase that begins now waits for the client."""
        return not self._is_overlooked(phase) or time.monotonic() >= self._chance_from

    def _is_overlooked(self, phase: str) -> bool:
        return ANY in self.overlooked or phase in self.overlooked
