"""Limits on the server resources that clients and other callers may use. No setting changes these limits.

Two thousand clients can join at once without being slowed down (docs/resource-limits.md).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """Limits of calls and of unsolicited replies.

    Calls and replies that exceed a rate are delayed. Connections and calls that exceed a number are refused.

    Attributes
    ----------
    max_connections
        Largest number of connections from all clients and other callers together. A low limit of open files lowers it.
    max_calls
        Largest number of calls of all clients together, including refused calls that are delayed.
    max_calls_per_client
        Largest number of open calls of one client, over all its connections.
    max_refusals
        Largest number of refused calls of all clients together that are delayed. Further refused calls end at once.
    max_refusals_per_client
        Largest number of refused calls of one client that are delayed. Further refused calls end at once.
    calls_per_second
        Largest number of calls per second, other than probes, that one client may begin.
    calls_at_once
        Number of such calls that may begin in a burst without delay.
    probes_per_second
        Largest number of ``fenchel probe`` calls per second that one client may begin.
    probe_bytes_per_second
        Largest number of bytes per second of one client's probes, both directions together.
    probe_bytes_at_once
        Number of such bytes that pass in a burst without delay: enough for one measurement on a link of 4 Gbit/s.
    unsolicited_per_second
        Largest number of unsolicited replies per second from one client, after a burst of 100.
    unsolicited_frames_per_second
        Largest number of frames of such replies per second, after a burst of 1,024.
    handshake_timeout
        Timeout of a connection's TLS handshake in seconds.
    request_timeout
        Seconds within which the message of a single-message call must arrive, and after which an idle connection
        is closed.
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
        """Return the limits of a run with a given number of clients.

        All clients can have their largest number of calls open at once, and all delayed refusals and 64 further calls
        fit as well.

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
