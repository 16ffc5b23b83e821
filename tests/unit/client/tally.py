"""An algorithm of one number, whose client half notes how often it computes and fails on demand; and its sessions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from fenchel.algorithms.client_half import ClientAlgorithm, answers
from fenchel.algorithms.server_half import Algorithm
from fenchel.client.session import Answer, ClientData, Session
from fenchel.common.arrays import Vector
from fenchel.common.data.shard import Shard
from fenchel.common.settings.algorithm import AlgorithmSettings
from fenchel.common.wire.outline import Received, outline
from fenchel.common.wire.payload import encode
from fenchel.common.wire.values import Value, Values
from fenchel.proto import fenchel_pb2 as pb

NAME = "tests.unit.client.tally:Tally"


class Tally(Algorithm):
    """Server half, which no test runs."""

    class Settings(AlgorithmSettings):
        """No parameters."""


class TallyClient(ClientAlgorithm):
    """Client half."""

    @dataclass
    class State:
        """The sum of all that was added, doubled when told."""

        total: Vector

    computed: ClassVar[list[str]] = []
    """Phases in the order in which they were computed, of all sessions."""

    def initial_state(self) -> Any:
        return self.State(np.zeros(2))

    @answers("add")
    def add(self, amount: float) -> Values:
        self.computed.append("add")
        self.state.total += amount
        return {"total": self.state.total, "round": self.round}

    @answers("double")
    def double(self) -> None:
        self.computed.append("double")
        self.state.total *= 2

    @answers("stumble")
    def stumble(self) -> Values:
        self.state.total += 1e6
        raise ArithmeticError("the step was too long")

    @answers("misfit")
    def misfit(self) -> Values:
        self.state.total += 1e6
        return {"total": np.zeros(2, np.complex128)}

    @answers("talkative")
    def talkative(self) -> Values:
        return {"total": self.state.total}


class Elsewhere:
    """No algorithm."""


class ElsewhereClient:
    """No client half."""


def holding() -> ClientData:
    features = np.arange(8.0).reshape(4, 2)
    return ClientData(Shard(features, np.array([0, 1, 1, 0]), 2, 2, np.arange(4)))


def handled(
    session: Session,
    phase: str,
    sequence: int,
    base: int,
    *,
    kind: pb.Kind.ValueType = pb.ASK,
    low_water_mark: int = 0,
    t: int = 1,
    **values: Value,
) -> Answer:
    encoded = encode(values)
    instruction = pb.Instruction(
        payload=encoded.descriptor,
        phase=phase,
        round=t,
        kind=kind,
        sequence=sequence,
        base=base,
        low_water_mark=low_water_mark,
    )
    answer = session.handle(instruction, Received(outline(encoded.descriptor, 1 << 20), encoded.joined()))
    assert answer.head.sequence == sequence
    return answer


def values_of(answer: Answer) -> Values:
    assert not answer.head.failure, answer.head.failure
    assert answer.body is not None
    descriptor = pb.Payload.FromString(answer.body.payload)
    return outline(descriptor, 1 << 20).decode(answer.body.content())


def add(session: Session, amount: float, sequence: int, base: int, low_water_mark: int = 0) -> float:
    answer = values_of(handled(session, "add", sequence, base, low_water_mark=low_water_mark, amount=amount))
    total = answer["total"]
    assert isinstance(total, np.ndarray)
    return float(total[0])
