"""The server's checkpoint: everything that a restarted server needs, in one atomic file."""

from __future__ import annotations

import copy
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from google.protobuf.json_format import MessageToDict, ParseDict
from google.protobuf.message import DecodeError

from common import store
from common.errors import CheckpointError
from common.frames import Body
from common.payload import Encoded, Value
from common.state import freeze, thaw
from proto import fenchel_pb2 as pb
from server.calls import Call
from server.member import EPOCH_BITS, Member

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

_LARGE_BYTES = 64 << 20  # a state beyond this is written in place of being copied first


@dataclass(frozen=True)
class _Promise:
    """An unconfirmed ``tell``."""

    client: str
    sequence: int
    base: int
    phase: str
    round: int
    body: int


@dataclass(frozen=True)
class Checkpoint:
    """The run after some round.

    Attributes
    ----------
    run
        The run's id.
    round
        The last round that is done; 0: the algorithm has been set up.
    epoch
        How often the run has been resumed.
    values
        The algorithm's state (:func:`common.state.freeze`), and the bodies of unconfirmed promises.
    members
        What is kept of each client, by id.
    promises
        Unconfirmed ``tell`` instructions, in order.
    """

    run: str
    round: int
    epoch: int
    values: dict[str, Value]
    members: dict[str, dict[str, Any]]
    promises: tuple[_Promise, ...]

    @property
    def is_large(self) -> bool:
        """Whether the state refers to the algorithm's own arrays, which must not change until it is written."""
        return _is_large(self.values)

    def state(self, kind: type[Any]) -> Any:
        """Rebuild the algorithm's state.

        Raises
        ------
        CheckpointError
            Another version of the algorithm wrote it.
        """
        return thaw(kind, self.values)

    def restore(self) -> dict[str, Member]:
        """Rebuild the members; their next instructions are numbered above all that were ever sent."""
        members = {}
        for index, (name, kept) in enumerate(sorted(self.members.items())):
            members[name] = Member(
                name,
                index,
                shard=ParseDict(kept["shard"], pb.ShardDescription()),
                base=kept["base"],
                reach=kept["base"],
                next_sequence=(self.epoch + 1 << EPOCH_BITS) + 1,
                lost=kept["lost"],
            )
        bodies: dict[int, Body] = {}
        for promise in self.promises:
            if promise.body not in bodies:
                bodies[promise.body] = self._body(promise.body)
            call = Call(
                promise.client,
                promise.sequence,
                promise.base,
                promise.phase,
                promise.round,
                pb.TELL,
                bodies[promise.body],
            )
            members[promise.client].outstanding[call.sequence] = call
        return members

    def _body(self, number: int) -> Body:
        descriptor, content = self.values[f"promise/{number}"], self.values[f"promise/{number}/body"]
        assert isinstance(descriptor, np.ndarray)
        assert isinstance(content, np.ndarray)
        return Body(Encoded(pb.Payload.FromString(descriptor.tobytes()), (content.data,), content.nbytes))


def take(run: str, t: int, epoch: int, state: DataclassInstance, members: dict[str, Member]) -> Checkpoint:
    """Take a checkpoint after round ``t``, when no question is open."""
    values = freeze(state)
    if not _is_large(values):
        values = copy.deepcopy(values)
    promises: list[_Promise] = []
    numbers: dict[int, int] = {}
    for member in members.values():
        for call in member.tells():
            assert call.body is not None, "a promise is kept until it is confirmed"
            number = numbers.setdefault(id(call.body), len(numbers))
            if f"promise/{number}" not in values:
                values[f"promise/{number}"] = np.frombuffer(call.body.payload, np.uint8)
                values[f"promise/{number}/body"] = np.frombuffer(call.body.content(), np.uint8)
            promises.append(_Promise(call.client, call.sequence, call.base, call.phase, call.round, number))
    kept = {
        member.name: {
            "base": member.base,
            "lost": member.lost,
            "shard": MessageToDict(member.shard or pb.ShardDescription()),
        }
        for member in members.values()
    }
    return Checkpoint(run, t, epoch, values, kept, tuple(promises))


def _is_large(values: dict[str, Value]) -> bool:
    return sum(value.nbytes for value in values.values() if isinstance(value, np.ndarray)) > _LARGE_BYTES


def save(path: Path, checkpoint: Checkpoint, *, sync: bool) -> None:
    """Write a checkpoint atomically."""
    about = {
        "run": checkpoint.run,
        "round": checkpoint.round,
        "epoch": checkpoint.epoch,
        "members": checkpoint.members,
        "promises": [asdict(promise) for promise in checkpoint.promises],
    }
    store.write(path, {"about": json.dumps(about), **checkpoint.values}, sync=sync)


def load(path: Path) -> Checkpoint:
    """Read a checkpoint.

    Raises
    ------
    CheckpointError
        The file is missing, damaged, or of another version.
    """
    values = store.read(path)
    try:
        about = json.loads(str(values.pop("about")))
        promises = tuple(_Promise(**promise) for promise in about["promises"])
        return Checkpoint(about["run"], about["round"], about["epoch"], values, about["members"], promises)
    except (KeyError, TypeError, ValueError, DecodeError) as error:
        raise CheckpointError(f"{path}: not a checkpoint of this version ({error})") from error
