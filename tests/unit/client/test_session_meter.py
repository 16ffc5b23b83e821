"""Each reply accounts for its own encryption, apart from the computation."""

from __future__ import annotations

import time

import numpy as np
import pytest

from fenchel.algorithms.client_half import ClientAlgorithm
from fenchel.client.session import ClientData, Session
from fenchel.common.crypto.meter import CipherMeter
from fenchel.common.data.shard import Shard
from fenchel.common.wire.outline import Received, outline
from fenchel.common.wire.payload import encode
from fenchel.proto import fenchel_pb2 as pb
from tests.conftest import MakeSettings
from tests.unit.client.tally import NAME, TallyClient

MILLISECOND = 1_000_000


class Busy:
    """Stands in for a handler: takes 30 ms, of which it says that 10 were encryption and 15 decryption."""

    def __init__(self) -> None:
        self.meter = CipherMeter()

    def work(self) -> None:
        time.sleep(0.03)
        self.meter.encryptions += 2
        self.meter.encryption_ns += 10 * MILLISECOND
        self.meter.decryptions += 3
        self.meter.decryption_ns += 15 * MILLISECOND


def timing_of(session: Session, sequence: int) -> pb.Timing:
    encoded = encode({"amount": 1.0})
    instruction = pb.Instruction(
        payload=encoded.descriptor, phase="add", kind=pb.ASK, sequence=sequence, base=sequence - 1
    )
    answer = session.handle(instruction, Received(outline(encoded.descriptor, 1 << 20), encoded.joined()), pb.Timing())
    assert not answer.head.failure, answer.head.failure
    return answer.head.timing


@pytest.fixture
def session(make_settings: MakeSettings) -> Session:
    shard = Shard(np.arange(8.0).reshape(4, 2), np.array([0, 1, 1, 0]), 2, 2, np.arange(4))
    settings = make_settings(algorithm={"name": NAME}, objective={"kind": "logistic"})
    return Session("client-0", settings, ClientData(shard), None, (NAME,))


def test_each_reply_has_what_was_encrypted_for_it(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    busy, add = Busy(), ClientAlgorithm.answer

    def answer(*given: object, **named: object) -> object:
        busy.work()
        return add(*given, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(TallyClient, "answer", answer)
    monkeypatch.setattr(TallyClient, "meter", property(lambda _: busy.meter))
    for sequence in (1, 2, 3):
        timing = timing_of(session, sequence)
        assert (timing.encryptions, timing.decryptions) == (2, 3)
        assert (timing.encrypt_ns, timing.decrypt_ns) == (10 * MILLISECOND, 15 * MILLISECOND)
        assert timing.compute_ns >= 5 * MILLISECOND  # 30 were spent, at least
