"""The server's checkpoint: the complete state of a run in one file, which is replaced atomically.

The previous checkpoint is kept, too. If the last one is damaged, the run resumes from the previous one. Clients
therefore keep the snapshots that the previous checkpoint needs.
"""

from __future__ import annotations

import json
import logging
import os
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from google.protobuf.json_format import MessageToDict, ParseDict, ParseError
from google.protobuf.message import DecodeError

from fenchel.common.accounting.accountant import Release
from fenchel.common.errors import CheckpointError
from fenchel.common.storage import store
from fenchel.common.storage.run_folder import RunFolder
from fenchel.common.storage.state import freeze, thaw
from fenchel.common.wire.codecs import codec_of
from fenchel.common.wire.frames import Body
from fenchel.common.wire.payload import Encoded
from fenchel.common.wire.values import Value
from fenchel.fleet.availability import Absence, Availability
from fenchel.fleet.calls import Call
from fenchel.fleet.client_record import EPOCH_BITS, ClientRecord
from fenchel.proto import fenchel_pb2 as pb

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

log = logging.getLogger("fenchel.server")

_LARGE_BYTES = 64 << 20  # size in bytes above which a state is written without a copy


@dataclass(frozen=True, kw_only=True)
class _Promise:
    """A ``tell`` instruction that its client has not confirmed; ``body`` is the number of its body in the values."""

    client: str
    sequence: int
    base: int
    phase: str
    round: int
    body: int


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """State of a run after a round.

    Attributes
    ----------
    run
        Id of the run.
    round
        Number of the last completed round; 0: the algorithm has been set up.
    epoch
        Epoch of the sequence numbers: 0 for a new run, and higher after each resume.
    values
        State of the algorithm (:func:`fenchel.common.storage.state.freeze`), and bodies of unconfirmed promises.
    members
        Persistent part of each client record, by client id.
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
        """True if the values exceed 64 MiB.

        They may then be the algorithm's own arrays, which must not change until the checkpoint is written.
        """
        return _is_large(self.values)

    def state(self, kind: type[Any]) -> Any:
        """Return the algorithm's state, rebuilt from the values."""
        return thaw(kind, self.values)

    def restore(self) -> dict[str, ClientRecord]:
        """Return the client records by client id, with their unconfirmed promises.

        Their next sequence numbers exceed all that were used before.
        """
        members = {}
        for name, kept in sorted(self.members.items()):
            members[name] = ClientRecord(
                name,
                shard=ParseDict(kept["shard"], pb.ShardDescription()),
                base=kept["base"],
                next_sequence=(self.epoch + 1 << EPOCH_BITS) + 1,
                lost=kept["lost"],
                spent=kept.get("spent"),
                release=Release(*kept["release"]) if "release" in kept else None,
                uploads=Counter({Release(*release): int(count) for *release, count in kept.get("uploads", ())}),
                availability=Availability(absence=Absence(**kept.get("absence", {}))),
            )
        bodies: dict[int, Body] = {}
        for promise in self.promises:
            if promise.body not in bodies:
                bodies[promise.body] = self._body(promise.body)
            call = Call(
                client=promise.client,
                sequence=promise.sequence,
                base=promise.base,
                phase=promise.phase,
                round=promise.round,
                kind=pb.TELL,
                body=bodies[promise.body],
            )
            members[promise.client].enqueue(call)
        return members

    def _body(self, number: int) -> Body:
        descriptor, content = self.values[f"promise/{number}"], self.values[f"promise/{number}/body"]
        if not isinstance(descriptor, np.ndarray) or not isinstance(content, np.ndarray):
            raise TypeError(f"promise {number} is no array")
        return Body(Encoded(pb.Payload.FromString(descriptor.tobytes()), (content.data,), content.nbytes))


class _KeptRecord(NamedTuple):
    """Persistent part of a client record, which :meth:`Checkpoint.restore` reads."""

    name: str
    base: int
    lost: str | None
    spent: str | None
    shard: pb.ShardDescription | None
    absence: Absence
    release: Release | None
    uploads: tuple[tuple[Release, int], ...]

    @classmethod
    def of(cls, member: ClientRecord) -> _KeptRecord:
        """Return the part of a record, which refers to what is immutable."""
        return cls(
            member.name,
            member.base,
            member.lost,
            member.spent,
            member.shard,
            member.availability.absence,
            member.release,
            tuple(member.uploads.items()),
        )

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON has them, without those that most clients lack."""
        kept: dict[str, Any] = {
            "base": self.base,
            "lost": self.lost,
            "shard": MessageToDict(self.shard or pb.ShardDescription()),
        }
        if self.spent is not None:
            kept["spent"] = self.spent
        if self.absence.missed:
            kept["absence"] = asdict(self.absence)
        if self.release is not None:
            kept["release"] = _row(self.release)
            kept["uploads"] = [[*_row(release), count] for release, count in self.uploads]
        return kept


def _row(release: Release) -> list[float]:
    return [release.noise_multiplier, release.sampling_rate]


@dataclass(frozen=True)
class RoundSnapshot:
    """State of a run between two rounds, in memory, from which a checkpoint can be made.

    The algorithm's state is copied unless it is large. Everything else is immutable and only referenced. A snapshot may
    be taken only while no request is open.

    Attributes
    ----------
    round
        Number of the last completed round.
    values
        State of the algorithm (:func:`fenchel.common.storage.state.freeze`).
    members
        Persistent part of each client record.
    promises
        Unconfirmed ``tell`` instructions with their bodies, in order.
    """

    round: int
    values: dict[str, Value]
    members: tuple[_KeptRecord, ...]
    promises: tuple[tuple[Call, Body], ...]

    @classmethod
    def of(
        cls, t: int, state: DataclassInstance, members: Iterable[ClientRecord], before: RoundSnapshot | None = None
    ) -> RoundSnapshot:
        """Take a snapshot after round ``t``. A large state (:attr:`Checkpoint.is_large`) is not copied.

        Parameters
        ----------
        t
            Number of the last completed round.
        state
            State of the algorithm.
        members
            Client records of the run.
        before
            Earlier snapshot that is no longer needed, whose memory is reused.
        """
        values = freeze(state)
        if not _is_large(values):
            values = _copied(values, {} if before is None else before.values)
        kept, promises = [], []
        for member in members:
            kept.append(_KeptRecord.of(member))
            for call in member.pending_tells():
                assert call.body is not None, "a promise is kept until it is confirmed"
                promises.append((call, call.body))
        return cls(t, values, tuple(kept), tuple(promises))

    @property
    def is_large(self) -> bool:
        """True if the state exceeds 64 MiB, so that the values are the algorithm's own arrays."""
        return _is_large(self.values)

    def checkpoint(self, run: str, epoch: int) -> Checkpoint:
        """Return the checkpoint of run ``run`` in epoch ``epoch``. It takes over the values of this snapshot."""
        values = self.values
        promises: list[_Promise] = []
        numbers: dict[int, int] = {}
        for call, body in self.promises:
            number = numbers.setdefault(id(body), len(numbers))
            if f"promise/{number}" not in values:
                values[f"promise/{number}"] = np.frombuffer(body.payload, np.uint8)
                values[f"promise/{number}/body"] = np.frombuffer(body.content(), np.uint8)
            promise = _Promise(
                client=call.client,
                sequence=call.sequence,
                base=call.base,
                phase=call.phase,
                round=call.round,
                body=number,
            )
            promises.append(promise)
        kept = {member.name: member.to_json() for member in self.members}
        return Checkpoint(run=run, round=self.round, epoch=epoch, values=values, members=kept, promises=tuple(promises))


def take(run: str, t: int, epoch: int, state: DataclassInstance, members: Mapping[str, ClientRecord]) -> Checkpoint:
    """Return the checkpoint of a run after round ``t``. No request may be open."""
    return RoundSnapshot.of(t, state, members.values()).checkpoint(run, epoch)


def _copied(values: dict[str, Value], memory: dict[str, Value]) -> dict[str, Value]:
    """Return copies of values, in arrays of ``memory`` if name and layout match: new pages cost more than the copy."""
    copies: dict[str, Value] = {}
    for name, value in values.items():
        place = memory.get(name)
        if (
            isinstance(value, np.ndarray)
            and isinstance(place, np.ndarray)
            and (place.shape, place.dtype, place.strides) == (value.shape, value.dtype, value.strides)
        ):
            np.copyto(place, value)
            copies[name] = place
        else:
            codec = codec_of(type(value))
            copies[name] = value if codec is None else codec.detached(value)
    return copies


def _is_large(values: dict[str, Value]) -> bool:
    return sum(value.nbytes for value in values.values() if isinstance(value, np.ndarray)) > _LARGE_BYTES


def save(folder: RunFolder, checkpoint: Checkpoint, *, sync: bool) -> None:
    """Write a checkpoint atomically, and keep the previous one.

    Parameters
    ----------
    folder
        Run folder.
    checkpoint
        Checkpoint to write.
    sync
        True if the file must survive a loss of power.
    """
    _write(folder.checkpoint, checkpoint, previous=folder.previous_checkpoint, sync=sync)


def renew(folder: RunFolder, checkpoint: Checkpoint, *, sync: bool) -> None:
    """Write the checkpoint that a run was resumed from again, with its new epoch.

    The previous checkpoint gets the new epoch, too. So no sequence number is used twice, even if the run is later
    resumed from that one.
    """
    try:
        before = load(folder.previous_checkpoint)
    except CheckpointError:
        before = None  # no usable previous checkpoint
    if before is not None:
        _write(folder.previous_checkpoint, replace(before, epoch=checkpoint.epoch), sync=sync)
    _write(folder.checkpoint, checkpoint, sync=sync)


def _write(path: Path, checkpoint: Checkpoint, *, previous: Path | None = None, sync: bool) -> None:
    about = {
        "run": checkpoint.run,
        "round": checkpoint.round,
        "epoch": checkpoint.epoch,
        "members": checkpoint.members,
        "promises": [asdict(promise) for promise in checkpoint.promises],
    }
    store.write(path, {"about": json.dumps(about), **checkpoint.values}, previous=previous, sync=sync)


_NOT_LEFT = "or begin a new run, because there is no other checkpoint"
_LAST_IS_LEFT = "or continue from the last checkpoint, which is intact, with --resume RUN without --previous"


def newest(folder: RunFolder) -> Checkpoint:
    """Return the last checkpoint of a run. If it is damaged, replace it by the previous one, and return that one.

    Raises
    ------
    CheckpointError
        If no checkpoint was written, or none is usable.
    """
    try:
        return load(folder.checkpoint)
    except CheckpointError as damage:
        if not folder.can_be_resumed:
            raise CheckpointError(
                "the run has no checkpoint to continue from; begin a new run", source=folder.path
            ) from None
        if not folder.previous_checkpoint.exists():
            raise CheckpointError(f"{damage}, {_NOT_LEFT}") from damage
        log.error("%s. The server tries the previous checkpoint", damage)
        return before_last(folder)


def before_last(folder: RunFolder) -> Checkpoint:
    """Replace the last checkpoint by the previous one, and return it, with a new epoch.

    The last checkpoint is renamed to ``checkpoint/damaged``.

    Raises
    ------
    CheckpointError
        If the previous checkpoint is missing or damaged.
    """
    try:
        found = load(folder.previous_checkpoint)
    except CheckpointError as damage:
        left = _LAST_IS_LEFT if _is_whole(folder.checkpoint) else _NOT_LEFT
        raise CheckpointError(f"{damage}, {left}") from damage
    with store.writing(folder.checkpoint):
        if folder.checkpoint.exists():
            folder.checkpoint.replace(folder.checkpoint.with_name("damaged"))
        os.link(folder.previous_checkpoint, folder.checkpoint)
    log.warning("the run continues from the previous checkpoint, after round %d", found.round)
    # The replaced checkpoint may belong to a later epoch, whose sequence numbers must not be used again.
    return replace(found, epoch=found.epoch + 1)


def _is_whole(path: Path) -> bool:
    try:
        load(path)
    except CheckpointError:
        return False
    return True


def load(path: Path) -> Checkpoint:
    """Read a checkpoint. Raise ``CheckpointError`` if it is missing, damaged or of an incompatible version."""
    values = store.read(path)
    try:
        about = json.loads(str(values.pop("about")))
        promises = tuple(_Promise(**promise) for promise in about["promises"])
        found = Checkpoint(
            run=about["run"],
            round=about["round"],
            epoch=about["epoch"],
            values=values,
            members=about["members"],
            promises=promises,
        )
        found.restore()  # detect an unusable checkpoint while the previous one still exists
    except (
        AttributeError,
        KeyError,
        TypeError,
        ValueError,
        RecursionError,
        DecodeError,
        ParseError,
        SystemError,  # protobuf raises SystemError for an unpaired surrogate
    ) as error:
        raise CheckpointError(
            f"not a checkpoint of this version of Fenchel ({error}); continue with the version that wrote it",
            source=path,
        ) from error
    return found
