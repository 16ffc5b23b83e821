"""Client of the fork server, a process that has imported Fenchel and forks a child for each request.

The imports of a client take most of a second of processor time. A forked child starts in a few milliseconds, and shares
the memory of the imported modules. The fork server of ``multiprocessing`` does not serve here: its children execute the
caller's main module, so a script without ``if __name__ == "__main__"`` would start its run again in each client.
"""

from __future__ import annotations

import asyncio
import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Self

from fenchel.common.errors import RunStoppedError

LENGTH = 4
"""Size in bytes of an integer in messages: the length of a request, a process id or an exit code."""

_SERVER = "fenchel.deploy.cli.forks"


@dataclass
class Forked:
    """Forked process that runs one command of ``fenchel``, with a subset of the interface of ``subprocess.Popen``.

    Attributes
    ----------
    returncode
        Exit code of the process, or the negated number of the signal that killed it. ``None`` while the process runs.
    """

    pid: int
    _status: int  # file descriptor of the pipe that delivers the exit code
    returncode: int | None = None

    def poll(self) -> int | None:
        """Return the exit code, or ``None`` while the process runs."""
        if self.returncode is None and self._has_code(0):
            code = os.read(self._status, LENGTH)
            os.close(self._status)
            # If the fork server has exited, nothing reports the exit code, so the process counts as killed.
            self.returncode = int.from_bytes(code, signed=True) if code else -signal.SIGKILL
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the process to exit, and return its exit code.

        Parameters
        ----------
        timeout
            Longest wait in seconds; ``None`` for no limit.

        Raises
        ------
        subprocess.TimeoutExpired
            If the process still runs after this time.
        """
        if self.returncode is None and not self._has_code(timeout):
            raise subprocess.TimeoutExpired("fenchel", timeout or 0.0)
        code = self.poll()
        assert code is not None
        return code

    def _has_code(self, timeout: float | None) -> bool:
        """Return whether the exit code can be read, after a wait of at most ``timeout`` seconds."""
        # Unlike select, poll accepts file descriptors above 1,023, which a server with many clients has.
        poll = select.poll()
        poll.register(self._status, select.POLLIN)
        return bool(poll.poll(None if timeout is None else timeout * 1000))

    async def ended(self) -> int:
        """Wait for the process to exit, and return its exit code."""
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
        """Send a signal, unless the process has exited."""
        if self.poll() is None:
            with suppress(ProcessLookupError):  # the process may have exited since poll()
                os.kill(self.pid, number)

    def terminate(self) -> None:
        """Send SIGTERM to the process."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL to the process."""
        self.send_signal(signal.SIGKILL)


class ForkServer:
    """Client of the fork server, as a context manager that ends the fork server but none of its children.

    Parameters
    ----------
    modules
        Modules that the fork server imports for all children, in addition to those of ``fenchel client``.
    """

    def __init__(self, modules: Sequence[str] = ()) -> None:
        self._modules = modules

    def __enter__(self) -> Self:
        self._control, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", _SERVER, str(theirs.fileno()), *self._modules],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )
        return self

    def __exit__(self, *exception: object) -> None:
        self._control.close()
        self._process.wait()

    @property
    def pid(self) -> int:
        """Process id of the fork server, the parent of all forked processes."""
        return self._process.pid

    def start(
        self,
        words: Sequence[str],
        output: BinaryIO,
        environment: Mapping[str, str] | None = None,
        *,
        given: int | None = None,
    ) -> Forked:
        """Start a process, or raise a :class:`RunStoppedError` if the fork server has exited.

        Parameters
        ----------
        words
            Command-line arguments after ``fenchel``.
        output
            Open file for the standard output and standard error of the process.
        environment
            Environment variables; ``None`` for those of the fork server. Variables that libraries read on import have
            no effect.
        given
            File descriptor of the standard input of the process; ``None`` for an empty standard input.
        """
        order = json.dumps({"words": words, "environment": environment, "folder": str(Path.cwd())}).encode()
        status, theirs = os.pipe()
        reply = b""
        with suppress(BrokenPipeError, ConnectionResetError):
            descriptors = [output.fileno(), theirs, *(() if given is None else (given,))]
            socket.send_fds(self._control, [len(order).to_bytes(LENGTH)], descriptors)
            self._control.sendall(order)
            reply = self._control.recv(LENGTH, socket.MSG_WAITALL)
        os.close(theirs)
        if len(reply) < LENGTH:
            os.close(status)
            raise RunStoppedError(
                f"the fork server, which starts the client processes, ended with code {self._process.wait()}; its "
                "output is above. Continue with --resume"
            )
        return Forked(int.from_bytes(reply), status)
