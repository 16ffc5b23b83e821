"""Small read-only web server for the dashboard and for Prometheus.

The server has neither encryption nor authentication: every client that reaches it can read its pages. It is meant for
one machine, or for a network whose users may all read the pages. It limits the time of each request, which uvicorn does
not: with a limit on connections, a few readers that send a byte a second would keep out all others.
"""

from __future__ import annotations

import hashlib
import io
import ipaddress
import logging
import re
import socket
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

from fenchel.common.errors import UnreachableError
from fenchel.deploy.address import Address

log = logging.getLogger("fenchel.web")

_PATIENCE = 10.0  # time limit for receiving a request, and again for sending the response, in seconds
_LONGEST = 1 << 17  # size limit of a request, in bytes
_LAST_WORDS = 1.0  # time for pending responses when the server closes, in seconds
_HOST = re.compile(r"(?:\[(?P<six>[0-9A-Fa-f:.]+)\]|(?P<name>[A-Za-z0-9._-]+))(?::[0-9]{1,5})?", re.ASCII)
_HEADERS = {
    "Cache-Control": "no-cache",
    # The page loads nothing from other hosts, runs only scripts from this server, and cannot be framed. Inline styles
    # are allowed, because Plotly styles its charts with style elements.
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; "
    "img-src data: blob:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


READERS = 16
"""Largest number of concurrent connections. The server closes further ones without a response."""


class NotReadyError(Exception):
    """Error of a route that cannot answer yet. Its text is the body of the response, with status 503."""


@dataclass(frozen=True)
class HttpResponse:
    """Answer to a request.

    Attributes
    ----------
    kind
        Media type of the body.
    body
        Content in bytes.
    """

    kind: str
    body: bytes


Route = Callable[[], HttpResponse]
"""Handler of the requests for one path, called in a separate thread. It may raise :class:`NotReadyError`."""


class WebServer(ThreadingHTTPServer):
    """Web server for GET and HEAD requests, which runs in threads of this process.

    The host in a request must be an IP address, a name without a dot, the name on which the server listens, or the full
    name of this machine. This check prevents DNS rebinding: a page on the internet could otherwise map its own name to
    an address of this machine, and have a browser read this server.

    Parameters
    ----------
    address
        Address on which to listen.
    routes
        Handler of each path.

    Raises
    ------
    UnreachableError
        If the server cannot listen on the address.
    """

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, address: Address, routes: Mapping[str, Route]) -> None:
        self.routes = routes
        self._places = threading.Semaphore(READERS)
        try:
            found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
            self.address_family = found[0][0]
            super().__init__(found[0][4][:2], _HttpHandler)  # type: ignore[arg-type]
        except OSError as error:
            raise UnreachableError(
                f"cannot listen on {address} ({error.strerror or error}); if the port is in use, choose another, "
                "or check the host name"
            ) from None
        self.address = Address(address.host, self.socket.getsockname()[1])
        self._names = {"localhost", address.host.lower(), socket.getfqdn().lower()}
        self._thread = threading.Thread(
            target=self.serve_forever, kwargs={"poll_interval": 0.2}, name="web", daemon=True
        )

    def server_bind(self) -> None:
        """Bind the socket without a DNS lookup of the machine's name, which may be slow."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.shutdown()
        end = time.monotonic() + _LAST_WORDS
        for _ in range(READERS):  # acquire all slots, that is, wait for all pending requests
            self._places.acquire(timeout=max(end - time.monotonic(), 0.0))
        self.server_close()
        self._thread.join()

    def is_meant(self, host: str | None) -> bool:
        """Return True if the host of a request denotes this server."""
        found = _HOST.fullmatch(host or "")
        if found is None:
            return False
        name = (found["six"] or found["name"]).lower()
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return found["six"] is None and ("." not in name or name in self._names)
        return True

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer a request in a thread, or close its connection if too many are open."""
        if not self._places.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:  # free the slot if no thread could be started
            self._places.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer a request, then free its place among the open requests."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._places.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log an error that occurred in handling a request, usually because the browser disconnected."""
        log.debug("a reader could not be answered", exc_info=True)


class _Asked(io.RawIOBase):
    """Stream of a request, with limits on its duration and size."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._end = time.monotonic() + _PATIENCE
        self._room = _LONGEST

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        left = self._end - time.monotonic()
        if left <= 0 or self._room <= 0:
            raise TimeoutError(f"the request took more than {_PATIENCE:g} s, or has more than {_LONGEST:,} bytes")
        self._connection.settimeout(left)
        said = self._connection.recv_into(buffer)
        self._room -= said
        return said


class _HttpHandler(BaseHTTPRequestHandler):
    """Handler of one request.

    Attributes
    ----------
    default_request_version
        HTTP version assumed for requests without one, so that every answer has headers.
    """

    server: WebServer
    default_request_version = "HTTP/1.0"

    def setup(self) -> None:
        """Limit the time of the whole request, because the timeout of ``http.server`` covers only single reads."""
        super().setup()
        self.rfile.close()
        self.rfile = io.BufferedReader(_Asked(self.connection))

    def _refuse(self) -> None:
        self._say(405, "only GET and HEAD are supported", Allow="GET, HEAD")

    do_POST = do_PUT = do_DELETE = do_PATCH = do_OPTIONS = do_TRACE = do_CONNECT = _refuse

    def _answer(self) -> None:
        hosts = self.headers.get_all("Host", [])
        if len(hosts) != 1 or not self.server.is_meant(hosts[0].strip()):
            self._say(421, "use this server's IP address, or the name that it listens on")
            return
        route = self.server.routes.get(self.path.partition("?")[0])
        if route is None:
            self._say(404, "no page has this path")
            return
        try:
            answer = route()
        except NotReadyError as error:
            self._say(503, str(error), Refresh="2")  # makes browsers reload after two seconds
            return
        except Exception:
            log.exception("a defect: the request for %s failed", self.path)
            self._say(500, "a defect; see the log")
            return
        tag = f'"{hashlib.sha256(answer.body).hexdigest()[:32]}"'
        if self.headers.get("If-None-Match") == tag:
            self._send(304, answer, ETag=tag)
        else:
            self._send(200, answer, ETag=tag)

    do_GET = do_HEAD = _answer

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Reject a malformed request, without quoting its content."""
        self._say(code, HTTPStatus(code).phrase)

    def _say(self, code: int, words: str, **headers: str) -> None:
        self._send(code, HttpResponse("text/plain; charset=utf-8", f"{words}\n".encode()), **headers)

    def _send(self, code: int, answer: HttpResponse, **headers: str) -> None:
        self.connection.settimeout(_PATIENCE)  # timeout for sending the response
        self.send_response(code)
        for name, value in {**_HEADERS, **headers}.items():
            self.send_header(name, value)
        if code != 304:
            self.send_header("Content-Type", answer.kind)
            self.send_header("Content-Length", str(len(answer.body)))
        self.end_headers()
        if code != 304 and self.command != "HEAD":
            self.wfile.write(answer.body)

    def version_string(self) -> str:
        """Return the server's name without version numbers."""
        return "fenchel"

    def log_message(self, format: str, *args: Any) -> None:
        log.debug("%s: " + format, self.address_string(), *args)
