"""Where the time of a call, and of a round, has gone.

A round is a sequence of exchanges with the server's own work between them, and an exchange is as long as the call
that it had to wait for: the one whose answer was counted last. So the parts of a round are the server's own work
and the parts of these calls. Each part lies between two stamps; none is what is left of the others. What no part
accounts for is shown as such.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from operator import attrgetter

from fenchel.common.storage.call_columns import CLIENT_STAGES
from fenchel.common.storage.round_columns import PARTS
from fenchel.server.fleet.calls import Call, OpenRequest

CLIENT_NS = attrgetter(*(f"{stage.timing}_ns" for stage in CLIENT_STAGES))
"""Nanoseconds of the client's stages, of a ``proto.Timing``."""


@dataclass(frozen=True, slots=True)
class CallBreakdown:
    """Seconds of one call, from when it was queued until its reply was decoded. Nan where they are not known."""

    total: float  # all of them
    compute: float  # compute, encryption: of the client's algorithm; encryption and decryption
    encryption: float
    coding: float  # encoding, decoding and journalling, on both sides
    serialisation: float  # both messages: the time in which their bytes passed
    propagation: float  # both messages: the rest of their way
    queueing: float
    """Ready, but not taken up: in the queues of both sides, between threads, or for want of room on the server."""
    away: float  # away, broken: the client had no stream open: before the first byte was sent to it, and after that
    broken: float

    @property
    def network(self) -> float:
        """Seconds between the two sides."""
        return self.serialisation + self.propagation

    @classmethod
    def of(cls, call: Call) -> CallBreakdown:
        """Return the costs of a call, as the stamps of both sides say."""
        timing = call.timing
        if timing is None or not call.last_received_ns:
            return cls(*[math.nan] * len(fields(cls)))
        spent = dict.fromkeys(PARTS, 0)
        for stage, ns in zip(CLIENT_STAGES, CLIENT_NS(timing), strict=True):
            spent[stage.part] += ns
        encryption_ns, coding_ns, queue_ns = spent["encryption"], spent["coding"], spent["queueing"]
        # The work can be older than the answer, which was sent a second time.
        client_ns = max(timing.answer_ns, sum(spent.values()))
        decode_ns = max(call.decoded_ns - call.last_received_ns, 0)
        way_ns = call.last_received_ns - call.first_sent_ns - call.held_ns - client_ns
        # Who has lost its stream may have worked meanwhile, which is no absence.
        broken_ns = min(call.broken_ns, max(way_ns, 0))
        network = max(way_ns - broken_ns, 0) / 1e9
        serialisation = min(call.serialisation, network)
        return cls(
            total=(call.last_received_ns + decode_ns - call.queued_ns) / 1e9,
            compute=spent["compute"] / 1e9,
            encryption=encryption_ns / 1e9,
            coding=(coding_ns + decode_ns) / 1e9,
            serialisation=serialisation,
            propagation=network - serialisation,
            queueing=(call.first_sent_ns - call.queued_ns - call.away_ns + queue_ns + call.held_ns) / 1e9,
            away=call.away_ns / 1e9,
            broken=broken_ns / 1e9,
        )


@dataclass
class RoundBreakdown:
    """Seconds of one round, by what the run had to wait for."""

    compute: float = 0.0
    """compute, encryption, coding, serialisation, propagation, queueing: as for :class:`CallBreakdown`, of the calls
    that were waited for; ``coding`` with the server's for everybody."""
    encryption: float = 0.0
    coding: float = 0.0
    serialisation: float = 0.0
    propagation: float = 0.0
    queueing: float = 0.0
    away: float = 0.0  # as long as the clients of these calls had no stream open
    waiting: float = 0.0
    """From the last answer that was counted until the exchange was over: for answers that never came."""
    server: float = 0.0  # the server's own work: between exchanges, and checking and combining the last reply of each
    idle: float = 0.0
    """How long the average client that had answered waited for the slowest one. No further part: the others are what
    the slowest did meanwhile."""

    @property
    def network(self) -> float:
        """Seconds between the two sides."""
        return self.serialisation + self.propagation

    @property
    def accounted(self) -> float:
        """All parts together."""
        work = self.compute + self.encryption + self.coding + self.server
        return work + self.network + self.queueing + self.away + self.waiting

    def add(self, request: OpenRequest, calls: Sequence[Call]) -> None:
        """Add an exchange, with its calls."""
        self.coding += _seconds(request.started_ns, request.posted_ns)
        counted = [call for call in calls if call.outcome == "counted"]
        if not counted:
            self.waiting += _seconds(request.posted_ns, request.ended_ns)
            return
        last = max(counted, key=lambda call: call.taken_ns)
        costs = CallBreakdown.of(last)
        self.compute += costs.compute
        self.encryption += costs.encryption
        self.coding += costs.coding
        self.serialisation += costs.serialisation
        self.propagation += costs.propagation
        # While others were still being posted, the server was encoding, whoever was there.
        encoding = _seconds(last.queued_ns, request.posted_ns)
        absent = min(encoding, costs.away)
        self.away += costs.away - absent + costs.broken
        self.queueing += costs.queueing - (encoding - absent)
        self.server += _seconds(last.decoded_ns, last.taken_ns)
        self.waiting += _seconds(last.taken_ns, request.ended_ns)
        self.idle += sum(_seconds(call.taken_ns, last.taken_ns) for call in counted) / len(counted)


def split(started_ns: int, ended_ns: int, calls: Iterable[Call]) -> RoundBreakdown:
    """Return where the time of a round has gone.

    started_ns, ended_ns: the round, by the performance counter.
    """
    by_exchange: dict[OpenRequest, list[Call]] = {}
    for call in calls:
        if call.request is not None:
            by_exchange.setdefault(call.request, []).append(call)
    found = RoundBreakdown()
    now = ended_ns
    for request in sorted(by_exchange, key=lambda request: request.ended_ns, reverse=True):
        if request.ended_ns > now:
            continue  # went on beside the one after it, which the round waited for
        found.add(request, by_exchange[request])
        found.server += _seconds(request.ended_ns, now)
        now = request.started_ns
    found.server += _seconds(started_ns, now)
    return found


def _seconds(start_ns: int, stop_ns: int) -> float:
    return (stop_ns - start_ns) / 1e9
