"""What clients and strangers may use of the server at once, the same for every run.

Two thousand clients can join at once without being slowed down (docs/resource-limits.md).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """Limits of calls and of unsolicited replies. What is beyond a rate waits, what is beyond a number is refused."""

    max_connections: int = 4_096  # connections of all clients and strangers, as far as there are files
    max_calls: int = 20_000  # calls of all clients that are open, or are refused and wait to be told
    max_calls_per_client: int = 16  # open calls of one client, on any number of connections
    max_refusals: int = 4_096  # refused calls of all clients that wait to be told; what is beyond ends at once
    max_refusals_per_client: int = 256  # of these, those of one client
    calls_per_second: float = 20.0  # calls other than probes that one client begins
    calls_at_once: int = 100  # such calls that pass without waiting
    probes_per_second: float = 2000.0  # calls of ``fenchel probe`` that one client begins
    probe_bytes_per_second: float = 16 << 20  # bytes of such calls, in both directions
    probe_bytes_at_once: float = 2 << 30  # bytes that pass without waiting: a measurement on a link of 4 Gbit/s
    unsolicited_per_second: float = 10.0  # unsolicited replies that are taken from one client, after a first 100
    unsolicited_frames_per_second: float = 256.0  # frames of such replies, after a first 1,024
    handshake_timeout: float = 30.0  # seconds that a connection has for its TLS handshake
    request_timeout: float = 300.0
    """Seconds until the message of a call of one message must be complete, and until a connection without a call is
    closed."""

    @classmethod
    def of(cls, clients: int | None) -> Limits:
        """Return the limits of a run: every client can have all its calls open while all others do, and 64 are left.

        clients: their number, where it is known beforehand.
        """
        if clients is None:
            return cls()
        return cls(
            max_connections=max(cls.max_connections, 2 * clients),
            max_calls=clients * cls.max_calls_per_client + cls.max_refusals + 64,
        )
