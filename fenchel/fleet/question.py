"""A question to some clients, before anything of it is sent."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np

from fenchel.common.settings.run import Network
from fenchel.common.wire.frames import Body
from fenchel.common.wire.payload import encode
from fenchel.common.wire.schema import Expectation, Expected, Form, Spec, check, spec_of
from fenchel.common.wire.values import Value, Values
from fenchel.fleet.addressing import Each, for_client
from fenchel.fleet.collectors import Collector
from fenchel.fleet.memory_budget import Size
from fenchel.proto import fenchel_pb2 as pb


@dataclass(frozen=True, kw_only=True)
class Question:
    """A phase asked of some clients.

    Attributes
    ----------
    phase, kind
        Which handler of the client half answers, and whether that changes its state.
    clients
        Client ids in order.
    values
        Sent to the clients.
    returns
        What each reply must hold; anything else is refused.
    verify
        Raises ``PayloadError`` for a client whose values, as expected one by one, cannot be true together.
    deadline, min_replies
        Seconds, and number of replies, that the algorithm wants; ``None``: what the settings say.
    waits
        Whether the run waits for its quorum beyond the deadline, where the settings say so.
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
        """In what form each value of the replies is declared to come."""
        specs = {
            name: next(iter(each.values.values()), None) if isinstance(each, Each) else each
            for name, each in self.returns.items()
        }
        return {name: "clear" if spec is None else spec_of(spec).form for name, spec in specs.items()}

    def sizes(self, clients: Iterable[str]) -> dict[str, Size]:
        """Return how large the replies of clients can be."""
        if self._shared_returns is None:
            return {client: Size.of(for_client(self.returns, client)) for client in clients}
        return dict.fromkeys(clients, Size.of(self._shared_returns))

    def check(self, t: int, client: str, reply: Values, finite: bool) -> None:
        """Raise a ``PayloadError`` unless a reply in round ``t`` is what was asked for.

        Parameters
        ----------
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
        """Values of a reply, where these are the same for all clients; else ``None``."""
        if any(isinstance(each, Each) for each in self.returns.values()):
            return None
        returns: dict[str, Expected] = for_client(self.returns, "")
        return {name: spec_of(expected) for name, expected in returns.items()}


class Questioner(Protocol):
    """A carrier of questions to clients; ``fenchel/fleet/fleet.py`` has the implementation."""

    network: Network

    async def exchange(self, question: Question, collector: Collector, /) -> list[str]:
        """Put a question to its clients, and wait; return those whose replies count, in order of ids.

        Raises
        ------
        TooFewRepliesError, LostStateError, SettingsError, RuntimeError
            See :meth:`fenchel.fleet.cohort.Cohort.ask`.
        """
        ...

    def tell(self, phase: str, clients: Iterable[str], values: Mapping[str, Value | Each[Value]], /) -> None:
        """Give clients an instruction that they will carry out whatever happens."""
        ...


def bodies(clients: Iterable[str], values: Mapping[str, Value | Each[Value]]) -> Iterator[tuple[str, Body]]:
    """Yield the body of each client's instruction; what is the same for all is encoded once.

    A KeyError for a client without a value comes before the first body: no instruction is then on its way.
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
    """Encode values; arrays that will be sent without a copy become read-only, so that no change slips in."""
    body = Body(encode(values))
    if body.refers_to_arrays:
        for value in values.values():
            if isinstance(value, np.ndarray):
                value.flags.writeable = False
    return body
