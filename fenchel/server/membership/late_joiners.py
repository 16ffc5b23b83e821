"""Late joiners: clients that register after the run has begun, and wait for the end of the round.

Between two rounds no request is open, so the fleet can grow without disturbing the work of a client. But the run waits
while an algorithm initialises a late joiner. A client whose initialisation failed must therefore wait before it can try
again.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field, fields

from fenchel.algorithms.server_half import Algorithm
from fenchel.common.errors import JoinRefusedError, SettingsError
from fenchel.common.settings.run import RunSettings
from fenchel.fleet.client_record import EPOCH_BITS, ClientRecord

_SHARE = 0.05  # largest fraction of the run time spent on attempts to admit one client


@dataclass
class _LateJoiner:
    """A client that is not in the fleet yet.

    Attributes
    ----------
    member
        Client record, which the fleet will use.
    streams
        Number of the client's streams that wait. An abandoned stream may appear open for a while.
    called
        Event that is set when the client is in the fleet, or the run has ended.
    """

    member: ClientRecord
    streams: int = 0
    called: asyncio.Event = field(default_factory=asyncio.Event)

    async def wait(self) -> None:
        """Count one more stream that waits, until the client is called."""
        self.streams += 1
        try:
            await self.called.wait()
        finally:
            self.streams -= 1


class LateJoiners:
    """Late joiners that wait to be added to the fleet.

    Parameters
    ----------
    epoch
        Epoch of the sequence numbers, which determines the first ones of late joiners: 0 for a new run, and higher
        after each resume.
    """

    def __init__(self, epoch: int) -> None:
        self._first_sequence = (epoch << EPOCH_BITS) + 1
        self._waiting: dict[str, _LateJoiner] = {}
        self._turned_away: dict[str, tuple[bytes | None, str]] = {}
        self._next_sequences: dict[str, int] = {}
        self._failures: dict[str, int] = {}
        self._next_chance: dict[str, float] = {}

    def record(self, name: str) -> ClientRecord:
        """Return the record of a client that is not in the fleet yet; create it at the first call."""
        late_joiner = self._waiting.get(name)
        if late_joiner is None:
            # Start above the sequence numbers of an earlier attempt, because the client's journal may hold its replies.
            first = self._next_sequences.get(name, self._first_sequence)
            late_joiner = self._waiting[name] = _LateJoiner(ClientRecord(name, next_sequence=first))
        return late_joiner.member

    def check_welcome(self, name: str, instance: bytes | None) -> None:
        """Refuse a process that was turned away before. A new process of the client may try again.

        Raises
        ------
        JoinRefusedError
            If the process was turned away. The text gives the reason.
        """
        turned_away, reason = self._turned_away.get(name, (None, ""))
        if reason and turned_away == instance:
            raise JoinRefusedError(reason)

    async def wait(self, member: ClientRecord) -> None:
        """Wait until the client is in the fleet, or the run has ended.

        Raises
        ------
        JoinRefusedError
            If the client was turned away since :meth:`record` returned this record.
        """
        late_joiner = self._waiting.get(member.name)
        if late_joiner is None or late_joiner.member is not member:
            raise JoinRefusedError(f"client {member.name!r} was rejected meanwhile; start it again")
        await late_joiner.wait()

    def pop_ready(self) -> ClientRecord | None:
        """Release the first waiting client, by id, whose pause is over. Return its record, or ``None`` without any."""
        for name in sorted(self._waiting):
            late_joiner = self._waiting[name]
            if late_joiner.streams and not self.pause(name):
                del self._waiting[name]
                late_joiner.called.set()
                return late_joiner.member
        return None

    def pause(self, name: str) -> float:
        """Return the seconds until a client whose admission failed may be called again; 0: now."""
        return max(self._next_chance.get(name, 0.0) - time.monotonic(), 0.0)

    def turn_away(self, member: ClientRecord, instance: bytes | None, reason: str, seconds: float) -> None:
        """Turn away a client whose admission failed. Its process receives the reason.

        A new process of the client must wait for twenty times the duration of the failed attempt, forty times after the
        next failure, and so on. So attempts to admit one client take at most a twentieth of the time.

        Parameters
        ----------
        member
            Client record.
        instance
            Id of the client's process.
        reason
            Reason for the client.
        seconds
            Duration of the attempt in seconds.
        """
        failures = self._failures[member.name] = self._failures.get(member.name, 0) + 1
        self._next_chance[member.name] = time.monotonic() + seconds / _SHARE * 2.0 ** min(failures - 1, 30)
        self._next_sequences[member.name] = member.next_sequence
        self._turned_away[member.name] = instance, reason
        if member.serving is not None:
            member.serving.cancel()

    def end(self) -> None:
        """Release all waiting clients, as the run has ended."""
        for late_joiner in self._waiting.values():
            late_joiner.called.set()


def check_late_joiners(settings: RunSettings, half: type[Algorithm]) -> None:
    """Raise ``SettingsError`` if the settings admit late joiners, but the run cannot."""
    if settings.participation.late_joiners == "refuse":
        return
    key, name = "participation.late_joiners", settings.algorithm.name
    if not settings.own_data:
        raise SettingsError(
            "admit given, but the data set is divided among the clients at the start, so late joiners would have "
            "no samples; use refuse, or data.name: own, where each client has its own file (fenchel client --data "
            "FILE)",
            key=key,
        )
    if half.fixed_fleet:
        raise SettingsError(f"admit given, but with {name} {half.fixed_fleet}; use refuse", key=key)
    if settings.seals_secrets:
        raise SettingsError(
            "admit given, but with secrets.source: sealed the clients exchange secrets only at the start; use "
            "refuse, or secrets.source: file",
            key=key,
        )
    keeps = [entry.name for entry in fields(half.State)][1:]  # state entries other than the model
    own = "has a start()" if half.start is not Algorithm.start else f"keeps {', '.join(keeps)}" if keeps else ""
    if own and half.admit is Algorithm.admit:
        raise SettingsError(
            f"admit given, but {name} {own} and does not define admit(cohort) for late joiners; use refuse or "
            "another algorithm, or define admit(cohort) in your own",
            key=key,
        )
