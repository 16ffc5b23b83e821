"""Bytes of one connection of a client, charged to the calls that they carried."""

from __future__ import annotations

from fenchel.fleet.calls import Call
from fenchel.fleet.client_record import ClientRecord
from fenchel.fleet.metering.socket_bytes import Metered, SocketBytes


class ConnectionBytes:
    """Account of the bytes of one connection.

    The system's count is read at each reply. It contains the bytes of everything sent and received until then, also of
    calls that have no reply yet and of earlier connections.

    Parameters
    ----------
    member
        Client record, which carries bytes that are not charged yet over to the next call, on any connection.
    metered
        Stream with a count of its socket bytes; ``None``: unknown.
    """

    def __init__(self, member: ClientRecord, metered: Metered | None) -> None:
        self._member = member
        self._metered = metered
        self._was_read = False
        self._down = self._up = 0  # bytes of frames since the last reading

    def count_frame(self, *, down: int = 0, up: int = 0) -> None:
        """Count the bytes of a frame, used in place of the system's count once the connection is closed."""
        self._down += down
        self._up += up

    def charge(self, call: Call) -> None:
        """Charge an answered call, unless its row is already written or the system does not count bytes."""
        news = None if self._metered is None else self._metered.read_socket_bytes()
        if news is None:
            return
        self._was_read = True
        self._down = self._up = 0
        total = self._member.carried_over + news
        if call.recorded:
            self._member.carry(total)  # the next call bears these bytes
            return
        # Bytes of later instructions may already be on the wire. Charge them to the calls of those instructions.
        others = sum(other.wire_down for other in self._member.outstanding.values() if other is not call)
        later = min(others, max(total.down - call.wire_down, 0))
        self._member.carry(SocketBytes(later, 0))
        call.set_socket_bytes(SocketBytes(total.down - later, total.up))

    def close(self) -> None:
        """Carry the bytes since the last reading over to the client's next call."""
        if self._was_read and self._metered is not None:
            last = self._metered.read_socket_bytes() or SocketBytes(self._down, self._up)
            self._member.carry(self._member.carried_over + last)
