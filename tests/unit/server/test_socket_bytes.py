"""The operating system's counts are those of the connection that is meant, and of no other."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from fenchel.fleet.metering.socket_bytes import SocketBytes, Sockets

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux counts bytes")


class Pair:
    """A connection within this process: the server's end, and the client's."""

    def __init__(self, host: str, at: tuple[str, int] | None = None) -> None:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        with socket.create_server((host, 0), family=family) as listening:
            with ExitStack() as failed:
                self.client = failed.enter_context(socket.socket(family))
                self.client.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if at is not None:
                    self.client.bind(at)
                self.client.connect(listening.getsockname()[:2])
                failed.pop_all()
            self.server, _ = listening.accept()

    @property
    def peer(self) -> str:
        host, port = self.client.getsockname()[:2]
        return f"ipv6:%5B{host}%5D:{port}" if ":" in host else f"ipv4:{host}:{port}"

    def send(self, down: int, up: int) -> None:
        for source, target, size in ((self.server, self.client, down), (self.client, self.server, up)):
            source.sendall(bytes(size))
            while size:
                size -= len(target.recv(1 << 16))

    def close(self) -> None:
        self.client.close()
        self.server.close()


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def paired(stack: ExitStack, host: str = "127.0.0.1", at: tuple[str, int] | None = None) -> Pair:
    pair = Pair(host, at)
    stack.callback(pair.close)
    return pair


def test_each_look_tells_what_has_crossed_since_the_one_before(stack: ExitStack) -> None:
    pair, other, sockets = paired(stack), paired(stack), Sockets()
    pair.send(10_000, 300)
    assert sockets.news(pair.peer) == SocketBytes(10_000, 300)
    assert sockets.news(pair.peer) == SocketBytes(0, 0)
    pair.send(5, 7)
    other.send(1_000, 0)
    assert sockets.news(pair.peer) == SocketBytes(5, 7)
    assert sockets.news(other.peer) == SocketBytes(1_000, 0)  # also what crossed before it was looked at


def test_addresses_of_version_6(stack: ExitStack) -> None:
    try:
        pair = paired(stack, "::1")
    except OSError:
        pytest.skip("no IPv6 here")
    pair.send(100, 200)
    assert Sockets().news(pair.peer) == SocketBytes(100, 200)


def test_a_connection_that_is_gone_is_not_known_even_if_its_descriptor_lives_on(stack: ExitStack) -> None:
    pair, sockets = paired(stack), Sockets()
    pair.send(1, 2)
    assert sockets.news(pair.peer) == SocketBytes(1, 2)
    descriptor, peer = pair.server.fileno(), pair.peer
    pair.close()
    other = paired(stack)
    assert descriptor in (other.server.fileno(), other.client.fileno())
    assert sockets.news(peer) is None
    other.send(3, 4)
    assert sockets.news(other.peer) == SocketBytes(3, 4)


def test_a_later_connection_of_the_same_address_is_counted_from_its_beginning(stack: ExitStack) -> None:
    # Of an address of its own: nobody who asks for any port meanwhile is given this one.
    first, sockets = paired(stack, at=("127.0.0.7", 0)), Sockets()
    first.send(50_000, 10)
    assert sockets.news(first.peer) == SocketBytes(50_000, 10)
    address = first.client.getsockname()
    first.server.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    first.close()
    again = paired(stack, at=address)
    again.send(60_000, 20)
    assert sockets.news(again.peer) == SocketBytes(60_000, 20)


def test_looking_leaves_no_file_open_and_closes_none(stack: ExitStack) -> None:
    pair, sockets = paired(stack), Sockets()
    before = os.listdir("/proc/self/fd")  # noqa: PTH208
    for _ in range(10):
        pair.send(10, 10)
        assert sockets.news(pair.peer) == SocketBytes(10, 10)
    assert Sockets().news("ipv4:192.0.2.1:9") is None
    assert os.listdir("/proc/self/fd") == before  # noqa: PTH208


@pytest.mark.parametrize("peer", ["unix:/run/socket", "ipv4:", "ipv4:host:80", "", "ipv6:[::1]", "vsock:3:4"])
def test_what_is_no_tcp_is_not_known(peer: str) -> None:
    assert Sockets().news(peer) is None
