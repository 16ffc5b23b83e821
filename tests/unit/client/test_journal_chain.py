"""Whatever happens to a server and a client, the journal holds what any checkpoint needs, and little more."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from fenchel.client.journal import Journal
from fenchel.common.arrays import Vector
from fenchel.fleet.calls import Call
from fenchel.fleet.client_record import ClientRecord
from fenchel.fleet.collectors import GatherCollector
from fenchel.fleet.request import Request
from fenchel.proto import fenchel_pb2 as pb
from fenchel.server import checkpoint as checkpoints
from fenchel.server.checkpoint import Checkpoint
from tests.reservations import roomy
from tests.unit.server.conftest import body

NAME = "client-0"


@dataclass
class State:
    """Of the client: the instructions whose effects it holds, in order."""

    done: Vector


@dataclass
class ServerState:
    round: int = 0


@dataclass
class Saved:
    """A checkpoint, and the instructions that count in it."""

    checkpoint: Checkpoint
    chain: list[int]

    @property
    def base(self) -> int:
        base = self.checkpoint.members[NAME]["base"]
        assert isinstance(base, int)
        return base


@dataclass
class Federation:
    """A server with its last two checkpoints, and a client; as one thread of events."""

    folder: Path
    member: ClientRecord = field(default_factory=lambda: ClientRecord(NAME))
    chain: list[int] = field(default_factory=list)
    epoch: int = 0
    sent: set[int] = field(default_factory=set)  # on the stream that is open

    def __post_init__(self) -> None:
        self.journal = Journal(State(np.empty(0)), self.folder)
        self.last = self.before = self._taken()

    def _taken(self) -> Saved:
        members = {NAME: self.member}
        return Saved(checkpoints.take("run", 0, self.epoch, ServerState(), members), list(self.chain))

    def _hello(self) -> pb.Hello:
        return pb.Hello(snapshots=self.journal.snapshots)

    def _come_back(self) -> None:
        """Open a new stream."""
        assert self.member.can_restore(self._hello())
        self.member.confirm(self._hello())
        self.sent.clear()

    def _handle(self, call: Call) -> None:
        head = call.head(self.member.low_water_mark)
        self.journal.forget(head.low_water_mark, head.base, head.sequence)
        if self.journal.reply_to(head.sequence) is None:
            done = self.journal.state_after(head.base).done
            self.journal.record(head.sequence, State(np.append(done, head.sequence)), {})
        reply = self.journal.reply_to(head.sequence)
        assert reply == {}

    def _deliver(self, confirmed: bool = False) -> None:
        """Send all that is open and was not sent on this stream, in order; confirmations may be lost."""
        for call in list(self.member.outstanding.values()):
            if call.sequence not in self.sent:
                self.sent.add(call.sequence)
                self._handle(call)
            if confirmed and call.kind == pb.TELL:
                self.member.resolve(call)

    def _asked(self) -> Call:
        request = Request(
            phase="solve",
            t=1,
            collector=GatherCollector(),
            check=lambda client, values, finite: None,
            deadline=1.0,
            reservation=roomy(),
        )
        return self.member.post("solve", 1, pb.ASK, body(), request)

    def answer(self) -> None:
        """Ask, and count the answer."""
        call = self._asked()
        self._deliver()
        self.member.count(call)
        self.member.resolve(call)
        self.chain.append(call.sequence)
        assert not self.member.outstanding, "the answer proves all promises kept"
        assert self.journal.state_after(call.sequence).done.tolist() == self.chain
        self._holds_little(call)

    def late(self) -> None:
        """Ask, and go on before the answer comes."""
        call = self._asked()
        self._deliver()
        self.member.resolve(call)
        self._holds_little(call)

    def unheard(self) -> None:
        """Ask a client that is away."""
        self.member.resolve(self._asked())

    def promise(self) -> None:
        """Tell a client that is away."""
        self.chain.append(self.member.post("shift", 1, pb.TELL, body()).sequence)

    def tell(self) -> None:
        """Tell; the confirmation is lost."""
        self.promise()
        self._deliver()

    def confirm(self) -> None:
        """Tell, and hear that it is done."""
        self.promise()
        self._deliver(confirmed=True)

    def save(self) -> None:
        """Write a checkpoint."""
        self.before, self.last = self.last, self._taken()
        self.member.low_water_mark = self.before.base

    def restart_client(self) -> None:
        """Kill the client, and start it again."""
        self.journal = Journal(State(np.empty(0)), self.folder)
        self._come_back()
        self._deliver()

    def resume(self) -> None:
        """Kill the server, and resume the run from its last checkpoint."""
        self._restored(self.last)

    def resume_previous(self) -> None:
        """Resume the run from the checkpoint before the last one."""
        self.last = self.before
        self.epoch += 1
        self._restored(self.before)

    def _restored(self, saved: Saved) -> None:
        members = replace(saved.checkpoint, epoch=self.epoch).restore()
        self.epoch += 1
        self.member, self.chain = members[NAME], list(saved.chain)
        self._come_back()

    def reaches_back(self) -> None:
        """Either checkpoint can be gone back to: the state that counts there is at hand, or can be computed."""
        for saved in (self.last, self.before):
            member = saved.checkpoint.restore()[NAME]
            assert member.can_restore(self._hello())
            first = next(member.pending_tells(), None)
            if first is None:
                assert self.journal.state_after(member.base).done.tolist() == saved.chain

    def _holds_little(self, call: Call) -> None:
        """Of what did not count, only the last answer is left."""
        assert set(self.journal.snapshots) <= {*self.chain, call.sequence}
        assert all(kept >= min(self.member.low_water_mark, call.base) for kept in self.journal.snapshots)


EVENTS: list[Callable[[Federation], None]] = [
    Federation.answer,
    Federation.late,
    Federation.unheard,
    Federation.promise,
    Federation.tell,
    Federation.confirm,
    Federation.save,
    Federation.restart_client,
    Federation.resume,
    Federation.resume_previous,
]


@settings(max_examples=300, deadline=None)
@given(events=st.lists(st.sampled_from(EVENTS), max_size=30))
def test_every_checkpoint_finds_its_state_and_what_never_counted_is_dropped(
    events: list[Callable[[Federation], None]],
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        federation = Federation(Path(folder))
        for event in events:
            event(federation)
            federation.reaches_back()
        federation.answer()
