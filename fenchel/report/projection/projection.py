"""Projection of a finished run's duration to other links, from its measurements.

The projection repeats no computation, because the network does not affect the model. The run's timeline
(:mod:`fenchel.report.timeline`) gives the work of the server and of each client, and the dependencies between the
steps. The projection replaces only the transmission times. A message queues behind earlier messages on its link.
Its bytes leave at the link's bandwidth, and then propagate for half a round-trip time. The slowest client for which
the server waits determines the duration of a round. In the projection this may be another client than in the run.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from fenchel.common.randomness import generator
from fenchel.common.settings.link import Link
from fenchel.common.storage.time_parts import TIME_PARTS, TimeParts
from fenchel.common.wire.channel import options
from fenchel.report import columns
from fenchel.report.columns import Floats
from fenchel.report.timeline import Instruction, Segment, Step, Timeline

WINDOW_BYTES = dict(options(1.0))["grpc.http2.lookahead_bytes"]
"""Size in bytes of the HTTP/2 flow-control window, the limit on unacknowledged bytes."""

_LONGEST_JITTER = 10.0  # ratio of the largest jitter to its mean, as in the network emulation proxy


@dataclass(frozen=True)
class Projection:
    """Measured or projected duration of a run.

    Attributes
    ----------
    link
        Link of every client; ``None`` for the links of the actual run.
    seconds
        Duration of each round in seconds, without its evaluation, shape (rounds,).
    evaluation
        Duration of the evaluation after each round in seconds, shape (rounds,).
    parts
        Parts of the total time of all rounds, without the evaluations.
    """

    link: Link | None
    seconds: Floats
    evaluation: Floats
    parts: TimeParts

    @property
    def total(self) -> float:
        """Total duration of all rounds and evaluations in seconds."""
        return float(self.seconds.sum() + self.evaluation.sum())

    @property
    def median(self) -> float:
        """Median duration of a round in seconds."""
        return float(np.median(self.seconds))


def measured(course: Timeline) -> Projection:
    """Return the measured duration of the run.

    After a resumption the measurement starts once the clients have reconnected.
    """
    metrics = course.run.steady.metrics
    sums = [float(np.nansum(columns.column(metrics, f"{part}_s"))) for part in TIME_PARTS]
    return Projection(
        None, columns.column(metrics, "seconds"), columns.column(metrics, "evaluation_s"), TimeParts(*sums)
    )


def project(course: Timeline, link: Link, server_bandwidth: float | None = None) -> Projection:
    """Return the projected duration of a run in which every client has its own copy of the link.

    Parameters
    ----------
    course
        Timeline of the run.
    link
        Link of each client.
    server_bandwidth
        Bandwidth of the server's link in each direction, in bytes per second, which all clients share. ``None`` for
        no limit.
    """
    network = _LinkEstimate(link, server_bandwidth)
    rounds, evaluations, parts = [], [], TimeParts()
    now, last = 0.0, course.setup.started  # projected current time, and measured end of the previous segment
    network.go(course.setup, now)
    for one, evaluation in zip(course.rounds, course.evaluations, strict=True):
        now = max(now + one.started - last, network.over)
        ended, spent = network.go(one, now)
        parts.add(spent)
        judged, _ = network.go(evaluation, ended)
        rounds.append(ended - now)
        evaluations.append(judged - ended)
        now, last = judged, evaluation.ended
    return Projection(link, np.array(rounds), np.array(evaluations), parts)


@dataclass
class _LinkModel:
    """Model of one direction of a client's link."""

    link: Link
    rate: float | None
    draws: np.random.Generator
    free_at: float = -math.inf
    latest: float = -math.inf

    def pass_on(self, ready: float, size: float, shared: _Shared, parts: TimeParts) -> float:
        """Send a message of ``size`` bytes that is ready at time ``ready``, in first-in, first-out order.

        Return the time of its arrival, and add the time of its transmission to ``parts``.
        """
        started = max(ready, self.free_at)
        left = max(started + self._leaving(size), shared.pass_on(started, size))
        self.free_at = left
        extra = 0.0
        if self.link.jitter:
            extra = self.link.jitter / 2 * min(float(self.draws.standard_exponential()), _LONGEST_JITTER)
        self.latest = max(self.latest, left + self.link.rtt / 2 + extra)
        parts.queueing += started - ready
        parts.serialisation += left - started
        parts.propagation += self.latest - left
        return self.latest

    def _leaving(self, size: float) -> float:
        """Return the seconds until the last byte has left.

        A message that exceeds the flow-control window proceeds only after the receiver has acknowledged earlier bytes.
        """
        per_byte = 0.0 if self.rate is None else 1 / self.rate
        windows = max(math.ceil(size / WINDOW_BYTES) - 1, 0)
        return windows * max(self.link.rtt, WINDOW_BYTES * per_byte) + (size - windows * WINDOW_BYTES) * per_byte


@dataclass
class _Shared:
    """Model of one direction of the server's link, on which the bytes of all clients queue."""

    rate: float | None
    free_at: float = -math.inf

    def pass_on(self, ready: float, size: float) -> float:
        if self.rate is None:
            return ready
        self.free_at = max(ready, self.free_at) + size / self.rate
        return self.free_at


@dataclass
class _Client:
    """Projected client with its link."""

    down: _LinkModel
    up: _LinkModel
    free_at: float = -math.inf


@dataclass
class _Answer:
    """Completed instruction, with the times of its reply (ready, received, taken) and the parts of its duration."""

    instruction: Instruction
    replied: float
    parts: TimeParts
    received: float = 0.0
    taken: float = 0.0


@dataclass(frozen=True)
class _Done:
    """Completed step, with its earliest start, its end, and the parts of the time between them."""

    step: Step
    base: float
    ended: float
    parts: TimeParts


@dataclass
class _LinkEstimate:
    """Model of a run's clients and links, and of the server, which takes replies sequentially."""

    link: Link
    server_bandwidth: float | None
    over: float = 0.0
    busy_until: float = -math.inf
    clients: dict[str, _Client] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._out, self._in = _Shared(self.server_bandwidth), _Shared(self.server_bandwidth)

    def go(self, segment: Segment, start: float) -> tuple[float, TimeParts]:
        """Project a segment that starts at ``start``; return the time of its end and the parts of its duration.

        A step begins after the end of all steps that preceded it in the actual run, and after the server's work
        between them.
        """
        done: list[_Done] = []
        for step in segment.steps:
            before = [each for each in done if step.follows(each.step)]
            last = max([segment.started, *(each.step.ended for each in before)])
            base = max([start, *(each.ended for each in before)])
            done.append(self._do(step, base, base - last))
        awaited = [each for each in done if each.step.is_awaited]
        last = max([segment.started, *(each.step.ended for each in awaited)])
        self.over = max([start, *(each.ended for each in awaited)]) + max(segment.ended - last, 0.0)
        return self.over, _spent(awaited, start, self.over)

    def _do(self, step: Step, base: float, shift: float) -> _Done:
        done = [self._carry_out(each, max(each.queued + shift, base)) for each in step.instructions]
        # Replies enter the server's link in the order in which clients finish.
        for answer in sorted(done, key=lambda each: each.replied):
            link = self._client(answer.instruction.client).up
            answer.received = link.pass_on(answer.replied, answer.instruction.up, self._in, answer.parts)
        if not step.is_awaited:
            return _Done(step, base, base, TimeParts())
        here = sorted((each for each in done if each.instruction.answered), key=lambda each: each.received)
        for answer in here:
            self._take(answer)
        # If a client missed the deadline, the deadline ended the request, and the projection keeps this deadline.
        deadline = max(step.ended + shift, base) if step.overdue else base
        if not here:
            return _Done(step, base, deadline, TimeParts(waiting=deadline - base))
        final = here[-1]
        ended = max(final.taken, deadline) if step.overdue else final.taken + step.rest
        final.parts.server += max(final.instruction.queued + shift, base) - base
        final.parts.waiting += ended - final.taken
        return _Done(step, base, ended, final.parts)

    def _carry_out(self, each: Instruction, queued: float) -> _Answer:
        """Project the transmission of an instruction and the client's work on it."""
        client = self._client(each.client)
        parts = TimeParts(
            compute=each.compute,
            encryption=each.encryption,
            coding=each.coding,
            away=each.away,
            queueing=each.server_queue,
        )
        arrived = client.down.pass_on(queued + each.away + each.server_queue, each.down, self._out, parts)
        begun = max(arrived, client.free_at) + each.client_queue
        client.free_at = begun + each.compute + each.encryption + each.coding + each.other
        parts.queueing = parts.queueing + begun - arrived + each.other
        return _Answer(each, client.free_at, parts)

    def _take(self, answer: _Answer) -> None:
        each = answer.instruction
        begun = max(answer.received, self.busy_until)
        answer.taken = self.busy_until = begun + each.decode + each.take
        answer.parts.queueing += begun - answer.received
        answer.parts.coding += each.decode
        answer.parts.server += each.take

    def _client(self, name: str) -> _Client:
        if name not in self.clients:
            down, up = (
                _LinkModel(self.link, rate, generator(0, name, "projection", way))
                for way, rate in (("down", self.link.download), ("up", self.link.upload))
            )
            self.clients[name] = _Client(down, up)
        return self.clients[name]


def _spent(done: Sequence[_Done], started: float, ended: float) -> TimeParts:
    """Return the parts of a segment's duration: those of awaited steps, and the server's work between the steps."""
    spent = TimeParts()
    now = ended
    for each in sorted(done, key=lambda one: one.ended, reverse=True):
        if each.ended > now:
            continue  # skip a step that ran in parallel with a later one for which the server waited
        spent.server += now - each.ended
        spent.add(each.parts)
        now = each.base
    spent.server += now - started
    return spent
