"""The registration of clients, until the fleet is complete and after that."""

from __future__ import annotations

import asyncio
import time
from typing import Literal

from fenchel.common.errors import IdentityInUseError, JoinRefusedError, RunStoppedError
from fenchel.common.untrusted_text import sanitize
from fenchel.common.version import PROTOCOL
from fenchel.fleet.client_record import ClientRecord
from fenchel.proto import fenchel_pb2 as pb

_SOFTWARE = 80  # largest number of characters shown of a client's software name in an error
# longest delay in seconds of a reply while the fleet is incomplete; the client then calls again
_POLL_SECONDS = 10.0


class Registration:
    """Registration of the clients of a run.

    Attributes
    ----------
    instances
        Identifiers of the processes of the clients that have joined, by client id.
    withdrawn
        Kinds of the errors by which such processes have ended, by client id, until the client joins again.

    Parameters
    ----------
    expected
        Number of clients; ``None``: all that join until ``settle`` seconds pass without a new one.
    settle
        Seconds without a new client after which the fleet is complete, if ``expected`` is ``None``.
    names
        Ids of the clients of a resumed run; empty for a new run.
    late_joiners
        Setting ``participation.late_joiners``: ``admit`` lets clients join after the fleet is complete.
    """

    def __init__(
        self,
        expected: int | None,
        settle: float,
        names: tuple[str, ...] = (),
        late_joiners: Literal["refuse", "admit"] = "refuse",
    ) -> None:
        self._late_joiners = late_joiners
        self.expected = len(names) if names else expected
        self.instances: dict[str, bytes | None] = dict.fromkeys(names)
        self._settle = settle
        self._newest = time.monotonic()
        self._complete = asyncio.Event()
        self._indices: dict[str, int] = {}
        self._refusal = ""
        self.withdrawn: dict[str, str] = {}
        if names:
            self._close()

    @property
    def names(self) -> list[str]:
        """Sorted ids of the clients that have joined; once the fleet is complete, without late joiners."""
        return sorted(self._indices or self.instances.keys() - self.withdrawn.keys())

    @property
    def joined(self) -> int:
        """Number of clients that have joined and whose processes have not ended by an error."""
        return len(self.instances) - len(self.withdrawn)

    def is_late(self, name: str) -> bool:
        """Return True if a client joined after the fleet was complete."""
        return bool(self._indices) and name in self.instances and name not in self._indices

    async def join(self, request: pb.JoinRequest, *, member: ClientRecord | None = None) -> pb.Assignment | None:
        """Register a client, and return its assignment when the fleet is complete.

        Parameters
        ----------
        request
            Request of the client, whose identity has been verified.
        member
            Record of the client in the run; ``None``: the run has none yet. After the end of the run, only members
            receive an assignment, so that they can open a stream and receive their farewell.

        Returns
        -------
        pb.Assignment or None
            Position among the clients; ``None`` if the fleet is still incomplete after ten seconds.

        Raises
        ------
        JoinRefusedError
            If the client cannot take part in this run, or the run has ended without it.
        IdentityInUseError
            If another process with this id is connected.
        """
        if request.protocol != PROTOCOL:
            raise JoinRefusedError(
                f"the server has protocol version {PROTOCOL}, but client {request.client!r} "
                f"({sanitize(request.software, _SOFTWARE)}) has {request.protocol}; install the same version of "
                "Fenchel on both sides"
            )
        name = request.client
        known = self.instances.get(name)
        if member is not None and member.connected and known not in (None, request.instance):
            raise IdentityInUseError(
                f"the identity {name!r} is in use by another connected client; give each client its own "
                "certificate or --name"
            )
        if name not in self.instances:
            if self._complete.is_set() and self._late_joiners == "refuse":
                raise JoinRefusedError(
                    f"the run has begun with {len(self.instances)} clients, and {name!r} is not one of them; begin "
                    "a run with participation.late_joiners: admit to let it join"
                )
            self._newest = time.monotonic()
        self.instances[name] = request.instance
        self.withdrawn.pop(name, None)
        if not self._complete.is_set() and self.joined == self.expected:
            self._close()
        try:
            async with asyncio.timeout(_POLL_SECONDS):
                await self._complete.wait()
        except TimeoutError:
            return None
        if self._refusal and member is None:
            raise JoinRefusedError(self._refusal)
        if name not in self.instances:  # the client has withdrawn while this call waited
            return None
        if self.is_late(name):  # a late joiner has its own data, so no shard is assigned by position
            return pb.Assignment(index=sorted(self.instances).index(name), clients=len(self.instances))
        return pb.Assignment(index=self._indices[name], clients=len(self._indices))

    def withdraw(self, request: pb.JoinRequest) -> bool:
        """Register that a client's process has ended by an error. Return False if it is not the one that has joined.

        The client can join again. It keeps its place in a complete fleet, and has none in one that is incomplete.
        """
        if self.instances.get(request.client) != request.instance:
            return False
        self.withdrawn[request.client] = sanitize(request.withdrawn, _SOFTWARE)
        return True

    def end(self, reason: str) -> None:
        """Refuse clients that are no members of the run for a reason, because the run has ended."""
        self._refusal = reason
        self._complete.set()

    def _close(self) -> None:
        self.instances = {name: self.instances[name] for name in self.names}
        self.withdrawn.clear()
        self._indices = {name: index for index, name in enumerate(self.instances)}
        self._complete.set()

    async def completed(self, patience: float) -> list[str]:
        """Wait until the fleet is complete, and return the sorted ids of its clients.

        Raises
        ------
        RunStoppedError
            If the fleet is not complete after ``patience`` seconds.
        """
        try:
            async with asyncio.timeout(patience):
                while self.expected is None and not self._complete.is_set():
                    quiet = time.monotonic() - self._newest
                    if self.joined and quiet >= self._settle:
                        self._close()
                        break
                    await asyncio.sleep(min(0.1, self._settle))
                await self._complete.wait()
        except TimeoutError:
            raise RunStoppedError(
                f"{self.joined} of {self.expected or 'any number of'} clients joined within {patience:g} s "
                f"(network.join_timeout): {', '.join(self.names) or 'none'}. Start the others, and check that they "
                "can reach this server"
            ) from None
        return self.names
