"""What the way between a client and the server is like: round-trip time, clock offset, throughput."""

from __future__ import annotations

import asyncio
import os
import statistics
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import grpc
import numpy as np

from fenchel.common.errors import CredentialError, FenchelError, UnreachableError
from fenchel.common.tls.credentials import Credentials
from fenchel.common.wire.channel import CLIENT_KEY, options
from fenchel.common.wire.frames import FRAME_BYTES
from fenchel.proto import fenchel_pb2 as pb
from fenchel.proto.fenchel_pb2_grpc import CoordinatorStub

_KEEPALIVE = 20.0
_PING_PATIENCE = 10.0  # seconds
_PAYLOAD_PATIENCE = 300.0  # seconds: 4 MiB in flight need so long at 100 kbit/s
_IN_FLIGHT = 4  # payloads on their way at the same time, so that the link is never idle
_DISTRUST = ("Tls handshake failed", "verification check failed")  # gRPC has no code for it
_QUICKEST = 0.1  # share of the pings that the clock offset is read from


@dataclass(frozen=True)
class ProbeResult:
    """What a probe measured. Times are in seconds, rates in payload bytes per second.

    Attributes
    ----------
    client, server
        Who probed whom.
    pings
        Number of round trips.
    rtt_p50, rtt_p90, rtt_p99
        Percentiles of the round-trip time.
    jitter
        Mean absolute difference of consecutive round-trip times.
    clock_offset
        What must be added to the client's clock to get the server's.
    clock_uncertainty
        The offset is wrong by so much at most.
    upload, download
        Rates from the client to the server and back.
    """

    client: str
    server: str
    pings: int
    rtt_p50: float
    rtt_p90: float
    rtt_p99: float
    jitter: float
    clock_offset: float
    clock_uncertainty: float
    upload: float
    download: float

    def cells(self) -> tuple[str, ...]:
        """Return a table's row for people: client, p50, p90, p99, jitter, clock offset, up, down."""
        times = (self.rtt_p50, self.rtt_p90, self.rtt_p99, self.jitter)
        offset = f"{self.clock_offset * 1e3:+.2f}±{self.clock_uncertainty * 1e3:.2f} ms"
        rates = (rate / 1e6 for rate in (self.upload, self.download))
        return (
            self.client,
            *(f"{seconds * 1e3:.2f} ms" for seconds in times),
            offset,
            *(f"{rate:.{0 if rate >= 100 else 2}f} MB/s" for rate in rates),
        )


@dataclass(frozen=True)
class _Ping:
    """One round trip.

    Attributes
    ----------
    rtt
        From the client's request to the server's answer.
    delay
        The part of it that was spent on the way.
    offset
        The server's clock minus the client's, if both ways took equally long; wrong by half the delay at most.
    """

    rtt: float
    delay: float
    offset: float


async def probe(
    server: str,
    credentials: Credentials | None,
    name: str,
    *,
    pings: int = 50,
    payload_bytes: int = FRAME_BYTES,
    seconds: float = 2.0,
) -> ProbeResult:
    """Measure the way to a server and back.

    Parameters
    ----------
    credentials
        The client's; ``None``: no TLS.
    payload_bytes
        Size of a payload when throughput is measured; 1 MiB at most.
    """
    if credentials is None:
        channel = grpc.aio.insecure_channel(server, options=options(_KEEPALIVE))
    else:
        channel = grpc.aio.secure_channel(server, credentials.for_channel(), options=options(_KEEPALIVE))
    async with channel:
        link = _Link(channel, name)
        try:
            await link.ping()  # the first one pays for the connection
            measured = [await link.ping() for _ in range(pings)]
            payload = os.urandom(min(payload_bytes, FRAME_BYTES))
            upload = len(payload) * await _frequency(lambda: link.exchange(payload, 0), seconds)
            download = len(payload) * await _frequency(lambda: link.exchange(b"", len(payload)), seconds)
        except grpc.aio.AioRpcError as error:
            raise _explained(error, server) from None
    return _result(name, server, measured, upload, download)


@dataclass(frozen=True)
class _Link:
    channel: grpc.aio.Channel
    name: str

    async def exchange(self, payload: bytes, reply_bytes: int, patience: float = _PAYLOAD_PATIENCE) -> pb.ProbeReply:
        stub = CoordinatorStub(self.channel)
        request = pb.ProbeRequest(payload=payload, reply_bytes=reply_bytes)
        return await stub.Probe(request, timeout=patience, metadata=((CLIENT_KEY, self.name),))

    async def ping(self) -> _Ping:
        sent = time.time_ns()
        started = time.perf_counter_ns()
        reply = await self.exchange(b"", 0, _PING_PATIENCE)
        rtt = time.perf_counter_ns() - started
        received = sent + rtt  # by the steady clock: the other one may be set meanwhile
        offset = ((reply.received_unix_ns - sent) + (reply.sent_unix_ns - received)) / 2
        delay = rtt - (reply.sent_unix_ns - reply.received_unix_ns)
        return _Ping(rtt / 1e9, delay / 1e9, offset / 1e9)


async def _frequency(exchange: Callable[[], Awaitable[object]], seconds: float) -> float:
    """Return how many exchanges a second go through, several at a time."""
    started = time.perf_counter()

    async def keep_busy() -> int:
        done = 0
        while not done or time.perf_counter() - started < seconds:
            await exchange()
            done += 1
        return done

    done = await asyncio.gather(*(keep_busy() for _ in range(_IN_FLIGHT)))
    return sum(done) / (time.perf_counter() - started)


def _result(name: str, server: str, pings: list[_Ping], upload: float, download: float) -> ProbeResult:
    times = np.array([ping.rtt for ping in pings])
    # Queues delay one way more than the other and so spoil the offset; the quickest pings met no queue.
    quickest = sorted(pings, key=lambda ping: ping.delay)[: max(1, int(len(pings) * _QUICKEST))]
    p50, p90, p99 = (float(time) for time in np.percentile(times, (50, 90, 99)))
    return ProbeResult(
        client=name,
        server=server,
        pings=len(pings),
        rtt_p50=p50,
        rtt_p90=p90,
        rtt_p99=p99,
        jitter=float(np.abs(np.diff(times)).mean()) if len(times) > 1 else 0.0,
        clock_offset=statistics.median(ping.offset for ping in quickest),
        clock_uncertainty=quickest[-1].delay / 2,
        upload=upload,
        download=download,
    )


def _explained(error: grpc.aio.AioRpcError, server: str) -> FenchelError:
    code, details = error.code(), error.details() or ""
    if "WRONG_VERSION_NUMBER" in details:
        return CredentialError(f"{server} does not speak TLS; if that is meant to be so, leave TLS out here too")
    if any(sign in details for sign in _DISTRUST):
        return CredentialError(
            f"{server}: its certificate is not accepted ({details}). Both certificates must come from the same "
            "authority (fenchel certs), and the server's must name the host that is dialled here"
        )
    if "failed to connect" in details and "Socket closed" in details:
        # In TLS 1.3 a client learns of its own certificate's rejection by nothing but the closed connection.
        return CredentialError(
            f"{server} closed the connection during the handshake: it does not accept this certificate, which must "
            "come from the server's authority (fenchel certs), or it speaks TLS and this side does not"
        )
    if code is grpc.StatusCode.UNIMPLEMENTED:
        return UnreachableError(f"{server} answers, but is not one of Fenchel's servers; is the port right?")
    return UnreachableError(
        f"{server} does not answer ({code.name}: {details}); is the server running, is the address right, and "
        "does a firewall let this machine dial out to it?"
    )
