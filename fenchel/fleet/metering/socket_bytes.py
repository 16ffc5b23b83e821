"""What the operating system says has crossed a client's connection: TLS and HTTP/2 included.

Linux counts the bytes of each TCP connection (``TCP_INFO``); no privilege is needed to read one's own. Other
systems do not say, and nor does a connection that is no TCP: there the counts are not known.
"""

from __future__ import annotations

import functools
import ipaddress
import socket
import struct
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol, TypeAlias, runtime_checkable
from urllib.parse import unquote

_COUNTERS = struct.Struct("=QQ")
_ACKNOWLEDGED = 120  # where struct tcp_info has tcpi_bytes_acked, and tcpi_bytes_received behind it
_COOKIE = 57  # SO_COOKIE: a number that no other socket has had
_COUNTED = hasattr(socket, "TCP_INFO")
_ENOUGH = _ACKNOWLEDGED + _COUNTERS.size

Address: TypeAlias = tuple[str, int]


@dataclass(frozen=True, slots=True)
class SocketBytes:
    """Bytes of a connection: to the client (as far as it has acknowledged them), and from it."""

    down: int
    up: int

    def __add__(self, other: SocketBytes) -> SocketBytes:
        return SocketBytes(self.down + other.down, self.up + other.up)

    def __sub__(self, other: SocketBytes) -> SocketBytes:
        return SocketBytes(self.down - other.down, self.up - other.up)


NOTHING = SocketBytes(0, 0)


@runtime_checkable
class Metered(Protocol):
    """A stream that knows what crossed the connection below it."""

    def crossed(self) -> SocketBytes | None:
        """Return what has crossed since the last time; ``None``: nobody knows."""
        ...


@dataclass(slots=True)
class _Read:
    """A connection as it was read last; the kernel's cookie tells it from a later one with the same descriptor."""

    descriptor: int
    cookie: bytes
    crossed: SocketBytes


@dataclass
class Sockets:
    """The connections of this process, by the address of whoever is at the other end."""

    _read: dict[Address, _Read] = field(default_factory=dict)
    _gone: set[Address] = field(default_factory=set)  # not worth another search

    def news(self, peer: str) -> SocketBytes | None:
        """Return what has crossed the connection since the last time, or since it was made.

        Parameters
        ----------
        peer
            As gRPC calls it, such as ``ipv4:192.0.2.1:40000``.

        Returns
        -------
        SocketBytes | None
            ``None``: the connection is gone, or the system does not say.
        """
        address = _address(peer)
        if address is None or address in self._gone or not _COUNTED:
            return None
        last = self._read.get(address)
        now = None if last is None else _looked_at(last, address)
        if now is None:
            now = self._found(address)
        if now is None:
            self._gone.add(address)
            return None
        self._read[address] = now
        before = last.crossed if last is not None and last.cookie == now.cookie else NOTHING
        return now.crossed - before

    def _found(self, wanted: Address) -> _Read | None:
        """Look for a connection among all open files; note the others, so that the next need not look again."""
        try:
            descriptors = [int(path.name) for path in Path("/proc/self/fd").iterdir()]
        except OSError:
            return None
        known, self._read = self._read, {}
        for descriptor in descriptors:
            address = _peer(descriptor)
            if address is not None:
                before = known.get(address)
                self._read[address] = (
                    replace(before, descriptor=descriptor) if before else _Read(descriptor, b"", NOTHING)
                )
        found = self._read.get(wanted)
        return None if found is None else _looked_at(replace(found, cookie=b""), wanted)


def _looked_at(last: _Read, address: Address) -> _Read | None:
    """Read a connection again; ``None`` if its descriptor is another's by now. The first time needs a closer look."""
    cookie = last.cookie
    if not cookie:
        first = _look(last.descriptor)
        if first is None or _peer(last.descriptor) != address:
            return None
        cookie = first.cookie
    now = _look(last.descriptor)
    return now if now is not None and now.cookie == cookie else None


@functools.lru_cache(maxsize=4096)
def _address(peer: str) -> Address | None:
    """Return host and port of what gRPC calls a peer; ``None`` for what is no TCP."""
    kind, _, rest = unquote(peer).partition(":")
    host, _, port = rest.rpartition(":")
    if kind not in ("ipv4", "ipv6") or not port.isdecimal():
        return None
    return _normal(host.strip("[]"), int(port))


def _normal(host: str, port: int) -> Address | None:
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(mapped or address), port


def _peer(descriptor: int) -> Address | None:
    """Return who is at the other end of an open file; ``None`` if it is no connection over IP."""
    connection = _borrowed(descriptor)
    if connection is None:
        return None
    try:
        name = connection.getpeername()
    except OSError:
        return None
    finally:
        connection.detach()
    return _normal(name[0], name[1]) if isinstance(name, tuple) else None


def _look(descriptor: int) -> _Read | None:
    """Read the counters of a connection; ``None`` if it is closed, or nobody counts."""
    connection = _borrowed(descriptor)
    if connection is None:
        return None
    try:
        info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _ENOUGH)
        # Read last: if it is still that of the connection, so was the descriptor when the counters were read.
        cookie = connection.getsockopt(socket.SOL_SOCKET, _COOKIE, 8)
    except OSError:
        return None
    finally:
        connection.detach()
    if len(info) < _ENOUGH:
        return None
    return _Read(descriptor, cookie, SocketBytes(*_COUNTERS.unpack_from(info, _ACKNOWLEDGED)))


def _borrowed(descriptor: int) -> socket.SocketType | None:
    """Return a socket that belongs to gRPC, to be detached and never closed; ``None`` if there is none any more.

    Options of a socket are read without releasing Python's lock: having to wait for it again would take longer
    than all else here.
    """
    try:
        return socket.SocketType(socket.AF_INET6, socket.SOCK_STREAM, socket.IPPROTO_TCP, descriptor)
    except OSError:
        return None
