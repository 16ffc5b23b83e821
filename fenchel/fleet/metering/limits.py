"""What clients and strangers may use of the server at once, the same for every run.

Two thousand clients can join at once without being slowed down (docs/resource-limits.md).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """Limits of calls and of unsolicited replies. What is beyond a rate waits, what is beyond a number is refused.

    Attributes
    ----------
    max_connections
        Connections of all clients and strangers, as far as there are files.
    max_calls
        Calls of all clients that are open, or are refused and wait to be told.
    max_calls_per_client
        Open calls of one client, on any number of connections.
    max_refusals
        Refused calls of all clients that wait to be told; what is beyond ends at once.
    max_refusals_per_client
        Of these, those of one client.
    calls_per_second
        Calls other than probes that one client begins.
    calls_at_once
        Such calls that pass without waiting.
    probes_per_second
        Calls of ``fenchel probe`` that one client begins.
    probe_bytes_per_second
        Bytes of such calls, in both directions.
    probe_bytes_at_once
        Bytes that pass without waiting: a measurement on a link of 4 Gbit/s.
    unsolicited_per_second
        Unsolicited replies that are taken from one client, after a first 100.
    unsolicited_frames_per_second
        Frames of such replies, after a first 1,024.
    handshake_timeout
        Seconds that a connection has for its TLS handshake.
    request_timeout
        Seconds until the message of a call of one message must be complete, and until a connection without a call is
        closed.
    """

    max_connections: int = 4_096
    max_calls: int = 20_000
    max_calls_per_client: int = 16
    max_refusals: int = 4_096
    max_refusals_per_client: int = 256
    calls_per_second: float = 20.0
    calls_at_once: int = 100
    probes_per_second: float = 2000.0
    probe_bytes_per_second: float = 16 << 20
    probe_bytes_at_once: float = 2 << 30
    unsolicited_per_second: float = 10.0
    unsolicited_frames_per_second: float = 256.0
    handshake_timeout: float = 30.0
    request_timeout: float = 300.0

    @classmethod
    def of(cls, clients: int | None) -> Limits:
        """Return the limits of a run: every client can have all its calls open while all others do, and 64 are left.

        Parameters
        ----------
        clients
            Their number, where it is known beforehand.
        """
        if clients is None:
            return cls()
        return cls(
            max_connections=max(cls.max_connections, 2 * clients),
            max_calls=clients * cls.max_calls_per_client + cls.max_refusals + 64,
        )
