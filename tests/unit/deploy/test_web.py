"""The small web server is read-only, and no page of the internet can have a browser read it."""

from __future__ import annotations

import http.client
import socket
import threading
from collections.abc import Iterator

import pytest

from fenchel.common.errors import UnreachableError
from fenchel.deploy.address import Address
from fenchel.deploy.monitoring.web import HttpResponse, NotReadyError, WebServer
from tests.messages import raises

BODY = b"<p>hello</p>"


def not_ready() -> HttpResponse:
    raise NotReadyError("come again")


def defective() -> HttpResponse:
    raise ZeroDivisionError("secret")


@pytest.fixture
def server() -> Iterator[WebServer]:
    routes = {"/": lambda: HttpResponse("text/html; charset=utf-8", BODY), "/later": not_ready, "/broken": defective}
    with WebServer(Address("127.0.0.1", 0), routes) as opened:
        yield opened


def asked(server: WebServer, method: str = "GET", path: str = "/", **headers: str) -> tuple[int, dict[str, str], bytes]:
    connection = http.client.HTTPConnection(server.address.host, server.address.port, timeout=10)
    try:
        connection.request(method, path, headers=headers)
        response = connection.getresponse()
        return response.status, dict(response.getheaders()), response.read()
    finally:
        connection.close()


def test_a_page_is_served_with_headers_that_let_nothing_in_from_elsewhere(server: WebServer) -> None:
    status, headers, body = asked(server)
    assert (status, body) == (200, BODY)
    policy = headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "script-src 'self';" in policy
    assert "frame-ancestors 'none'" in policy
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert "Access-Control-Allow-Origin" not in headers
    assert headers["Server"] == "fenchel"


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"])
def test_nothing_can_be_written(server: WebServer, method: str) -> None:
    status, headers, _ = asked(server, method)
    assert status == 405
    assert headers["Allow"] == "GET, HEAD"


def test_a_method_that_nobody_knows_is_not_answered(server: WebServer) -> None:
    assert asked(server, "BREW")[0] == 501


def test_head_says_what_get_would_and_sends_no_body(server: WebServer) -> None:
    status, headers, body = asked(server, "HEAD")
    assert (status, body) == (200, b"")
    assert headers["Content-Length"] == str(len(BODY))


def test_what_has_not_changed_is_not_sent_again(server: WebServer) -> None:
    tag = asked(server)[1]["ETag"]
    status, headers, body = asked(server, **{"If-None-Match": tag})
    assert (status, body, headers["ETag"]) == (304, b"", tag)
    assert asked(server, **{"If-None-Match": '"another"'})[0] == 200


@pytest.mark.parametrize(
    "host",
    ["evil.example.org", "evil.example.org:7444", "127.0.0.1.evil.example.org", "", "user@evil.example.org", "[::1"],
)
def test_a_request_for_another_name_is_refused_whatever_address_that_name_has(server: WebServer, host: str) -> None:
    status, _, body = asked(server, Host=host)
    assert status == 421
    assert BODY not in body


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "127.0.0.1:9000", "localhost:9000", "[::1]:7444", "server:9464", "192.0.2.7"]
)
def test_addresses_and_names_of_the_local_network_are_answered(server: WebServer, host: str) -> None:
    assert asked(server, Host=host)[0] == 200


def test_other_paths_are_not_there_and_no_file_is_served(server: WebServer) -> None:
    for path in ("/x", "/../etc/passwd", "//etc/passwd", "/%2e%2e/etc/passwd", "/page.css", "//["):
        status, _, body = asked(server, path=path)
        assert status == 404
        assert b"root:" not in body
    assert asked(server, path="/?x=1")[0] == 200


def test_who_asks_too_early_is_told_to_come_again(server: WebServer) -> None:
    status, headers, body = asked(server, path="/later")
    assert (status, body, headers["Refresh"]) == (503, b"come again\n", "2")


def test_a_defect_shows_nothing_of_itself(server: WebServer, caplog: pytest.LogCaptureFixture) -> None:
    status, _, body = asked(server, path="/broken")
    assert status == 500
    assert b"secret" not in body
    assert "secret" in caplog.text


def test_readers_beyond_the_limit_are_turned_away_and_places_come_back() -> None:
    let_go, entered = threading.Event(), threading.Semaphore(0)

    def slow() -> HttpResponse:
        entered.release()
        let_go.wait(20)
        return HttpResponse("text/plain", b"at last")

    with WebServer(Address("127.0.0.1", 0), {"/": lambda: HttpResponse("text/plain", b"x"), "/slow": slow}) as server:
        found: list[int] = []
        readers = [threading.Thread(target=lambda: found.append(asked(server, path="/slow")[0])) for _ in range(16)]
        for reader in readers:
            reader.start()
        for _ in readers:
            assert entered.acquire(timeout=20)
        with pytest.raises((http.client.HTTPException, OSError)):
            asked(server)
        let_go.set()
        for reader in readers:
            reader.join(20)
        assert found == [200] * 16
        assert asked(server)[0] == 200


def test_rubbish_does_not_bring_the_server_down(server: WebServer) -> None:
    for rubbish in (b"\x00\xff" * 100 + b"\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"GET " + b"a" * 70_000 + b"\r\n"):
        with socket.create_connection((server.address.host, server.address.port), 10) as raw:
            raw.sendall(rubbish)
            raw.shutdown(socket.SHUT_WR)
            while raw.recv(65536):
                pass
    assert asked(server)[0] == 200


def test_a_port_in_use_is_an_error_for_people(server: WebServer) -> None:
    with raises(UnreachableError):
        WebServer(server.address, {})
