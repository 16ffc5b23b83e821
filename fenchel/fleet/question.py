"""Questions: requests to clients before they are sent, with values equal for all clients or different for each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Generic, Protocol, TypeVar

import numpy as np

from fenchel.common.settings.run import Network
from fenchel.common.wire.frames import Body
from fenchel.common.wire.payload import encode
from fenchel.common.wire.schema import Expectation, Expected, Form, Spec, check, spec_of
from fenchel.common.wire.values import Value, Values
from fenchel.fleet.collectors import Collector
from fenchel.fleet.memory_budget import Size
from fenchel.proto import fenchel_pb2 as pb

T = TypeVar("T")


@dataclass(frozen=True)
class Each(Generic[T]):
    """A value of a message that differs between clients.

    It replaces a value that is sent to a cohort, or a schema in ``returns``. Any other value is the same for all
    clients and is encoded once.

    Parameters
    ----------
    values : Mapping[str, T]
        Value for each client, by client id. Every client of the cohort needs one.

    Examples
    --------
    >>> import fenchel
    >>> step_size = fenchel.Each({"client-000": 0.1, "client-001": 0.05})
    >>> step_size.values["client-001"]
    0.05
    """

    values: Mapping[str, T]


def for_client(values: Mapping[str, T | Each[T]], client: str) -> dict[str, T]:
    """Return a message's values for one client, with each :class:`Each` replaced by the client's own value."""
    return {name: value.values[client] if isinstance(value, Each) else value for name, value in values.items()}


@dataclass(frozen=True, kw_only=True)
class Question:
    """A request to clients, before it is sent.

    Attributes
    ----------
    phase
        Name of the phase, which selects the handler of the client half.
    kind
        ``pb.ASK``, or ``pb.INSPECT`` for a phase that changes no state.
    clients
        Client ids in order.
    values
        Values to send.
    returns
        Schema of the replies. Other replies are rejected.
    verify
        Function of a client id and its values that raises ``PayloadError`` if the values contradict each other.
    deadline
        Deadline that the algorithm gives, in seconds; ``None``: the deadline of the settings.
    min_replies
        Quorum that the algorithm gives; ``None``: the quorum of the settings.
    waits
        True if the run may wait for the quorum beyond the deadline, provided that the settings permit it.
    """

    phase: str
    kind: pb.Kind.ValueType
    clients: tuple[str, ...]
    values: Mapping[str, Value | Each[Value]]
    returns: Mapping[str, Expected | Each[Expected]]
    verify: Callable[[str, Values], None] | None = None
    deadline: float | None = None
    min_replies: int | None = None
    waits: bool = True

    @property
    def forms(self) -> dict[str, Form]:
        """Declared form of each value of the replies, by name."""
        specs = {
            name: next(iter(each.values.values()), None) if isinstance(each, Each) else each
            for name, each in self.returns.items()
        }
        return {name: "clear" if spec is None else spec_of(spec).form for name, spec in specs.items()}

    def sizes(self, clients: Iterable[str]) -> dict[str, Size]:
        """Return bounds on the bytes of each client's reply, by client id."""
        if self._shared_returns is None:
            return {client: Size.of(for_client(self.returns, client)) for client in clients}
        return dict.fromkeys(clients, Size.of(self._shared_returns))

    def check(self, t: int, client: str, reply: Values, finite: bool) -> None:
        """Raise ``PayloadError`` unless a client's reply in round ``t`` matches the schema and passes ``verify``.

        Parameters
        ----------
        t
            Number of the round.
        client
            Id of the client.
        reply
            Values of the reply.
        finite
            True if the arrays are known to be finite.
        """
        wanted: Expectation | None = self._shared_returns
        if wanted is None:
            wanted = for_client(self.returns, client)
        check(reply, wanted, finite=finite, round=t, phase=self.phase, client=client)
        if self.verify is not None:
            self.verify(client, reply)

    @cached_property
    def _shared_returns(self) -> dict[str, Spec] | None:
        """Schema of a reply if all clients have the same schema, otherwise ``None``."""
        if any(isinstance(each, Each) for each in self.returns.values()):
            return None
        returns: dict[str, Expected] = for_client(self.returns, "")
        return {name: spec_of(expected) for name, expected in returns.items()}


class Questioner(Protocol):
    """Interface that sends requests and promises to clients, implemented in ``fenchel/fleet/fleet.py``."""

    network: Network

    async def exchange(self, question: Question, collector: Collector, /) -> list[str]:
        """Send a request to its clients, wait for replies, and return the sorted ids of clients whose replies count.

        Raises
        ------
        TooFewRepliesError, LostStateError, SettingsError, PayloadError, KeyError, RuntimeError
            See :meth:`fenchel.fleet.cohort.Cohort.ask`.
        """
        ...

    def tell(self, phase: str, clients: Iterable[str], values: Mapping[str, Value | Each[Value]], /) -> None:
        """Queue an instruction that each client applies before any later request, also after a restart."""
        ...


def bodies(clients: Iterable[str], values: Mapping[str, Value | Each[Value]]) -> Iterator[tuple[str, Body]]:
    """Yield each client id with the body of its instruction. A body that is the same for all clients is encoded once.

    If a client has no value, a ``KeyError`` is raised before the first body, so that no instruction has been sent.
    """
    if each := {name: value.values for name, value in values.items() if isinstance(value, Each)}:
        clients = tuple(clients)
        for name, held in each.items():
            if missing := next((client for client in clients if client not in held), None):
                raise KeyError(f"{name!r} has no value for {missing}")
        for client in clients:
            yield client, _encoded(for_client(values, client))
    else:
        shared = _encoded(for_client(values, ""))
        for client in clients:
            yield client, shared


def _encoded(values: dict[str, Value]) -> Body:
    """Encode values for sending.

    If the body refers to the arrays' own memory, the arrays become read-only, because frames are made from them only
    when they are sent.
    """
    body = Body(encode(values))
    if body.refers_to_arrays:
        for value in values.values():
            if isinstance(value, np.ndarray):
                value.flags.writeable = False
    return body
