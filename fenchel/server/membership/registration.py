"""Who may take part in a run, and when the fleet is complete."""

from __future__ import annotations

import asyncio
import time
from typing import Literal

from fenchel.common.errors import IdentityInUseError, JoinRefusedError, RunStoppedError
from fenchel.common.untrusted_text import plain
from fenchel.common.version import PROTOCOL
from fenchel.proto import fenchel_pb2 as pb

_SOFTWARE = 80  # characters of what a client calls its software, in an error
_POLL_SECONDS = 10.0  # a client whose fleet is not complete is answered after so long, and asks again


class Registration:
    """Takes the joins of clients.

    Parameters
    ----------
    expected
        Number of clients; ``None``: whoever joins until ``settle`` seconds pass without a newcomer.
    names
        When a run is resumed: its clients.
    late_joiners
        Whether others may join once the fleet is complete.
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
        if names:
            self._close()

    @property
    def names(self) -> list[str]:
        """Clients that have joined, in order of ids; those with which the run begins, once the fleet is complete."""
        return sorted(self._indices or self.instances)

    def is_late(self, name: str) -> bool:
        """Whether a client has joined after the fleet was complete."""
        return bool(self._indices) and name in self.instances and name not in self._indices

    async def join(self, request: pb.JoinRequest, connected: bool) -> pb.Assignment | None:
        """Enrol a client, or recognise it; return its place once the fleet is complete.

        Parameters
        ----------
        request
            What the client says; its identity has been checked.
        connected
            Whether a client of this id has an open stream now.
        """
        if request.protocol != PROTOCOL:
            raise JoinRefusedError(
                f"this server speaks protocol {PROTOCOL}, client {request.client!r} "
                f"({plain(request.software, _SOFTWARE)}) speaks {request.protocol}; install the same version of "
                "Fenchel on both sides"
            )
        name = request.client
        known = self.instances.get(name)
        if connected and known not in (None, request.instance):
            raise IdentityInUseError(
                f"the identity {name!r} is in use by another client that is connected now; "
                "give each client its own certificate or --name"
            )
        if name not in self.instances:
            if self._complete.is_set() and self._late_joiners == "refuse":
                raise JoinRefusedError(
                    f"the run has begun with {len(self.instances)} clients, and {name!r} is none of them; it can only "
                    "join a run whose settings say participation.late_joiners: admit"
                )
            self._newest = time.monotonic()
        self.instances[name] = request.instance
        if not self._complete.is_set() and len(self.instances) == self.expected:
            self._close()
        try:
            async with asyncio.timeout(_POLL_SECONDS):
                await self._complete.wait()
        except TimeoutError:
            return None
        if self._refusal:
            raise JoinRefusedError(self._refusal)
        if self.is_late(name):  # it brings its own data, so its place divides nothing
            return pb.Assignment(index=sorted(self.instances).index(name), clients=len(self.instances))
        return pb.Assignment(index=self._indices[name], clients=len(self._indices))

    def end(self, reason: str) -> None:
        """Refuse everybody from now on: the run is over."""
        self._refusal = reason
        self._complete.set()

    def _close(self) -> None:
        self._indices = {name: index for index, name in enumerate(sorted(self.instances))}
        self._complete.set()

    async def completed(self, patience: float) -> list[str]:
        """Wait until the fleet is complete; return its clients in order of ids."""
        try:
            async with asyncio.timeout(patience):
                while self.expected is None and not self._complete.is_set():
                    quiet = time.monotonic() - self._newest
                    if self.instances and quiet >= self._settle:
                        self._close()
                    await asyncio.sleep(min(0.1, self._settle))
                await self._complete.wait()
        except TimeoutError:
            raise RunStoppedError(
                f"{len(self.instances)} of {self.expected or 'any number of'} clients joined within {patience:g} s "
                f"(network.join_timeout): {', '.join(self.names) or 'nobody'}. Are the others started, and can they "
                "reach this server?"
            ) from None
        return self.names
