"""Client status: the state of each client of a run at one moment, for the dashboard and metrics."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, get_args

from fenchel.fleet.client_record import ClientRecord
from fenchel.proto import fenchel_pb2 as pb
from fenchel.server.membership.admission import Admission

State = Literal["joined", "connected", "away", "lost"]
"""State of a client. A client that has ``joined`` waits for the other clients, or for the next round. A client that is
``away`` has lost its connection, and the settings determine whether the run waits for it. A client that is ``lost`` is
out of the run."""

STATES: tuple[State, ...] = get_args(State)


@dataclass(frozen=True)
class OpenInstruction:
    """An instruction that a client has not answered yet.

    Attributes
    ----------
    phase, round
        Name of the phase and number of the round.
    kind
        Kind of the instruction: ``ask``, ``tell`` or ``inspect``.
    since_unix
        Time when the instruction was queued, in seconds since 1970.
    """

    phase: str
    round: int
    kind: str
    since_unix: float


@dataclass(frozen=True)
class ClientStatus:
    """Status of one client.

    Attributes
    ----------
    client
        Id of the client.
    state
        State of the client (:data:`State`).
    since_unix
        Time of the last connection or disconnection, in seconds since 1970; ``None``: not connected yet.
    streams
        Number of streams that the client has opened.
    samples
        Number of samples; ``None`` before the client has described its data.
    awaited
        True if all phases wait for the client, False if it missed too many deadlines (``participation.patience``).
    question
        Oldest open instruction, if any.
    offset_s, offset_error_s
        Server's clock minus the client's, and bound on the error, in seconds; ``None``: not known.
    """

    client: str
    state: State
    since_unix: float | None
    streams: int
    samples: int | None
    awaited: bool
    question: OpenInstruction | None
    offset_s: float | None
    offset_error_s: float | None


def client_statuses(admission: Admission) -> list[ClientStatus]:
    """Return the status of every client, in the order of ids. Call this on the event loop of the run."""
    found = {member.name: _status(member) for member in admission.members.values()}
    found |= {name: _joined(name) for name in _waiting(admission)}
    return [found[name] for name in sorted(found)]


def state_of(member: ClientRecord) -> State:
    """Return the state of a client of the run."""
    if member.lost is not None:
        return "lost"
    return "connected" if member.connected else "away" if member.streams else "joined"


def _waiting(admission: Admission) -> Iterable[str]:
    instances = admission.registration.instances
    return (name for name, given in instances.items() if given and name not in admission.members)


def _joined(name: str) -> ClientStatus:
    return ClientStatus(name, "joined", None, 0, None, True, None, None, None)


def _status(member: ClientRecord) -> ClientStatus:
    call = next(iter(member.outstanding.values()), None)
    offset = member.clock.at(time.time_ns())
    return ClientStatus(
        client=member.name,
        state=state_of(member),
        since_unix=member.changed_unix if member.streams else None,
        streams=member.streams,
        samples=None if member.shard is None else member.shard.samples,
        awaited=not member.availability.suspected,
        question=None
        if call is None
        else OpenInstruction(call.phase, call.round, pb.Kind.Name(call.kind).lower(), call.queued_unix_ns / 1e9),
        offset_s=None if offset is None else offset.ns / 1e9,
        offset_error_s=None if offset is None else offset.error_ns / 1e9,
    )
