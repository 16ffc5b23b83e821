"""Two who watch the same clients hear the same; one of them names the trace."""

from __future__ import annotations

import pytest

from fenchel.client.observer import ClientObserver, ClientObservers
from fenchel.proto import fenchel_pb2 as pb

Heard = list[tuple[object, ...]]


class Listening(ClientObserver):
    """An observer that notes what it hears, and names a trace."""

    def __init__(self, name: str, heard: Heard, trace: str = "", *, times_round_trips: bool = False) -> None:
        self.name, self.heard, self.trace = name, heard, trace
        self.times_round_trips = times_round_trips

    def opening(self, client: str) -> str:
        self.heard.append((self.name, "opening", client))
        return self.trace

    def closed(self, client: str) -> None:
        self.heard.append((self.name, "closed", client))

    def answered(self, client: str, instruction: pb.Instruction, reply: pb.Reply, size: int) -> None:
        self.heard.append((self.name, instruction.phase, reply.sequence, size))

    def round_trip(self, client: str, seconds: float) -> None:
        self.heard.append((self.name, client, seconds))


def test_both_hear_all_and_the_trace_is_that_of_the_one_who_traces() -> None:
    heard: Heard = []
    observer = ClientObservers(Listening("a", heard), Listening("b", heard, "00-1-2-01"))
    assert observer.opening("c") == "00-1-2-01"
    observer.answered("c", pb.Instruction(phase="train"), pb.Reply(sequence=7), 80)
    observer.round_trip("c", 0.5)
    observer.closed("c")
    assert heard == [
        *(("a", "opening", "c"), ("b", "opening", "c")),
        *(("a", "train", 7, 80), ("b", "train", 7, 80)),
        *(("a", "c", 0.5), ("b", "c", 0.5)),
        *(("a", "closed", "c"), ("b", "closed", "c")),
    ]


@pytest.mark.parametrize("wanted", [(), (False,), (False, True), (True, False)])
def test_round_trips_are_measured_if_one_asks_for_them(wanted: tuple[bool, ...]) -> None:
    observers = [Listening("a", [], times_round_trips=each) for each in wanted]
    assert ClientObservers(*observers).times_round_trips == any(wanted)
