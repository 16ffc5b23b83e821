"""Two who watch the same clients hear the same; one of them names the trace."""

from __future__ import annotations

from fenchel.client.observer import ClientObserver
from fenchel.proto import fenchel_pb2 as pb


def test_both_are_told_and_the_trace_is_that_of_the_one_who_traces() -> None:
    heard: list[tuple[object, ...]] = []

    def listening(who: str, trace: str) -> ClientObserver:
        def opening(client: str) -> str:
            heard.append((who, "opening", client))
            return trace

        return ClientObserver(
            opening=opening,
            closed=lambda client: heard.append((who, "closed", client)),
            answered=lambda client, told, reply, size: heard.append((who, told.phase, reply.sequence, size)),
        )

    observer = listening("a", "").beside(listening("b", "00-1-2-01"))
    assert observer.opening("c") == "00-1-2-01"
    observer.answered("c", pb.Instruction(phase="train"), pb.Reply(sequence=7), 80)
    observer.closed("c")
    assert heard == [
        *(("a", "opening", "c"), ("b", "opening", "c")),
        *(("a", "train", 7, 80), ("b", "train", 7, 80)),
        *(("a", "closed", "c"), ("b", "closed", "c")),
    ]
