"""Where the time of a call, and of a round, has gone.

A round is a sequence of exchanges with the server's own work between them, and an exchange is as long as the call
that it had to wait for: the one whose answer was counted last. So the parts of a round are the server's own work
and the parts of these calls. Each part lies between two stamps; none is what is left of the others. What no part
accounts for is shown as such.
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
"""Of a call without a reply; never changed."""


@dataclass(frozen=True, slots=True)
class CallBreakdown:
    """Seconds of one call.

    Attributes
    ----------
    stages
        By the columns of ``STAGES``; nan where they are not known.
    until_decoded
        From when it was queued until its reply was decoded; nan if none came.
    """

    stages: Mapping[str, float]
    until_decoded: float

    @property
    def network(self) -> float:
        """Seconds between the two sides."""
        return self.stages["serialisation_s"] + self.stages["propagation_s"]

    @property
    def parts(self) -> TimeParts:
        """The stages that are known, by the parts that they belong to."""
        found = TimeParts()
        for stage in STAGES:
            seconds = self.stages[stage.column]
            if not math.isnan(seconds):
                found.spend(stage.part, seconds)
        return found

    @classmethod
    def of(cls, call: Call) -> CallBreakdown:
        """Return the costs of a call, as the stamps of both sides say."""
        client_ns = _CLIENT_NS(call.timing or NO_TIMING)
        stages = dict.fromkeys(COLUMNS, math.nan)
        stages |= {column: ns / 1e9 for column, ns in zip(_CLIENT_COLUMNS, client_ns, strict=True)}
        stages |= {column: between(*stamps(call)) for column, stamps in _SERVER_STAMPS}
        stages["away_s"], stages["held_s"] = call.away_ns / 1e9, call.held_ns / 1e9
        stages["queue_s"] = between(call.queued_ns + call.away_ns, call.first_sent_ns)
        if call.timing is None or not call.last_received_ns:
            return cls(stages, math.nan)
        # The work can be older than the answer, which was sent a second time.
        work_ns = max(call.timing.answer_ns, sum(client_ns))
        way_ns = max(call.last_received_ns - call.first_sent_ns - call.held_ns - work_ns, 0)
        # A client that has lost its stream may have worked meanwhile, which is no absence.
        broken_ns = min(call.broken_ns, way_ns)
        network = (way_ns - broken_ns) / 1e9
        stages["broken_s"] = broken_ns / 1e9
        stages["serialisation_s"] = min(call.serialisation, network)
        stages["propagation_s"] = network - stages["serialisation_s"]
        return cls(stages, (max(call.decoded_ns, call.last_received_ns) - call.queued_ns) / 1e9)


@dataclass
class RoundBreakdown:
    """Seconds of one round, by what the run had to wait for.

    Attributes
    ----------
    parts
        Of the calls that were waited for; ``coding`` with the server's for all clients, ``waiting`` from the last
        answer that was counted until the exchange was over, ``server`` with what it did between exchanges.
    idle
        How long the average client that had answered waited for the slowest one. No further part: the others are what
        the slowest did meanwhile.
    """

    parts: TimeParts = field(default_factory=TimeParts)
    idle: float = 0.0

    def add(self, request: ReplySink, calls: Sequence[Call]) -> None:
        """Add an exchange, with its calls."""
        parts = self.parts
        parts.spend("coding", between(request.started_ns, request.posted_ns))
        counted = [call for call in calls if call.outcome == "counted"]
        if not counted:
            parts.spend("waiting", between(request.posted_ns, request.ended_ns))
            return
        last = max(counted, key=lambda call: call.taken_ns)
        parts.add(CallBreakdown.of(last).parts)
        # While others were still being posted, the server was encoding, whether this client was there or not.
        encoding = between(last.queued_ns, request.posted_ns)
        absent = min(encoding, last.away_ns / 1e9)
        parts.spend("away", -absent)
        parts.spend("queueing", absent - encoding)
        self.idle += sum(between(call.taken_ns, last.taken_ns) for call in counted) / len(counted)


def split(started_ns: int, ended_ns: int, calls: Iterable[Call]) -> RoundBreakdown:
    """Return where the time of a round has gone.

    Parameters
    ----------
    started_ns, ended_ns
        The round, by the performance counter.
    """
    by_exchange: dict[ReplySink, list[Call]] = {}
    for call in calls:
        if call.request is not None:
            by_exchange.setdefault(call.request, []).append(call)
    found = RoundBreakdown()
    now = ended_ns
    for request in sorted(by_exchange, key=lambda request: request.ended_ns, reverse=True):
        if request.ended_ns > now:
            continue  # went on beside the one after it, which the round waited for
        found.add(request, by_exchange[request])
        found.parts.spend("server", between(request.ended_ns, now))
        now = request.started_ns
    found.parts.spend("server", between(started_ns, now))
    return found


def between(start_ns: int, stop_ns: int) -> float:
    """Return the seconds between two stamps; nan where one of them is not set."""
    return (stop_ns - start_ns) / 1e9 if start_ns and stop_ns else math.nan
