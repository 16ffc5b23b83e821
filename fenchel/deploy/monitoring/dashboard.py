"""Dashboard of a run: its HTML report and the status of the clients, served during the run.

The page costs the run's event loop little: a snapshot of the clients' status, at most once a second for any number of
viewers. A separate process (:mod:`fenchel.deploy.monitoring.rendering`) renders the page, and threads of the web
server send it.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import json
import logging
import math
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import partial
from importlib import resources
from pathlib import Path
from string import Template
from typing import Any, Self

from fenchel.common.errors import UnreachableError
from fenchel.common.storage.round_columns import Row
from fenchel.common.storage.run_folder import RunFolder
from fenchel.deploy.address import Address
from fenchel.deploy.monitoring.time_left import TimeLeft
from fenchel.deploy.monitoring.web import HttpResponse, NotReadyError, Route, WebServer
from fenchel.fleet.calls import Call
from fenchel.server.membership.client_status import ClientStatus, client_statuses
from fenchel.server.telemetry.observer import Observer, OngoingRun
from fenchel.server.telemetry.time_breakdown import CallBreakdown

log = logging.getLogger("fenchel.web")

DEFAULT = Address("127.0.0.1", 7444)
"""Default address of the dashboard."""

_FRESH = 1.0  # lifetime of cached answers, in seconds
_RENDERING_SHARE = 0.2  # largest share of time that the rendering process may be busy
_PATIENCE = 2.0  # timeout for the event loop to report the states of clients, in seconds
_SHOWN = 200  # largest number of clients in the table
_LINGER = 4.0  # time for open pages to fetch the final state, in seconds
_ORDER = {"lost": 0, "away": 1, "joined": 2, "connected": 3}
_FILES = {
    "page.css": "text/css",
    "dashboard.css": "text/css",
    "plotly.js": "text/javascript",
    "page.js": "text/javascript",
    "dashboard.js": "text/javascript",
}


@dataclass
class _RunProgress:
    """Latest progress of the run, as reported by the event loop."""

    round: int = 0
    round_unix: float | None = None
    done: int = 0
    waits: str = ""


class Dashboard(Observer):
    """Dashboard, served for the duration of a ``with`` block.

    Parameters
    ----------
    folder
        Run folder.
    rounds
        Number of planned rounds.
    address
        Address of the page. ``None`` for :data:`DEFAULT`, or a free port if that address is in use.

    Raises
    ------
    UnreachableError
        If the server cannot listen on the address.
    """

    def __init__(self, folder: RunFolder, rounds: int, address: Address | None = None) -> None:
        self._rounds = rounds
        self._run: tuple[OngoingRun, asyncio.AbstractEventLoop] | None = None
        self._progress = _RunProgress()
        self._left = TimeLeft(rounds)
        self._network: dict[str, float] = {}
        self._noted = 0.0
        self._watched = -math.inf  # monotonic time of the latest request, in seconds
        self._over = False
        self._seen_over = threading.Event()
        self._renderer = _Renderer(folder.path)
        self._page = _Remembered(partial(self._renderer.ask, "page"), share=_RENDERING_SHARE)
        self._files = _Remembered(partial(self._renderer.ask, "files"), lasts=math.inf)
        self._standings = _Remembered(self._ask)
        self._server = self._bound(address)
        self._open = ExitStack()

    @property
    def url(self) -> str:
        """URL of the dashboard."""
        return f"http://{self._server.address}/"

    @property
    def is_private(self) -> bool:
        """True if only this machine can reach the dashboard."""
        return self._server.address.is_loopback

    def __enter__(self) -> Self:
        self._open.callback(self._renderer.close)
        self._open.enter_context(self._server)
        return self

    def __exit__(self, *error: object) -> None:
        """Stop the web server after an open page has fetched the end of the run, or after a few seconds."""
        self._over = True
        self._page.forget()
        if time.monotonic() - self._watched < _LINGER:
            self._seen_over.wait(_LINGER)
        self._open.close()

    # Callbacks on the event loop of the run

    def begun(self, run: OngoingRun) -> None:
        """Store the run, and the event loop on which its state may be read."""
        self._run = run, asyncio.get_running_loop()

    def round_begun(self, t: int) -> None:
        """Record the current round."""
        self._progress.round, self._progress.round_unix = t, time.time()

    def waiting(self, reason: str) -> None:
        """Record the reason why the run waits."""
        self._progress.waits = reason

    def round_ended(self, row: Row) -> None:
        """Record the last completed round."""
        self._progress.done = int(row["round"])
        self._left.round_ended(row)

    def calls(self, calls: Sequence[Call]) -> None:
        """Record the network time of each client's last call in ``calls``, at most once a second."""
        now = time.monotonic()
        if now - self._noted < _FRESH:
            return  # pages update only once a second
        self._noted = now
        for call in calls:
            network = CallBreakdown.of(call).network
            if not math.isnan(network):
                self._network[call.client] = network

    # Requests of browsers

    def _bound(self, address: Address | None) -> WebServer:
        routes: Mapping[str, Route] = {
            "/": self._whole,
            "/data": self._data,
            "/fleet": self._fleet,
            **{f"/{name}": partial(self._file, name, kind) for name, kind in _FILES.items()},
        }
        if address is not None:
            return WebServer(address, routes)
        try:
            return WebServer(DEFAULT, routes)
        except UnreachableError:
            return WebServer(Address(DEFAULT.host, 0), routes)

    def _whole(self) -> HttpResponse:
        self._files.get()  # starts the rendering process first, so that its start does not count as rendering time
        found = self._page.get()
        template = Template(
            resources.files("fenchel.deploy.monitoring").joinpath("dashboard.html").read_text(encoding="utf-8")
        )
        return HttpResponse("text/html; charset=utf-8", template.substitute(found).encode())

    def _file(self, name: str, kind: str) -> HttpResponse:
        return HttpResponse(f"{kind}; charset=utf-8", self._files.get()[name].encode())

    def _data(self) -> HttpResponse:
        found = self._page.get()
        if self._over:
            self._seen_over.set()
        return _json({"body": found["body"], "charts": json.loads(found["data"])})

    def _fleet(self) -> HttpResponse:
        self._watched = time.monotonic()
        asked_unix, standings, expected = self._standings.get()
        shown = sorted(standings, key=lambda each: (_ORDER[each.state], each.question is None, each.client))
        return _json(
            {
                "unix": time.time(),
                "asked_unix": asked_unix,
                "running": not self._over,
                **asdict(self._progress),
                "rounds": self._rounds,
                "left_s": self._left.seconds,
                "expected": expected,
                "total": len(standings),
                "counts": Counter(each.state for each in shown),
                "clients": [asdict(each) | {"network_s": self._network.get(each.client)} for each in shown[:_SHOWN]],
            }
        )

    def _ask(self) -> tuple[float, list[ClientStatus], int | None]:
        """Return the time in seconds since 1970, the status of all clients, and the expected number of clients."""
        if self._run is None:
            return time.time(), [], None
        run, loop = self._run
        if loop.is_closed():
            raise NotReadyError("the run is over")

        async def asked() -> tuple[float, list[ClientStatus], int | None]:
            return time.time(), client_statuses(run.admission), run.admission.registration.expected

        future = asyncio.run_coroutine_threadsafe(asked(), loop)
        try:
            return future.result(_PATIENCE)
        except (concurrent.futures.TimeoutError, concurrent.futures.CancelledError):
            future.cancel()
            raise NotReadyError("the server is busy; ask again") from None


class _Renderer:
    """Handle of the process :mod:`fenchel.deploy.monitoring.rendering`, with one request at a time."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()

    def close(self) -> None:
        """End the process."""
        if (process := self._process) is not None:
            process.kill()  # a rendering in progress is no longer needed
        with self._lock:
            self._end()

    def ask(self, what: str) -> dict[str, str]:
        """Return the current ``page`` of the run, or its static ``files``. Raise ``NotReadyError`` on failure."""
        with self._lock:
            process = self._started()
            assert process.stdin is not None
            assert process.stdout is not None
            try:
                process.stdin.write(f"{what}\n".encode())
                process.stdin.flush()
                answer = process.stdout.readline()
            except OSError as error:
                log.debug("the rendering process has gone: %s", error)
                answer = b""
            if not answer:
                self._end()
                raise NotReadyError("the page could not be rendered; it will be tried again")
        found: dict[str, str] = json.loads(answer)
        if "error" in found:
            log.info("%s: %s", found["error"], found["details"])
            raise NotReadyError(found["error"])
        return found

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "fenchel.deploy.monitoring.rendering", str(self._folder)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
        return self._process

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout):
            assert stream is not None
            try:
                stream.close()
            except OSError as error:  # closing flushes the buffer to a process that has exited
                log.debug("the rendering process has gone: %s", error)


class _Remembered:
    """Cached answer for all requests, which remains in use if a new answer cannot be computed.

    Parameters
    ----------
    make
        Function that computes an answer, or raises :class:`NotReadyError`.
    lasts
        Shortest lifetime of the answer in seconds.
    share
        Largest fraction of the time spent on computing answers.
    """

    def __init__(self, make: Callable[[], Any], lasts: float = _FRESH, share: float = 1.0) -> None:
        self._make = make
        self._lasts = lasts
        self._share = share
        self._lock = threading.Lock()
        self._answer: Any = None
        self._until = -math.inf

    def get(self) -> Any:
        """Return the cached answer, or compute a new one. Raise ``NotReadyError`` if neither is possible."""
        with self._lock:
            started = time.monotonic()
            if started < self._until:
                return self._answer
            try:
                self._answer = self._make()
            except NotReadyError:
                if self._answer is None:
                    raise
            now = time.monotonic()
            self._until = now + max(self._lasts, (now - started) * (1 / self._share - 1))
            return self._answer

    def forget(self) -> None:
        """Invalidate the cached answer."""
        with self._lock:
            self._until = -math.inf


def _json(values: Mapping[str, Any]) -> HttpResponse:
    return HttpResponse("application/json", json.dumps(values, separators=(",", ":"), allow_nan=False).encode())
