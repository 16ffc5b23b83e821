"""gRPC options and metadata keys that server and clients share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from fenchel.common.wire.frames import FRAME_BYTES

if TYPE_CHECKING:
    import grpc

    from fenchel.common.tls.credentials import Credentials

CLIENT_KEY = "fenchel-client-bin"
"""Metadata key of the client's id in UTF-8. With TLS the id must equal the common name of the certificate."""

INSTANCE_KEY = "fenchel-instance-bin"
"""Metadata key of the random bytes that identify a client's process since it joined."""

TRACE_KEY = "traceparent"
"""Metadata key of a client stream's trace context (W3C Trace Context). It is absent without tracing."""

KEEPALIVE = 20.0
"""Keepalive interval in seconds until a client has the settings of the run."""

# Texts by which gRPC reports a failed TLS handshake: every failure to connect has the status UNAVAILABLE.
_HANDSHAKE_SIGNS = ("CERTIFICATE_VERIFY_FAILED", "Tls handshake failed", "verification check failed")
_PLAIN_SIGN = "WRONG_VERSION_NUMBER"

Options = Sequence[tuple[str, int]]


def open_channel(server: str, credentials: Credentials | None, keepalive: float = KEEPALIVE) -> grpc.aio.Channel:
    """Return a new channel of a client to the server, without TLS if ``credentials`` is ``None``."""
    import grpc  # late import, because reports need only the options

    if credentials is None:
        return grpc.aio.insecure_channel(server, options=options(keepalive))
    return grpc.aio.secure_channel(server, credentials.for_channel(), options=options(keepalive))


def handshake_failed(details: str) -> bool:
    """Return whether the details of an error report that one side did not accept the other's certificate."""
    return any(sign in details for sign in _HANDSHAKE_SIGNS)


def lacks_tls(details: str) -> bool:
    """Return whether the details of an error report that the server does not use TLS, but the client does."""
    return _PLAIN_SIGN in details


def options(keepalive: float) -> Options:
    """Return the channel arguments that both sides use.

    Parameters
    ----------
    keepalive
        Seconds between pings on an idle connection. A ping that no kernel acknowledges for as long means that the
        network or the peer is gone. A peer that does not answer within three times as long is frozen.
    """
    milliseconds = int(keepalive * 1000)
    return (
        ("grpc.keepalive_time_ms", milliseconds),
        ("grpc.keepalive_timeout_ms", milliseconds),
        # The kernel enforces the timeout above, and gRPC the ping timeout. The ping timeout is longer, because a ping's
        # acknowledgement queues behind data in transit for seconds on a slow link.
        ("grpc.http2.ping_timeout_ms", 3 * milliseconds),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.http2.min_ping_interval_without_data_ms", min(milliseconds, 5000)),
        ("grpc.http2.min_recv_ping_interval_without_data_ms", min(milliseconds, 5000) // 2),
        ("grpc.max_receive_message_length", FRAME_BYTES + 1024),
        ("grpc.max_send_message_length", FRAME_BYTES + 1024),
        # Fenchel schedules reconnections itself (fenchel/client/connection.py), so gRPC must not delay them.
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.min_reconnect_backoff_ms", 5000),
        ("grpc.max_reconnect_backoff_ms", 5000),
        # A fixed flow-control window suffices for 100 Mbit/s around the world and bounds the memory of each connection.
        # The bandwidth probe of gRPC would enlarge the window on fast networks.
        ("grpc.http2.bdp_probe", 0),
        ("grpc.http2.lookahead_bytes", 4 << 20),
        # A chunk travels in one HTTP/2 frame instead of 64, which saves up to 4 % of a round.
        ("grpc.http2.max_frame_size", FRAME_BYTES),
        ("grpc.so_reuseport", 0),
        ("grpc.use_local_subchannel_pool", 1),
    )
