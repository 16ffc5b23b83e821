"""Projection of a finished run's duration to other links, from its measurements.

Nothing is computed again: the model is the same bit for bit, whatever the network. What each client and the server
did, and what waited for what, is the run's own account (:mod:`fenchel.report.timeline`). Only the ways
between them are replaced: a message waits for those before it on its link, its bytes leave at the bandwidth,
and then they are under way for half a round trip. So a round is again as long as the slowest of those it
waited for, who may be others than before.
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
from fenchel.report.timeline import Instruction, Step, Stretch, Timeline

WINDOW_BYTES = dict(options(1.0))["grpc.http2.lookahead_bytes"]
"""Bytes that one side may send before the other acknowledges them."""

_LONGEST_JITTER = 10.0  # ratio of the largest jitter to its mean, as in the network emulation proxy


@dataclass(frozen=True)
class Projection:
    """Duration of a run.

    Attributes
    ----------
    link
        Of every client; ``None``: those over which it really ran.
    seconds, evaluation
        Of each round, and of the evaluation after it, shape (rounds,).
    parts
        Where the seconds of all rounds go, without the evaluations.
    """

    link: Link | None
    seconds: Floats
    evaluation: Floats
    parts: TimeParts

    @property
    def total(self) -> float:
        """Seconds of all rounds and evaluations."""
        return float(self.seconds.sum() + self.evaluation.sum())

    @property
    def median(self) -> float:
        """Seconds of the median round."""
        return float(np.median(self.seconds))


def measured(course: Timeline) -> Projection:
    """Return what the run really took, in the same words; after a resumption, from when its clients were back."""
    metrics = course.run.steady.metrics
    sums = [float(np.nansum(columns.column(metrics, f"{part}_s"))) for part in TIME_PARTS]
    return Projection(
        None, columns.column(metrics, "seconds"), columns.column(metrics, "evaluation_s"), TimeParts(*sums)
    )


def project(course: Timeline, link: Link, server_bandwidth: float | None = None) -> Projection:
    """Return what the run takes if every client has a link of its own, like the given one.

    Parameters
    ----------
    server_bandwidth
        Bytes per second in each direction that all clients share at the server; ``None``: any number.
    """
    network = _LinkEstimate(link, server_bandwidth)
    rounds, evaluations, parts = [], [], TimeParts()
    now, last = 0.0, course.setup.started  # projected current time, and measured end of the previous stretch
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
    """One direction of a client's link."""

    link: Link
    rate: float | None
    draws: np.random.Generator
    free_at: float = -math.inf
    latest: float = -math.inf

    def pass_on(self, ready: float, size: float, shared: _Shared) -> _ProjectedPassage:
        """Send a message that is ready; messages neither share the way nor pass each other."""
        started = max(ready, self.free_at)
        left = max(started + self._leaving(size), shared.pass_on(started, size))
        self.free_at = left
        extra = 0.0
        if self.link.jitter:
            extra = self.link.jitter / 2 * min(float(self.draws.standard_exponential()), _LONGEST_JITTER)
        self.latest = max(self.latest, left + self.link.rtt / 2 + extra)
        return _ProjectedPassage(queueing=started - ready, serialisation=left - started, arrived=self.latest, left=left)

    def _leaving(self, size: float) -> float:
        """Return the seconds until the last byte has left.

        What is more than the window can only follow when the receiver has said that it has read what was before.
        """
        per_byte = 0.0 if self.rate is None else 1 / self.rate
        windows = max(math.ceil(size / WINDOW_BYTES) - 1, 0)
        return windows * max(self.link.rtt, WINDOW_BYTES * per_byte) + (size - windows * WINDOW_BYTES) * per_byte


@dataclass
class _Shared:
    """One direction of the server's own link: the bytes of all clients leave one after the other."""

    rate: float | None
    free_at: float = -math.inf

    def pass_on(self, ready: float, size: float) -> float:
        if self.rate is None:
            return ready
        self.free_at = max(ready, self.free_at) + size / self.rate
        return self.free_at


@dataclass(frozen=True, slots=True)
class _ProjectedPassage:
    """A message on its way: it waited, its bytes left, the last of them arrived."""

    queueing: float
    serialisation: float
    left: float
    arrived: float


@dataclass
class _Client:
    """One client, and its link."""

    down: _LinkModel
    up: _LinkModel
    free_at: float = -math.inf


@dataclass
class _Answer:
    """An instruction that was carried out: when its reply was ready, at the server, and taken; where its time went."""

    instruction: Instruction
    replied: float
    parts: TimeParts
    received: float = 0.0
    taken: float = 0.0


@dataclass(frozen=True)
class _Done:
    """A step that is over: when it began to be due, when it was over, and where the time between them went."""

    step: Step
    base: float
    ended: float
    parts: TimeParts


@dataclass
class _LinkEstimate:
    """The clients of a run, their links, and the one server that takes their replies one after the other."""

    link: Link
    server_bandwidth: float | None
    over: float = 0.0
    busy_until: float = -math.inf
    clients: dict[str, _Client] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._out, self._in = _Shared(self.server_bandwidth), _Shared(self.server_bandwidth)

    def go(self, stretch: Stretch, start: float) -> tuple[float, TimeParts]:
        """Go through a stretch from ``start`` on; return when it is over, and where its time went.

        Each step begins when all of those are over that it really came after, and the server has done what it did
        between them.
        """
        done: list[_Done] = []
        for step in stretch.steps:
            before = [each for each in done if step.follows(each.step)]
            last = max([stretch.started, *(each.step.ended for each in before)])
            base = max([start, *(each.ended for each in before)])
            done.append(self._do(step, base, base - last))
        awaited = [each for each in done if each.step.is_awaited]
        last = max([stretch.started, *(each.step.ended for each in awaited)])
        self.over = max([start, *(each.ended for each in awaited)]) + max(stretch.ended - last, 0.0)
        return self.over, _spent(awaited, start, self.over)

    def _do(self, step: Step, base: float, shift: float) -> _Done:
        done = [self._carry_out(each, max(each.queued + shift, base)) for each in step.instructions]
        # Replies enter the server's link in the order in which clients finish.
        for answer in sorted(done, key=lambda each: each.replied):
            self._send_back(answer)
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
        """Send an instruction, and have it done."""
        client = self._client(each.client)
        down = client.down.pass_on(queued + each.away + each.server_queue, each.down, self._out)
        begun = max(down.arrived, client.free_at) + each.client_queue
        client.free_at = begun + each.compute + each.encryption + each.coding + each.other
        parts = TimeParts(
            compute=each.compute,
            encryption=each.encryption,
            coding=each.coding,
            serialisation=down.serialisation,
            propagation=down.arrived - down.left,
            away=each.away,
            queueing=each.server_queue + down.queueing + begun - down.arrived + each.other,
        )
        return _Answer(each, client.free_at, parts)

    def _send_back(self, answer: _Answer) -> None:
        each = answer.instruction
        up = self._client(each.client).up.pass_on(answer.replied, each.up, self._in)
        answer.received = up.arrived
        answer.parts.serialisation += up.serialisation
        answer.parts.propagation += up.arrived - up.left
        answer.parts.queueing += up.queueing

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
    """Return where the time of a stretch went: the steps that were waited for, and the server's work between them."""
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
