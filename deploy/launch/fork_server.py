"""A process that has imported Fenchel once, and forks for each process that is wanted of it.

What a client imports takes a processor most of a second; a copy of a process that has done so takes it some
milliseconds, and shares its memory.
"""

from __future__ import annotations

import asyncio
import json
import os
import select
import selectors
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, NoReturn, Self

from fenchel.common.errors import RunStoppedError
from fenchel.deploy.cli.main import ONE_THREAD, set_up_process
from fenchel.deploy.cli.main import main as command_line

_LENGTH = 4  # bytes of a number


@dataclass
class Forked:
    """A process that runs one command of ``fenchel``; like ``subprocess.Popen``, as far as it goes."""

    pid: int
    _status: int  # descriptor from which the exit code can be read when there is one
    returncode: int | None = None  # below 0: the signal that killed it

    def poll(self) -> int | None:
        """Return the exit code, or ``None`` while the process runs."""
        if self.returncode is None and select.select([self._status], [], [], 0)[0]:
            told = os.read(self._status, _LENGTH)
            os.close(self._status)
            # Without the fork server nobody knows any more; what it forked has lost its parent.
            self.returncode = int.from_bytes(told, signed=True) if told else -signal.SIGKILL
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the process to end; return its exit code, or raise ``subprocess.TimeoutExpired``."""
        if self.returncode is None and not select.select([self._status], [], [], timeout)[0]:
            raise subprocess.TimeoutExpired("fenchel", timeout or 0.0)
        code = self.poll()
        assert code is not None
        return code

    async def ended(self) -> int:
        """Wait for the process to end; return its exit code."""
        if self.returncode is None:
            loop = asyncio.get_running_loop()
            readable = asyncio.Event()
            loop.add_reader(self._status, readable.set)
            try:
                await readable.wait()
            finally:
                loop.remove_reader(self._status)
        return self.wait()

    def send_signal(self, number: int) -> None:
        """Send a signal, unless the process has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        """Ask the process to end."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End the process as the kernel does."""
        self.send_signal(signal.SIGKILL)


class ForkServer:
    """The side that asks for processes; a context manager, which ends the fork server but nothing that it forked."""

    def __enter__(self) -> Self:
        self._control, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", __name__, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )
        return self

    def __exit__(self, *exception: object) -> None:
        self._control.close()
        self._process.wait()

    @property
    def pid(self) -> int:
        """The parent of what is forked."""
        return self._process.pid

    def start(self, words: Sequence[str], output: BinaryIO, environment: Mapping[str, str] | None = None) -> Forked:
        """Start a process; raise :class:`RunStoppedError` where the fork server has ended.

        words: of the command line, after ``fenchel``.
        output: open file to which its standard output and standard error go.
        environment: in place of the fork server's; what is read by libraries when they are imported has been read.
        """
        order = json.dumps({"words": words, "environment": environment, "folder": str(Path.cwd())}).encode()
        status, theirs = os.pipe()
        told = b""
        with suppress(BrokenPipeError, ConnectionResetError):
            socket.send_fds(self._control, [len(order).to_bytes(_LENGTH)], [output.fileno(), theirs])
            self._control.sendall(order)
            told = self._control.recv(_LENGTH, socket.MSG_WAITALL)
        os.close(theirs)
        if len(told) < _LENGTH:
            os.close(status)
            raise RunStoppedError(
                f"the process from which others are forked has ended with code {self._process.wait()}; what it said is "
                "above. Resume the run"
            )
        return Forked(int.from_bytes(told), status)


@dataclass(frozen=True)
class _Order:
    """A process that is wanted."""

    words: Sequence[str]
    environment: Mapping[str, str] | None
    folder: str
    output: int  # descriptor
    status: int  # descriptor to which the exit code is written

    @classmethod
    def received(cls, control: socket.socket) -> Self | None:
        """Wait for the next order; return ``None`` when there will be no more."""
        header, descriptors, _, _ = socket.recv_fds(control, _LENGTH, 2)
        if len(header) < _LENGTH:
            return None
        order = json.loads(control.recv(int.from_bytes(header), socket.MSG_WAITALL))
        return cls(**order, output=descriptors[0], status=descriptors[1])

    def become(self) -> NoReturn:
        """Make this process the one that is wanted."""
        for number in (signal.SIGINT, signal.SIGCHLD):
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
        os.close(self.status)
        for standard in (sys.stdout, sys.stderr):
            standard.flush()
            os.dup2(self.output, standard.fileno())
        os.close(self.output)
        if self.environment is not None:
            os.environ.clear()
            os.environ.update(self.environment)
        os.chdir(self.folder)
        if sys.platform == "darwin":  # its linear algebra survives no fork
            os.execv(sys.executable, [sys.executable, "-P", "-m", "fenchel", *self.words])  # noqa: S606
        sys.argv = ["fenchel", *self.words]
        command_line()


def _serve(control: socket.socket) -> _Order | None:
    """Fork as ordered; return an order in the process that was forked for it, and ``None`` when nobody orders more."""
    running: dict[int, int] = {}  # where to write the exit code, by process
    wake, woken = socket.socketpair()
    wake.setblocking(False)
    signal.set_wakeup_fd(wake.fileno())
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal; those that it forked hear it, too
    with wake, woken, selectors.DefaultSelector() as selector:
        selector.register(control, selectors.EVENT_READ)
        selector.register(woken, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fileobj is woken:
                    woken.recv(1024)
                    _reap(running)
                    continue
                order = _Order.received(control)
                if order is None:
                    return None
                pid = os.fork()
                if pid == 0:
                    signal.set_wakeup_fd(-1)
                    control.close()
                    for status in running.values():
                        os.close(status)
                    return order
                running[pid] = order.status
                os.close(order.output)
                control.sendall(pid.to_bytes(_LENGTH))


def _reap(running: dict[int, int]) -> None:
    """Tell how those processes ended that have."""
    while running:
        pid, state = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        status = running.pop(pid)
        try:
            os.write(status, os.waitstatus_to_exitcode(state).to_bytes(_LENGTH, signed=True))
        except BrokenPipeError:  # nobody wants to know
            continue
        finally:
            os.close(status)


def main() -> None:
    """Import what processes need, then fork until nobody orders more."""
    os.environ.update(dict.fromkeys(ONE_THREAD, "1"))  # linear algebra must have no threads that a fork would lose
    set_up_process()
    import fenchel.algorithms.registry
    import fenchel.client.client_process
    import fenchel.deploy.cli.run
    import fenchel.server.transport.service  # noqa: F401

    order = _serve(socket.socket(fileno=int(sys.argv[1])))
    if order is not None:
        order.become()


if __name__ == "__main__":
    main()
