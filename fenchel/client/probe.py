"""Measurement of the network between a client and the server: round-trip time, clock offset, throughput."""

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
from fenchel.common.wire.channel import CLIENT_KEY, handshake_failed, lacks_tls, open_channel
from fenchel.common.wire.frames import FRAME_BYTES
from fenchel.proto import fenchel_pb2 as pb
from fenchel.proto.fenchel_pb2_grpc import CoordinatorStub

_PING_PATIENCE = 10.0  # timeout of a ping in seconds
_PAYLOAD_PATIENCE = 300.0  # timeout of a payload in seconds
_IN_FLIGHT = 4  # number of concurrent payloads, which keeps the link busy
_FIRST_BYTES = 64 << 10  # size of the payload that shows how slow a link is
_FIRST_ROUND_TRIPS = 5  # round trips that it takes on a fast link, while TCP begins slowly
_LEAST_BYTES = 4 << 10  # smallest payload, of which the headers are less than 3 %
_LONGEST_PASSAGE = 8.0  # time in seconds that the payloads in flight may take together
_QUICKEST = 0.1  # fraction of the pings that serve to estimate the clock offset


@dataclass(frozen=True)
class ProbeResult:
    """Result of a probe. Times are in seconds, rates in payload bytes per second.

    Attributes
    ----------
    client
        Id of the client.
    server
        Address of the server.
    pings
        Number of round trips.
    rtt_p50, rtt_p90, rtt_p99
        Percentiles of the round-trip time.
    jitter
        Mean absolute difference of consecutive round-trip times.
    clock_offset
        Server's clock minus the client's.
    clock_uncertainty
        Bound on the error of the clock offset.
    upload, download
        Rates from the client to the server, and from the server to the client.
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
        """Return the row of a table: client, p50, p90, p99, jitter, clock offset, upload, download."""
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
    """One round trip, with times in seconds.

    Attributes
    ----------
    rtt
        Time from the client's request to the server's reply.
    delay
        Part of ``rtt`` spent in the network.
    offset
        Server's clock minus the client's, assuming equal delays in both directions. The error is at most ``delay / 2``.
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
    """Measure round-trip time, clock offset and throughput between this machine and a server.

    Parameters
    ----------
    credentials
        Certificate and key of the client; ``None`` without TLS.
    name
        Client id.
    pings
        Number of round trips.
    payload_bytes
        Largest size of the payloads of the throughput measurement, at most 1 MiB. On a slow link they are smaller.
    seconds
        Duration of each throughput measurement.

    Raises
    ------
    UnreachableError, CredentialError
        If the server does not answer, or one side does not accept the other's certificate.
    """
    async with open_channel(server, credentials) as channel:
        link = _Link(channel, name)
        try:
            await link.ping()  # warm-up: the first ping includes the time to connect
            measured = [await link.ping() for _ in range(pings)]
            payload = os.urandom(min(payload_bytes, FRAME_BYTES))
            idle = _FIRST_ROUND_TRIPS * min(ping.rtt for ping in measured)
            upload = await _throughput(lambda size: link.exchange(payload[:size], 0), len(payload), idle, seconds)
            download = await _throughput(lambda size: link.exchange(b"", size), len(payload), idle, seconds)
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
        return await stub.Probe(request, timeout=patience, metadata=((CLIENT_KEY, self.name.encode()),))

    async def ping(self) -> _Ping:
        sent = time.time_ns()
        started = time.perf_counter_ns()
        reply = await self.exchange(b"", 0, _PING_PATIENCE)
        rtt = time.perf_counter_ns() - started
        received = sent + rtt  # measured by the monotonic clock, because the wall clock may be set in between
        offset = ((reply.received_unix_ns - sent) + (reply.sent_unix_ns - received)) / 2
        delay = rtt - (reply.sent_unix_ns - reply.received_unix_ns)
        return _Ping(rtt / 1e9, delay / 1e9, offset / 1e9)


async def _throughput(exchange: Callable[[int], Awaitable[object]], largest: int, idle: float, seconds: float) -> float:
    """Measure the bytes per second, with payloads of a size that suits the link.

    The first payload takes up to ``idle`` seconds also on a fast link.
    """
    first = min(_FIRST_BYTES, largest)
    started = time.perf_counter()
    await exchange(first)
    passage = time.perf_counter() - started - idle
    size = largest
    if passage > 0:
        size = min(largest, max(_LEAST_BYTES, int(first / passage * _LONGEST_PASSAGE / _IN_FLIGHT)))
    return size * await _frequency(lambda: exchange(size), seconds)


async def _frequency(exchange: Callable[[], Awaitable[object]], seconds: float) -> float:
    """Measure the number of exchanges per second, with several in flight."""
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
    # Queueing delays one direction more than the other, which biases the offset. The fastest pings met no queue.
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
    if lacks_tls(details):
        return CredentialError(f"{server} does not use TLS; start it with --certs DIR, or probe with --insecure")
    if handshake_failed(details):
        return CredentialError(
            f"the certificate of {server} is not accepted ({details}). The certificates of client and server must "
            "come from the same authority (fenchel certs), and the server's must contain the host name in "
            f"{server}"
        )
    if "failed to connect" in details and "Socket closed" in details:
        # Under TLS 1.3 a server rejects a client certificate merely by closing the connection.
        return CredentialError(
            f"{server} closed the connection during the TLS handshake. Either it rejects this client's "
            "certificate, which must come from the server's authority (fenchel certs), or it uses TLS and this "
            "command does not (--certs DIR)"
        )
    if code is grpc.StatusCode.UNIMPLEMENTED:
        return UnreachableError(f"{server} answers, but is not a Fenchel server; check the port")
    return UnreachableError(
        f"{server} does not answer ({code.name}: {details}). Check that the server runs, its address, and that a "
        "firewall lets this machine dial out to it"
    )
