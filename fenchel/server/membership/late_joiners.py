"""Clients that join after the run has begun, and wait for the border of the next round.

Between two rounds no question is open, so nobody's work is disturbed when the fleet grows there. But
everybody waits for one that has to be asked first: where that came to nothing, it must wait in turn.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field, fields

from fenchel.algorithms.server_half import Algorithm
from fenchel.common.errors import JoinRefusedError, SettingsError
from fenchel.common.settings.run import RunSettings
from fenchel.fleet.client_record import EPOCH_BITS, ClientRecord

_SHARE = 0.05  # of the time, that the attempts to take one client in may take at most


@dataclass
class _LateJoiner:
    """A client that is not in the fleet yet.

    Attributes
    ----------
    member
        What will be the fleet's record of it.
    streams
        How many of its streams wait; an older one may seem to be open for a while.
    called
        Set when it is in the fleet, or the run is over.
    """

    member: ClientRecord
    streams: int = 0
    called: asyncio.Event = field(default_factory=asyncio.Event)


class LateJoiners:
    """Those who wait to be taken into the fleet.

    Parameters
    ----------
    epoch
        How often the run has been resumed: where the numbers of their instructions begin.
    """

    def __init__(self, epoch: int) -> None:
        self._first_sequence = (epoch << EPOCH_BITS) + 1
        self._waiting: dict[str, _LateJoiner] = {}
        self._turned_away: dict[str, tuple[bytes | None, str]] = {}
        self._next_sequences: dict[str, int] = {}
        self._failures: dict[str, int] = {}
        self._next_chance: dict[str, float] = {}

    def member(self, name: str) -> ClientRecord:
        """Return the record of a client that is not in the fleet yet."""
        late_joiner = self._waiting.get(name)
        if late_joiner is None:
            # Above what it was sent when it was turned away: its journal may hold the answers.
            first = self._next_sequences.get(name, self._first_sequence)
            late_joiner = self._waiting[name] = _LateJoiner(ClientRecord(name, 0, next_sequence=first))
        return late_joiner.member

    def check_welcome(self, name: str, instance: bytes | None) -> None:
        """Refuse a process that was turned away before; a new process may try again.

        Raises
        ------
        JoinRefusedError
            The text is the reason that :meth:`turn_away` was given.
        """
        turned_away, reason = self._turned_away.get(name, (None, ""))
        if reason and turned_away == instance:
            raise JoinRefusedError(reason)

    async def wait(self, member: ClientRecord) -> None:
        """Wait until the client is in the fleet, or the run is over."""
        late_joiner = self._waiting.get(member.name)
        if late_joiner is None or late_joiner.member is not member:
            raise JoinRefusedError(f"client {member.name!r} was turned away meanwhile; it must join anew")
        late_joiner.streams += 1
        try:
            await late_joiner.called.wait()
        finally:
            late_joiner.streams -= 1

    def call(self) -> ClientRecord | None:
        """Return the first client by id that waits now and may come, and let it; ``None``: there is none."""
        for name in sorted(self._waiting):
            late_joiner = self._waiting[name]
            if late_joiner.streams and not self.pause(name):
                del self._waiting[name]
                late_joiner.called.set()
                return late_joiner.member
        return None

    def pause(self, name: str) -> float:
        """Return in how many seconds a client may be called, as it could not be taken in before; 0: now."""
        return max(self._next_chance.get(name, 0.0) - time.monotonic(), 0.0)

    def turn_away(self, member: ClientRecord, instance: bytes | None, reason: str, seconds: float) -> None:
        """End the part of a client that was called and could not be taken in; when it comes back it hears why.

        A new process of it is not called before twenty times as long has passed as this has taken, after the next
        failure forty times, and so on: whoever comes and goes can take a twentieth of the time at most.
        """
        failures = self._failures[member.name] = self._failures.get(member.name, 0) + 1
        self._next_chance[member.name] = time.monotonic() + seconds / _SHARE * 2.0 ** min(failures - 1, 30)
        self._next_sequences[member.name] = member.next_sequence
        self._turned_away[member.name] = instance, reason
        if member.serving is not None:
            member.serving.cancel()

    def end(self) -> None:
        """Let nobody wait any longer: the run is over."""
        for late_joiner in self._waiting.values():
            late_joiner.called.set()


def check_late_joiners(settings: RunSettings, half: type[Algorithm]) -> None:
    """Refuse ``participation.late_joiners: admit`` where a newcomer could have no part."""
    if settings.participation.late_joiners == "refuse":
        return
    key, name = "participation.late_joiners", settings.algorithm.name
    if not settings.own_data:
        raise SettingsError(
            "admit given, but the data set is divided among the clients at the start, so nothing is left for "
            "one that comes later; use refuse, or data.name: own, where each client brings a file (fenchel client "
            "--data FILE)",
            key=key,
        )
    if half.fixed_fleet:
        raise SettingsError(f"admit given, but with {name} {half.fixed_fleet}; use refuse", key=key)
    if settings.seals_secrets:
        raise SettingsError(
            "admit given, but with secrets.source: sealed the clients exchange secrets once, at the start; "
            "use refuse, or secrets.source: file",
            key=key,
        )
    keeps = [entry.name for entry in fields(half.State)][1:]  # besides the model
    own = "has a start()" if half.start is not Algorithm.start else f"keeps {', '.join(keeps)}" if keeps else ""
    if own and half.admit is Algorithm.admit:
        raise SettingsError(
            f"admit given, but {name} {own} and does not say what becomes of that when a client comes later; "
            "use refuse, or another algorithm (if it is your own, define admit(cohort))",
            key=key,
        )
