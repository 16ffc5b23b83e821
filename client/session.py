"""One client's part in one run: every instruction is handled exactly once.

The session knows nothing of the network. Instructions come in, replies go out; which of them count is the
server's decision, which each instruction's ``base`` tells (:mod:`client.journal`).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from client.algorithm import Place
from client.algorithms import client_half, require_allowed
from client.journal import Journal
from common.data.shard import Shard
from common.errors import FenchelError, PayloadError
from common.frames import Body
from common.objectives.factory import build_objective
from common.objectives.metrics import Metrics
from common.payload import Buffer, Value, Values, decode, encode
from common.phases import EVALUATE
from common.settings.run import RunSettings, outside_code
from proto import fenchel_pb2 as pb

log = logging.getLogger("fenchel.client")


@dataclass(frozen=True)
class Holding:
    """The data that a client brings to a run.

    Attributes
    ----------
    shard
        What it trains on.
    holdout
        Samples of its own that it only evaluates on, if any.
    """

    shard: Shard
    holdout: Shard | None = None

    def description(self) -> pb.ShardDescription:
        """Return what the server may know of the data: its shape."""
        shard = self.shard
        return pb.ShardDescription(
            samples=shard.samples,
            features=shard.total_features,
            classes=shard.classes,
            features_held=shard.features.shape[1],
            class_names=shard.class_names,
        )


@dataclass(frozen=True)
class Answer:
    """A reply ready to be sent."""

    head: pb.Reply
    body: Body | None


class Session:
    """One client in one run.

    Parameters
    ----------
    client
        The client's id.
    settings
        Of the run, as the server sent them.
    holding
        The client's data.
    journal_folder
        Where this client keeps its journal of this run; ``None`` keeps it in memory.
    allowed
        Algorithms from outside the project that may be run here.

    Raises
    ------
    SettingsError
        The run's algorithm is unknown or not allowed here.
    CheckpointError
        The journal is damaged.
    """

    def __init__(
        self,
        client: str,
        settings: RunSettings,
        holding: Holding,
        journal_folder: Path | None = None,
        allowed: Collection[str] = (),
    ) -> None:
        self.client = client
        self.settings = settings
        self.holding = holding
        for name in outside_code(settings.model_dump()):
            require_allowed(name, allowed)
        self._half = client_half(settings.algorithm.name, allowed)
        self._objective = build_objective(settings.objective, holding.shard)
        self._holdout = build_objective(settings.objective, holding.holdout) if holding.holdout else None
        self._algorithm = self._half(Place(client, settings.seed, settings.algorithm, self._objective))
        stateless = self._half.stateless()
        initial = self._half.State() if stateless else self._algorithm.initial_state()
        self._journal = Journal(initial, None if stateless else journal_folder, sync=settings.checkpoint.sync)
        self._algorithm.state = self._journal.state_after(0)
        self._live = 0  # the instruction after which self._algorithm.state is the state
        self._last: tuple[int, Answer] | None = None

    def hello(self) -> pb.Hello:
        """Return how this client introduces itself on a new stream."""
        return pb.Hello(
            shard=self.holding.description(),
            snapshots=self._journal.snapshots,
            stateless=self._half.stateless(),
        )

    def handle(
        self, instruction: pb.Instruction, body: Buffer, timing: pb.Timing, finite: bool = False
    ) -> Answer:
        """Handle one instruction: restore its base, answer it, record the outcome.

        A failure of the algorithm becomes a reply that says so; the next instruction's base undoes
        whatever it left behind. ``finite``: the arrays are known to be finite.
        """
        self._journal.forget_before(instruction.reach)
        stored = self._stored(instruction.sequence)
        if stored is not None:
            return stored
        try:
            answer = self._answered(instruction, body, timing, finite)
        except Exception as error:
            expected = isinstance(error, FenchelError)
            log.error("%s: phase %r failed: %s", self.client, instruction.phase, error, exc_info=not expected)
            self._live = -1  # the state may be half changed
            text = str(error) if expected else f"{type(error).__name__}: {error}"
            return Answer(
                pb.Reply(sequence=instruction.sequence, timing=timing, failure=text or "unknown"), None
            )
        self._last = instruction.sequence, answer
        return answer

    def _stored(self, sequence: int) -> Answer | None:
        if self._last is not None and self._last[0] == sequence:
            return self._last[1]
        reply = self._journal.reply_to(sequence)
        return (
            None
            if reply is None
            else Answer(pb.Reply(sequence=sequence, timing=pb.Timing()), Body(encode(reply), shared=False))
        )

    def _answered(self, instruction: pb.Instruction, body: Buffer, timing: pb.Timing, finite: bool) -> Answer:
        lap = _stopwatch()
        values = decode(instruction.payload, body)
        timing.decode_ns = lap()
        if instruction.kind == pb.INSPECT:
            reply = self._inspect(instruction.phase, values)
            timing.compute_ns = lap()
            encoded = Body(encode(reply), shared=False)
            timing.encode_ns = lap()
        else:
            if not self._half.stateless() and self._live != instruction.base:
                if self._live > instruction.base:
                    log.info(
                        "%s: what was done after instruction %d did not count; going back to it",
                        self.client,
                        instruction.base,
                    )
                self._algorithm.state = self._journal.state_after(instruction.base)
            self._live = -1
            reply = self._algorithm.answer(instruction.phase, instruction.round, values, finite=finite)
            if instruction.kind == pb.TELL and reply:
                raise PayloadError(f"phase {instruction.phase!r} was told, not asked, but returned values")
            timing.compute_ns = lap()
            encoded = Body(
                encode(reply), shared=False
            )  # a reply that cannot travel is a failure, and leaves no record
            timing.encode_ns = lap()
            if not self._half.stateless():
                self._journal.record(instruction.sequence, self._algorithm.state, reply)
            self._live = instruction.sequence
            timing.journal_ns = lap()
        return Answer(pb.Reply(sequence=instruction.sequence, timing=timing), encoded)

    def _inspect(self, phase: str, values: Values) -> Values:
        if phase != EVALUATE:
            raise PayloadError(f"this version knows no inspection {phase!r}")
        model = values.get("model")
        if not isinstance(model, np.ndarray):
            raise PayloadError(f"phase {phase!r} takes an array named 'model', got {sorted(values)}")
        own = self._objective.evaluate(model)
        held = self._holdout.evaluate(model) if self._holdout is not None else Metrics(0.0, 0, 0)
        return _sums("", own) | _sums("holdout_", held)


def _sums(prefix: str, metrics: Metrics) -> dict[str, Value]:
    """Return metrics as values for the wire; -1 correct stands for none (regression)."""
    return {
        prefix + "loss_sum": float(metrics.loss_sum),
        prefix + "correct": -1 if metrics.correct is None else int(metrics.correct),
        prefix + "samples": int(metrics.samples),
    }


def _stopwatch() -> Callable[[], int]:
    """Return a function that gives the nanoseconds since it was last called."""
    last = time.perf_counter_ns()

    def lap() -> int:
        nonlocal last
        now = time.perf_counter_ns()
        elapsed, last = now - last, now
        return elapsed

    return lap
