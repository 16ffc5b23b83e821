"""Time breakdown of calls and rounds.

A round is a sequence of requests with the server's own work between them. The critical call of a request is the call
whose reply was the last to count, and determines the request's duration. So the parts of a round are the server's own
work and the parts of the critical calls. Each part is measured between two stamps, and none is a remainder. Time
outside all parts is reported as unaccounted.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter

from fenchel.common.storage.call_columns import CLIENT_STAGES, COLUMNS, STAGES
from fenchel.common.storage.time_parts import TimeParts
from fenchel.fleet.calls import Call, ReplySink
from fenchel.proto import fenchel_pb2 as pb

_CLIENT_COLUMNS = tuple(stage.column for stage in CLIENT_STAGES)
_CLIENT_NS = attrgetter(*(f"{stage.timing}_ns" for stage in CLIENT_STAGES))
_SERVER_STAMPS = tuple(
    (stage.column, attrgetter(*(f"{stamp}_ns" for stamp in stage.between))) for stage in STAGES if stage.between
)
NO_TIMING = pb.Timing()
"""Client's times of a call without a reply; never modified."""


@dataclass(frozen=True, slots=True)
class CallBreakdown:
    """Time breakdown of one call, in seconds.

    Attributes
    ----------
    stages
        Duration of each stage, by the columns of ``STAGES``; nan if it is not known.
    until_decoded
        Duration from queueing the instruction to decoding the reply; nan without a reply.
    """

    stages: Mapping[str, float]
    until_decoded: float

    @property
    def network(self) -> float:
        """Network time of both messages, in seconds."""
        return self.stages["serialisation_s"] + self.stages["propagation_s"]

    @property
    def parts(self) -> TimeParts:
        """Sums of the known stages, by part."""
        found = TimeParts()
        for stage in STAGES:
            seconds = self.stages[stage.column]
            if not math.isnan(seconds):
                found.spend(stage.part, seconds)
        return found

    @classmethod
    def of(cls, call: Call) -> CallBreakdown:
        """Return the breakdown of a call, from the stamps of server and client."""
        client_ns = _CLIENT_NS(call.timing or NO_TIMING)
        stages = dict.fromkeys(COLUMNS, math.nan)
        stages |= {column: ns / 1e9 for column, ns in zip(_CLIENT_COLUMNS, client_ns, strict=True)}
        stages |= {column: between(*stamps(call)) for column, stamps in _SERVER_STAMPS}
        stages["away_s"], stages["held_s"] = call.away_ns / 1e9, call.held_ns / 1e9
        stages["queue_s"] = between(call.queued_ns + call.away_ns, call.first_sent_ns)
        if call.timing is None or not call.last_received_ns:
            return cls(stages, math.nan)
        # If the client sent a stored reply again, its work took longer than the last answer.
        work_ns = max(call.timing.answer_ns, sum(client_ns))
        way_ns = max(call.last_received_ns - call.first_sent_ns - call.held_ns - work_ns, 0)
        # A client may work while disconnected, so only the remaining time counts as broken.
        broken_ns = min(call.broken_ns, way_ns)
        network = (way_ns - broken_ns) / 1e9
        stages["broken_s"] = broken_ns / 1e9
        stages["serialisation_s"] = min(call.serialisation, network)
        stages["propagation_s"] = network - stages["serialisation_s"]
        return cls(stages, (max(call.decoded_ns, call.last_received_ns) - call.queued_ns) / 1e9)


@dataclass
class RoundBreakdown:
    """Time breakdown of one round, along its critical calls, in seconds.

    Attributes
    ----------
    parts
        Sums of the parts of the critical calls. ``coding`` includes the server's encoding for all clients. ``waiting``
        is the time from the last counted reply to the end of its request, or the whole wait if no reply counted.
        ``server`` is the work between requests and on the critical replies.
    idle
        Mean time that clients waited for the slowest one, summed over requests. It overlaps with the parts of the
        critical calls.
    """

    parts: TimeParts = field(default_factory=TimeParts)
    idle: float = 0.0

    def add(self, request: ReplySink, calls: Sequence[Call]) -> None:
        """Add the breakdown of a request with its calls."""
        parts = self.parts
        parts.spend("coding", between(request.started_ns, request.posted_ns))
        counted = [call for call in calls if call.outcome == "counted"]
        if not counted:
            parts.spend("waiting", between(request.posted_ns, request.ended_ns))
            return
        last = max(counted, key=lambda call: call.taken_ns)
        parts.add(CallBreakdown.of(last).parts)
        # Encoding of further instructions of the request belongs to ``coding`` and must not count twice.
        encoding = between(last.queued_ns, request.posted_ns)
        absent = min(encoding, last.away_ns / 1e9)
        parts.spend("away", -absent)
        parts.spend("queueing", absent - encoding)
        self.idle += sum(between(call.taken_ns, last.taken_ns) for call in counted) / len(counted)


def split(started_ns: int, ended_ns: int, calls: Iterable[Call]) -> RoundBreakdown:
    """Return the time breakdown of a round.

    Parameters
    ----------
    started_ns, ended_ns
        Start and end of the round, in nanoseconds of the performance counter.
    calls
        Instructions of the round.
    """
    by_exchange: dict[ReplySink, list[Call]] = {}
    for call in calls:
        if call.request is not None:
            by_exchange.setdefault(call.request, []).append(call)
    found = RoundBreakdown()
    now = ended_ns
    for request in sorted(by_exchange, key=lambda request: request.ended_ns, reverse=True):
        if request.ended_ns > now:
            continue  # skip a request that ran in parallel with a later one for which the round waited
        found.add(request, by_exchange[request])
        found.parts.spend("server", between(request.ended_ns, now))
        now = request.started_ns
    found.parts.spend("server", between(started_ns, now))
    return found


def between(start_ns: int, stop_ns: int) -> float:
    """Return the seconds between two stamps; nan if a stamp is not set."""
    return (stop_ns - start_ns) / 1e9 if start_ns and stop_ns else math.nan
