"""Socket bytes: the operating system's count of the bytes of a client's connection, TLS and HTTP/2 included.

Linux counts the bytes of each TCP connection (``TCP_INFO``), and a process can read the counts of its own connections
without privileges. On other systems, and for connections that are not TCP, the counts are unknown.
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
_ACKNOWLEDGED = 120  # byte offset of tcpi_bytes_acked in struct tcp_info; tcpi_bytes_received follows
_COOKIE = 57  # socket option SO_COOKIE, a number unique to each socket
_COUNTED = hasattr(socket, "TCP_INFO")
_ENOUGH = _ACKNOWLEDGED + _COUNTERS.size

Address: TypeAlias = tuple[str, int]


@dataclass(frozen=True, slots=True)
class SocketBytes:
    """Socket bytes of a connection: ``down`` acknowledged by the client, and ``up`` received from it."""

    down: int
    up: int

    def __add__(self, other: SocketBytes) -> SocketBytes:
        return SocketBytes(self.down + other.down, self.up + other.up)

    def __sub__(self, other: SocketBytes) -> SocketBytes:
        return SocketBytes(self.down - other.down, self.up - other.up)


ZERO = SocketBytes(0, 0)


@runtime_checkable
class Metered(Protocol):
    """Interface of a stream that can read the socket bytes of its connection."""

    def read_socket_bytes(self) -> SocketBytes | None:
        """Return the socket bytes since the last call of this method; ``None``: unknown."""
        ...


@dataclass(slots=True)
class _Read:
    """Last reading of a connection. The cookie distinguishes its socket from a later one with the same descriptor."""

    descriptor: int
    cookie: bytes
    count: SocketBytes


@dataclass
class Sockets:
    """Socket bytes of this process's connections, by the address of the peer."""

    _read: dict[Address, _Read] = field(default_factory=dict)
    _gone: set[Address] = field(default_factory=set)  # peers without a connection, which later searches skip

    def news(self, peer: str) -> SocketBytes | None:
        """Return the socket bytes of a connection since the last call for this peer, or since the connection began.

        Parameters
        ----------
        peer
            Peer as named by gRPC, such as ``ipv4:192.0.2.1:40000``.

        Returns
        -------
        SocketBytes or None
            Socket bytes; ``None`` if the connection is closed or not TCP, or if the system does not count bytes.
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
        before = last.count if last is not None and last.cookie == now.cookie else ZERO
        return now.count - before

    def _found(self, wanted: Address) -> _Read | None:
        """Search this process's file descriptors for a connection, and keep all connections found for later calls."""
        try:
            descriptors = [int(path.name) for path in Path("/proc/self/fd").iterdir()]
        except OSError:
            return None
        known, self._read = self._read, {}
        for descriptor in descriptors:
            address = _peer(descriptor)
            if address is not None:
                before = known.get(address)
                self._read[address] = replace(before, descriptor=descriptor) if before else _Read(descriptor, b"", ZERO)
        found = self._read.get(wanted)
        return None if found is None else _looked_at(replace(found, cookie=b""), wanted)


def _looked_at(last: _Read, address: Address) -> _Read | None:
    """Return a new reading of a connection; ``None`` if it is closed or its descriptor belongs to another file."""
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
    """Return host and port of a peer as named by gRPC; ``None`` if the name is not a TCP address."""
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
    """Return the peer's address of a file descriptor; ``None`` if the descriptor is not a connected IP socket."""
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
    """Return a reading of a descriptor's connection; ``None`` if it is closed or the system does not count bytes."""
    connection = _borrowed(descriptor)
    if connection is None:
        return None
    try:
        info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _ENOUGH)
        # Read the cookie last: an unchanged cookie proves that the counters belong to the same connection.
        cookie = connection.getsockopt(socket.SOL_SOCKET, _COOKIE, 8)
    except OSError:
        return None
    finally:
        connection.detach()
    if len(info) < _ENOUGH:
        return None
    return _Read(descriptor, cookie, SocketBytes(*_COUNTERS.unpack_from(info, _ACKNOWLEDGED)))


def _borrowed(descriptor: int) -> socket.SocketType | None:
    """Return a socket object for a descriptor that gRPC owns; ``None`` if the descriptor is not a socket any more.

    The caller must detach the object and never close it. Reading socket options does not release Python's global lock,
    which keeps this fast.
    """
    try:
        return socket.SocketType(socket.AF_INET6, socket.SOCK_STREAM, socket.IPPROTO_TCP, descriptor)
    except OSError:
        return None
