"""Connection of a client to the server: joining a run, working for it, and reconnecting after failures."""

from __future__ import annotations

import asyncio
import logging
import random
import secrets
import time
from collections.abc import Callable
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

import grpc

from fenchel.client.disk_quota import DiskQuota
from fenchel.client.joining import Participant, prepare, session_of
from fenchel.client.observer import ClientObserver
from fenchel.client.worker import Worker
from fenchel.common.errors import CredentialError, JoinRefusedError, UnreachableError
from fenchel.common.wire.channel import (
    CLIENT_KEY,
    INSTANCE_KEY,
    KEEPALIVE,
    TRACE_KEY,
    handshake_failed,
    lacks_tls,
    open_channel,
)
from fenchel.proto import fenchel_pb2 as pb
from fenchel.proto.fenchel_pb2_grpc import CoordinatorStub

T = TypeVar("T")

log = logging.getLogger("fenchel.client")

# bounds in seconds on the keepalive interval in the settings, which come from the server
_SHORTEST_KEEPALIVE, _LONGEST_KEEPALIVE = 1.0, 3600.0
# longest time in seconds of retries while the identity is in use: the server may take four keepalive intervals to
# detect that the previous connection is dead
_IN_USE_SECONDS = 5 * KEEPALIVE
_PING_SECONDS = 10.0
_WITHDRAWAL_SECONDS = 5.0
_REFUSALS = (
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.PERMISSION_DENIED,
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.UNIMPLEMENTED,
)
_HANDSHAKE_TRIES = 3
# Text by gRPC for one of several causes of RESOURCE_EXHAUSTED. The client uses this text only to choose the message for
# the operator.
_FULL = "Concurrent RPC limit exceeded"


@dataclass
class Backoff:
    """Exponential back-off with jitter, so that clients of one server do not all reconnect at the same time.

    Attributes
    ----------
    first, longest
        Upper bounds of the first wait and of any wait, in seconds.
    """

    first: float = 0.1
    longest: float = 5.0
    _attempts: int = 0

    def next(self) -> float:
        """Return the next wait in seconds."""
        bound = min(self.first * 2.0**self._attempts, self.longest)
        self._attempts = min(self._attempts + 1, 32)
        # Jitter does not affect the results of a run, so it need not be reproducible.
        return random.uniform(bound / 2, bound)  # noqa: S311

    def reset(self) -> None:
        """Start again from the first wait, after a success."""
        self._attempts = 0


@dataclass
class _ClientStream:
    """Frames of a ``Work`` call, on the client's side.

    Attributes
    ----------
    answered
        True if the server has sent a frame on this stream.
    """

    call: grpc.aio.StreamStreamCall[Any, Any]
    answered: bool = False

    async def read(self) -> bytes | None:
        frame = await self.call.read()
        self.answered = self.answered or isinstance(frame, bytes)
        return frame if isinstance(frame, bytes) else None

    async def write(self, frame: bytes) -> None:
        await self.call.write(frame)


@dataclass
class Connection:
    """A participant's connection to the server for the duration of a run.

    Attributes
    ----------
    executor
        Executor for all computation.
    on_event
        Callback for progress messages to the operator, such as "connected" or "waiting".
    joint
        True if the client encrypts together with others, in tasks of the executor.
    """

    participant: Participant
    executor: Executor
    on_event: Callable[[str], None] = log.info
    observer: ClientObserver = field(default_factory=ClientObserver)
    joint: bool = False
    _instance: bytes = field(default_factory=lambda: secrets.token_bytes(16))
    _run: str = ""
    _prepared_for: str = ""  # id of the run for which the client loaded data while other clients were joining
    _worker: Worker | None = None
    _quota: DiskQuota = field(init=False)
    _backoff: Backoff = field(default_factory=Backoff)
    _last_success: float = field(default_factory=time.monotonic)
    _handshakes_failed: int = 0
    _keepalive: float = KEEPALIVE

    def __post_init__(self) -> None:
        self._quota = DiskQuota(self.participant.trust_limits.journal_bytes)

    async def take_part(self) -> pb.Farewell:
        """Join the run, handle its instructions until the server sends its farewell, and return the farewell.

        The client reconnects whenever the connection breaks.

        Raises
        ------
        JoinRefusedError
            If the server refuses the client.
        CredentialError
            If the TLS handshake fails repeatedly, or the server does not use TLS.
        UnreachableError
            If the server has not answered for the participant's ``retry_for`` seconds.
        FenchelError
            If the client cannot take part, for example because the settings exceed its trust limits.
        """
        who = self.participant
        self._last_success = time.monotonic()
        channel = self._channel()
        try:
            while True:
                try:
                    if not await self._joined(channel):
                        continue
                    channel = await self._as_agreed(channel)
                    farewell = await self._work(channel)
                    if farewell is not None:
                        if farewell.completed and self._worker is not None:
                            self._worker.session.end()
                        return farewell
                    self.on_event(f"{who.name}: the connection to {who.server} broke; reconnecting")
                    renewed = self._renewed()
                except grpc.aio.AioRpcError as error:
                    renewed = self._renewed()
                    # after a renewal the client retries, because the server may have rejected only the old certificate
                    if not renewed:
                        self._judge(error)
                if renewed:
                    self.on_event(f"{who.name}: the certificate was replaced; reconnecting with the new one")
                # Open a new channel, which resolves the server's name immediately, in case its address has changed. An
                # old channel resolves a name only every 30 s, or 120 s after a failed lookup.
                await channel.close()
                channel = self._channel()
                await asyncio.sleep(self._backoff.next())
        finally:
            await channel.close()

    def _channel(self) -> grpc.aio.Channel:
        return open_channel(self.participant.server, self.participant.credentials, self._keepalive)

    async def _as_agreed(self, channel: grpc.aio.Channel) -> grpc.aio.Channel:
        """Return a channel with the keepalive interval of the run, which is known only after joining."""
        assert self._worker is not None
        wanted = self._worker.session.settings.network.keepalive
        wanted = min(max(wanted, _SHORTEST_KEEPALIVE), _LONGEST_KEEPALIVE)
        if wanted == self._keepalive:
            return channel
        self._keepalive = wanted
        await channel.close()
        return self._channel()

    def _renewed(self) -> bool:
        """Load the certificate file again if it was replaced; return True if it was."""
        before = self.participant.credentials
        if before is None or (renewed := before.renewed()) is before:
            return False
        self.participant = replace(self.participant, credentials=renewed)
        return True

    async def _joined(self, channel: grpc.aio.Channel) -> bool:
        """Send a request to join. Once the fleet is complete, create the worker and return True, as work can begin."""
        who = self.participant
        reply: pb.JoinReply = await CoordinatorStub(channel).Join(who.request(self._instance), timeout=60.0)
        self._note_answer()
        if not reply.HasField("assignment"):
            self._backoff.reset()
            expected = f" of {reply.expected}" if reply.expected else ""
            self.on_event(f"{who.name}: waiting for the others ({reply.joined}{expected} have joined)")
            if reply.run not in (self._prepared_for, self._run):
                await self._prepared(channel, prepare, who, reply)
                self._prepared_for = reply.run
            return False
        if self._worker is None or reply.run != self._run:
            self._worker = await self._prepared(channel, self._ready, reply)
            self._run = reply.run
            for warning in self._worker.session.warnings:
                self.on_event(f"warning: {warning}")
        return True

    async def _prepared(self, channel: grpc.aio.Channel, step: Callable[..., T], *arguments: object) -> T:
        """Do a step of the preparation. If it fails, tell the server, which waits for this client, and raise the error.

        The server receives the kind of the error alone, since the text may contain names of files or columns.
        """
        try:
            return await asyncio.get_running_loop().run_in_executor(self.executor, step, *arguments)
        except Exception as error:
            request = self.participant.request(self._instance)
            request.withdrawn = type(error).__name__
            with suppress(grpc.aio.AioRpcError):
                await CoordinatorStub(channel).Join(request, timeout=_WITHDRAWAL_SECONDS)
            raise

    def _ready(self, reply: pb.JoinReply) -> Worker:
        # Before its first instruction the client has disclosed only a description of its data, so it may join another
        # run.
        if self._worker is not None and self._worker.has_begun:
            self.participant.trust_limits.check_same(self._run, reply.run, self.participant.name)
        session = session_of(self.participant, reply, self._quota)
        answered = partial(self.observer.answered, session.client)
        return Worker(session, self.executor, short_here=True, joint=self.joint, on_answer=answered)

    async def _work(self, channel: grpc.aio.Channel) -> pb.Farewell | None:
        assert self._worker is not None
        who = self.participant
        trace = self.observer.opening(who.name)
        metadata: list[tuple[str, str | bytes]] = [(CLIENT_KEY, who.name.encode()), (INSTANCE_KEY, self._instance)]
        if trace:
            metadata.append((TRACE_KEY, trace))
        call: grpc.aio.StreamStreamCall[Any, Any] = channel.stream_stream("/fenchel.v1.Coordinator/Work")(
            metadata=metadata
        )
        pinging = asyncio.create_task(self._ping(channel))
        stream = _ClientStream(call)
        self.on_event(f"{who.name}: working for run {self._run}")
        try:
            farewell = await self._worker.work(stream)
        except asyncio.InvalidStateError:
            farewell = None  # gRPC raises InvalidStateError for a write to a call that has ended
        finally:
            pinging.cancel()
            self.observer.closed(who.name)
            if stream.answered:
                self._backoff.reset()
                self._note_answer()  # keepalive confirmed the connection until the stream broke
        if farewell is None:
            code = await call.code()
            if code is not grpc.StatusCode.OK:
                raise grpc.aio.AioRpcError(
                    code, await call.initial_metadata(), await call.trailing_metadata(), await call.details()
                )
        else:
            call.cancel()
        return farewell

    async def _ping(self, channel: grpc.aio.Channel) -> None:
        """Measure round-trip times periodically if the observer asks for them."""
        while self.observer.times_round_trips:
            started = time.perf_counter()
            try:
                await CoordinatorStub(channel).Probe(
                    pb.ProbeRequest(), timeout=_PING_SECONDS, metadata=((CLIENT_KEY, self.participant.name.encode()),)
                )
            except grpc.aio.AioRpcError as error:
                log.debug("%s: the round trip could not be measured: %s", self.participant.name, error.details())
            else:
                self.observer.round_trip(self.participant.name, time.perf_counter() - started)
            await asyncio.sleep(_PING_SECONDS)

    def _note_answer(self) -> None:
        """Note that the server has answered. Only the next step shows whether the back-off can begin anew."""
        self._last_success = time.monotonic()
        self._handshakes_failed = 0

    def _judge(self, error: grpc.aio.AioRpcError) -> None:
        """Return if a retry may succeed; otherwise raise an error that the operator can act on."""
        who = self.participant
        code, details = error.code(), error.details() or ""
        silent = time.monotonic() - self._last_success
        if code in _REFUSALS or (code is grpc.StatusCode.ALREADY_EXISTS and silent > _IN_USE_SECONDS):
            raise JoinRefusedError(f"{who.server} refused client {who.name}: {details}") from None
        if lacks_tls(details):
            raise CredentialError(
                f"{who.server} does not use TLS, but client {who.name} does; start the server with --certs DIR, or "
                "this client with --insecure"
            ) from None
        if handshake_failed(details):
            self._handshakes_failed += 1
            if self._handshakes_failed >= _HANDSHAKE_TRIES:
                raise CredentialError(
                    f"the TLS handshake of client {who.name} with {who.server} failed ({details}). "
                    + (
                        "Renew the server's certificate (fenchel certs renew), unless a clock is wrong"
                        if "certificate has expired" in details
                        else "Both certificates must come from the same authority (fenchel certs), and the server's "
                        "must contain the host name that this client dials; inspect them with fenchel certs show DIR"
                    )
                ) from None
        if silent > who.retry_for:
            plain = who.credentials is None and "Socket closed" in details
            raise UnreachableError(
                f"client {who.name} could not reach {who.server} for {silent:.0f} s ({code.name}: {details}). "
                "Check that the server runs, its address, and that a firewall lets this machine dial out to "
                f"it.{' If the server uses TLS, start this client with --certs DIR' if plain else ''}"
            ) from None
        problem = "has no free call" if _FULL in details else f"does not answer ({code.name}: {details})"
        self.on_event(f"{who.name}: {who.server} {problem}; trying again")
