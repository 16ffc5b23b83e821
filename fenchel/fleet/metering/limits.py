"""Limits on the server's resources that clients and other callers may use, the same for every run.

Two thousand clients can join at once without being slowed down (docs/resource-limits.md).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """Limits of calls and of unsolicited replies. A call beyond a rate waits, and one beyond a number is refused.

    Attributes
    ----------
    max_connections
        Number of connections from all clients and other callers, as far as the limit of open files permits.
    max_calls
        Number of calls of all clients that are open, or refused and delayed.
    max_calls_per_client
        Number of open calls of one client, on any number of connections.
    max_refusals
        Number of refused calls of all clients that are delayed. Further ones end at once.
    max_refusals_per_client
        Number of refused calls of one client that are delayed.
    calls_per_second
        Rate at which one client may begin calls other than probes.
    calls_at_once
        Burst of such calls that passes without delay.
    probes_per_second
        Rate at which one client may begin calls of ``fenchel probe``.
    probe_bytes_per_second
        Rate of the bytes of such calls, both directions together.
    probe_bytes_at_once
        Burst of such bytes that passes without delay: one measurement on a link of 4 Gbit/s.
    unsolicited_per_second
        Rate of unsolicited replies from one client, after a burst of 100.
    unsolicited_frames_per_second
        Rate of the frames of such replies, after a burst of 1,024.
    handshake_timeout
        Seconds for the TLS handshake of a connection.
    request_timeout
        Seconds for the message of a call that has one message, and until an idle connection is closed.
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
        """Return the limits of a run, in which all clients can have all their calls open at once, with 64 to spare.

        Parameters
        ----------
        clients
            Number of clients; ``None``: not known beforehand.
        """
        if clients is None:
            return cls()
        return cls(
            max_connections=max(cls.max_connections, 2 * clients),
            max_calls=clients * cls.max_calls_per_client + cls.max_refusals + 64,
        )
