"""How both sides set up gRPC."""

from __future__ import annotations

from collections.abc import Sequence

from fenchel.common.wire.frames import FRAME_BYTES

CLIENT_KEY = "fenchel-client"
"""Metadata: the client's id. With TLS it must equal the common name of the certificate."""

INSTANCE_KEY = "fenchel-instance-bin"
"""Metadata: the random bytes that a client joined with."""

TRACE_KEY = "traceparent"
"""Metadata: the trace context that a stream belongs to, by W3C Trace Context; left out where nobody traces."""

Options = Sequence[tuple[str, int]]


def options(keepalive: float) -> Options:
    """Return the channel arguments that both sides use.

    Parameters
    ----------
    keepalive
        Seconds between pings on a quiet connection. If nothing acknowledges one for as long, the network or the peer is
        gone; if the peer's kernel does, but the peer does not answer for three times as long, it is frozen.
    """
    milliseconds = int(keepalive * 1000)
    return (
        ("grpc.keepalive_time_ms", milliseconds),
        ("grpc.keepalive_timeout_ms", milliseconds),
        # gRPC has the kernel keep to the timeout above, and keeps to this one itself. An answer queues behind the data
        # that is on its way, so it is longer: on a slow link that is seconds.
        ("grpc.http2.ping_timeout_ms", 3 * milliseconds),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.http2.min_ping_interval_without_data_ms", min(milliseconds, 5000)),
        ("grpc.http2.min_recv_ping_interval_without_data_ms", min(milliseconds, 5000) // 2),
        ("grpc.max_receive_message_length", FRAME_BYTES + 1024),
        ("grpc.max_send_message_length", FRAME_BYTES + 1024),
        # When a lost server is dialled again is this project's decision (fenchel/client/connection.py), not gRPC's.
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.min_reconnect_backoff_ms", 5000),
        ("grpc.max_reconnect_backoff_ms", 5000),
        # A fixed window for what a side may send ahead: enough for 100 Mbit/s around the world, and a bound on
        # the memory of each connection, where gRPC's own estimate grows as fast as the network is.
        ("grpc.http2.bdp_probe", 0),
        ("grpc.http2.lookahead_bytes", 4 << 20),
        # A piece of a message in one HTTP/2 frame, not in 64: up to 4 % of a round.
        ("grpc.http2.max_frame_size", FRAME_BYTES),
        ("grpc.so_reuseport", 0),
        ("grpc.use_local_subchannel_pool", 1),
    )
