"""Readers of the dashboard and the metrics can do nothing else: raw bytes on real sockets.

Both endpoints are open as a server opens them, on loopback. After each attack the page is read as ever, the
run folder is as it was, and threads, sockets and memory are what they were before.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path, PurePath
from urllib.parse import urlsplit

import pytest

from fenchel.common.settings.run import load
from fenchel.common.storage.run_folder import RunFolder
from fenchel.deploy.address import Address
from fenchel.deploy.monitoring import web
from fenchel.deploy.monitoring.exporters import MonitoringOptions, watching
from tests.hostile.memory import resident

SECRET = b"wombat-4711"
SETTINGS = load(Path("fenchel/experiments/fedavg-digits.yaml"))
PATHS = ("/", "/data", "/fleet", "/page.css", "/dashboard.css", "/plotly.js", "/page.js", "/dashboard.js", "/metrics")
FILES = ("settings.yaml", "checkpoint/latest", "log.jsonl", "secret.txt")
OUT = (
    *("..", "%2e%2e", "%2E.", ".%2e", "%252e%252e", "..%2f..", "..%5c..", "..\\..", "....//", "..;", "%c0%ae%c0%ae"),
    *("%u002e%u002e", "..%00", "page.css/..", "./.", "//", "file://", "~root"),
)  # fmt: skip


class Endpoint:
    """A web server on loopback, and what this process holds for it."""

    def __init__(self, url: str, folder: Path) -> None:
        found = urlsplit(url)
        assert found.hostname is not None
        assert found.port is not None
        self.place = found.hostname, found.port
        self.path = found.path
        self.folder = folder

    def dial(self, patience: float = 10.0) -> socket.socket:
        return socket.create_connection(self.place, patience)

    def says(self, request: bytes, patience: float = 10.0) -> bytes:
        """Return all that is answered to these bytes, and nothing after them."""
        with self.dial(patience) as connection:
            with contextlib.suppress(OSError):  # it may have been turned away before
                connection.sendall(request)
                connection.shutdown(socket.SHUT_WR)
            return rest(connection)

    def get(self, path: str | None = None, host: str = "127.0.0.1", method: str = "GET") -> bytes:
        return self.says(f"{method} {path or self.path} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode("latin-1"))

    def is_well(self) -> bool:
        return status(self.get()) == 200


def rest(connection: socket.socket) -> bytes:
    """Return what comes until the connection is closed, in either way."""
    answer = b""
    with contextlib.suppress(ConnectionError):
        while some := connection.recv(1 << 16):
            answer += some
    return answer


def status(answer: bytes) -> int:
    """Return the code of an answer; 0: the connection was closed without one."""
    if not answer:
        return 0
    version, code, _ = answer.split(b" ", 2)
    assert version == b"HTTP/1.0"
    return int(code)


def within(patience: float, condition: Callable[[], bool]) -> bool:
    end = time.monotonic() + patience
    while not (held := condition()) and time.monotonic() < end:
        time.sleep(0.02)
    return held


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def contents(folder: Path) -> dict[PurePath, bytes]:
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module", params=["dashboard", "metrics"])
def endpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoint]:
    """Both are open in either case; ``param`` is the one that is attacked."""
    run = RunFolder.create(tmp_path_factory.mktemp("web"), "watched")
    run.settings.write_text(SETTINGS.to_yaml())
    for name in FILES[1:]:
        (run.path / name).write_bytes(SECRET)
    said: list[str] = []
    loopback = Address("127.0.0.1", 0)
    exporters = MonitoringOptions(dashboard=True, dashboard_at=loopback, metrics_at=loopback)
    with watching(run, SETTINGS, exporters, said.append, pytest.fail):
        urls = {words[:11].strip(): words.split()[-1] for words in said}
        path = "fleet" if request.param == "dashboard" else ""
        page = Endpoint(urls["dashboard"], run.path)
        assert within(30, page.is_well)  # the process that renders has been started
        yield Endpoint(urls[request.param] + path, run.path)


@pytest.fixture(autouse=True)
def unharmed(request: pytest.FixtureRequest) -> Iterator[None]:
    """Whatever a test does: the endpoint answers afterwards, holds nothing, and has changed no file."""
    if "endpoint" not in request.fixturenames:
        yield
        return
    endpoint: Endpoint = request.getfixturevalue("endpoint")
    assert endpoint.is_well()
    before = threading.active_count(), descriptors(), contents(endpoint.folder)
    yield
    assert endpoint.is_well()
    assert within(5, lambda: threading.active_count() <= before[0]), "threads are left"
    assert within(5, lambda: descriptors() <= before[1]), "sockets are left"
    assert contents(endpoint.folder) == before[2]


def test_loopback_is_where_it_really_listens(endpoint: Endpoint) -> None:
    """By what the kernel says: the port is bound to 127.0.0.1 and to no other address."""
    rows = [row.split() for row in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    listening = {row[1] for row in rows if row[3] == "0A" and row[1].endswith(f":{endpoint.place[1]:04X}")}
    assert listening == {f"0100007F:{endpoint.place[1]:04X}"}


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT", "PROPFIND", "get"])
def test_methods_that_could_change_something_are_refused(endpoint: Endpoint, method: str) -> None:
    for path in (*PATHS, "*", "/x"):
        assert status(endpoint.get(path, method=method)) in (405, 501)
    body = f"{method} {endpoint.path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\nx" + "y" * 100_000
    assert status(endpoint.says(body.encode())) in (0, 405, 501)


MALFORMED = {
    "nothing": b"\r\n\r\n",
    "no path": b"GET\r\n\r\n",
    "no version": b"GET /\r\n\r\n",
    "many words": b"GET / x HTTP/1.1\r\n\r\n",
    "no version that there is": b"GET / HTTP/9.9\r\n\r\n",
    "a version of many digits": b"GET / HTTP/" + b"1" * 5000 + b".1\r\n\r\n",
    "a version below zero": b"GET / HTTP/-1.1\r\n\r\n",
    "a version in other digits": "GET / HTTP/1.²\r\n\r\n".encode("latin-1"),
    "a TLS hello": bytes.fromhex("16030100c8010000c40303") + bytes(200),
    "gRPC": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(9),
    "bytes of no meaning": bytes(range(256)) * 8,
    "a header without a name": b"GET / HTTP/1.1\r\n: x\r\n\r\n",
    "a header without a colon": b"GET / HTTP/1.1\r\nHost\r\n\r\n",
    "a folded host": b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n .example.org\r\n\r\n",
    "a null in the host": b"GET / HTTP/1.1\r\nHost: 127.0.0.1\0.example.org\r\n\r\n",
    "two hosts": b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nHost: evil.example.org\r\n\r\n",
    "no host": b"GET / HTTP/1.1\r\n\r\n",
    "an endless request line": b"GET /" + b"a" * 1_000_000,
    "an endless header": b"GET / HTTP/1.1\r\nx: " + b"a" * 1_000_000,
    "a thousand headers": b"GET / HTTP/1.1\r\n" + b"x: y\r\n" * 1000 + b"\r\n",
    "headers without an end": b"GET / HTTP/1.1\r\n" + (b"x: " + b"y" * 60_000 + b"\r\n") * 90,
    "a line that splits the answer": b"GET /%0d%0aSet-Cookie:x HTTP/1.1\r\nHost: a\rSet-Cookie: x\r\n\r\n",
    "a script": b"<script>alert(1)</script> / HTTP/1.1\r\n\r\n",
}  # fmt: skip


@pytest.mark.parametrize("what", MALFORMED)
def test_what_is_no_request_is_refused_without_its_words(endpoint: Endpoint, what: str) -> None:
    answer = endpoint.says(MALFORMED[what])
    assert status(answer) in (0, 400, 404, 414, 421, 431, 501, 505)
    assert b"Set-Cookie" not in answer
    assert b"script>" not in answer
    if answer:
        assert b"X-Content-Type-Options: nosniff" in answer
        assert len(answer) < 2000


@pytest.mark.parametrize(
    "host",
    ["evil.example.org", "127.0.0.1.evil.example.org", "localhost.evil.example.org", "127.0.0.1@evil.example.org",
     "evil.example.org:80", "0x7f.1", "127.1.", "127.0.0.1 evil.example.org", "[::1].evil.example.org", ""],
)  # fmt: skip
def test_a_page_whose_name_was_given_an_address_of_this_machine_reads_nothing(endpoint: Endpoint, host: str) -> None:
    """DNS rebinding: the browser of somebody here sends the request, in the name of a page on the internet."""
    for path in PATHS:
        answer = endpoint.get(path, host=host)
        assert status(answer) in (400, 421)
        assert b"Access-Control" not in answer
        assert len(answer) < 2000


def test_no_path_leads_to_a_file(endpoint: Endpoint) -> None:
    for out in OUT:
        for file in (FILES[-1], "etc/passwd", ""):
            for path in (
                f"/{out}/{file}",
                f"/{out}/" * 6 + file,
                f"/x/{out}/{out}/{file}",
                f"{out}/{file}",
                f"/{file}?{out}",
            ):
                answer = endpoint.get(path)
                assert SECRET not in answer
                assert b"root:" not in answer
                if status(answer) == 200:
                    assert path.lstrip("/").partition("?")[0] in ("",), path
    absolute = endpoint.get(f"http://evil.example.org{endpoint.path}")
    assert status(absolute) == 404


def test_pipelined_requests_get_one_answer(endpoint: Endpoint) -> None:
    one = f"GET {endpoint.path} HTTP/1.1\r\nHost: localhost\r\nConnection: keep-alive\r\n\r\n".encode()
    answer = endpoint.says(one * 60)
    assert answer.count(b"HTTP/1.0 200") == 1
    head, _, body = answer.partition(b"\r\n\r\n")
    (length,) = (int(line.split()[1]) for line in head.split(b"\r\n") if line.startswith(b"Content-Length"))
    assert len(body) == length, "whoever smuggles a request finds it unanswered"


def test_a_request_inside_a_body_is_not_answered(endpoint: Endpoint) -> None:
    inner = b"GET /fleet HTTP/1.1\r\nHost: localhost\r\n\r\n"
    outer = b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
    assert endpoint.says(outer % len(inner) + inner).count(b"HTTP/1.0 ") == 1


def test_who_asks_in_drops_does_not_keep_the_others_out(endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    """Slowloris: each of them is never silent for long, and never done."""
    monkeypatch.setattr(web, "_PATIENCE", 0.5)
    slow = [endpoint.dial() for _ in range(16)]
    for connection in slow:
        connection.sendall(b"GET / HTTP/1.1\r\n")
    stop = threading.Event()

    def drop() -> None:
        while not stop.wait(0.2):
            for connection in slow:
                with contextlib.suppress(OSError):
                    connection.sendall(b"x")

    dropping = threading.Thread(target=drop)
    dropping.start()
    try:
        assert within(5, endpoint.is_well), "the page is taken by those who never end their request"
    finally:
        stop.set()
        dropping.join()
        for connection in slow:
            connection.close()


def test_who_does_not_take_the_answer_does_not_keep_the_others_out(
    endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(web, "_PATIENCE", 0.5)
    request = f"GET {PATHS[5]} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
    slow = []
    for _ in range(16):
        connection = socket.socket()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.settimeout(10)
        connection.connect(endpoint.place)
        connection.sendall(request)
        slow.append(connection)
    try:
        assert within(8, endpoint.is_well), "the page is taken by those who never read"
    finally:
        for connection in slow:
            connection.close()


@pytest.mark.slow  # make test-all
def test_thousands_of_connections_take_no_more_than_sixteen_threads(endpoint: Endpoint) -> None:
    threads, memory = threading.active_count(), resident(os.getpid())
    held: list[socket.socket] = []
    most = 0
    try:
        for number in range(1000):
            connection = endpoint.dial()
            held.append(connection)
            if number % 10 == 0:
                time.sleep(0.01)  # or the other side's queue, in the same process, is full
                most = max(most, threading.active_count())
            if len(held) > 400:  # this side has a limit of open files, too
                held.pop(0).close()
    finally:
        for connection in held:
            connection.close()
    assert most - threads <= 16
    assert resident(os.getpid()) - memory < 32 << 20


def test_a_thread_that_cannot_be_started_costs_no_place(endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refused)
        for _ in range(20):
            assert endpoint.says(b"GET / HTTP/1.1\r\n\r\n") == b""
    assert endpoint.is_well()


@pytest.mark.slow  # make test-all
def test_a_reader_that_resets_its_connection_is_forgotten(endpoint: Endpoint) -> None:
    for _ in range(200):
        with endpoint.dial() as connection:
            connection.sendall(f"GET {endpoint.path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, (1).to_bytes(4, "little") + bytes(4))
    assert within(5, endpoint.is_well)
