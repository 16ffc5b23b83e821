"""Fork server, which imports Fenchel once and forks for requests of :mod:`fenchel.deploy.launch.fork_server`."""

from __future__ import annotations

import gc
import importlib
import json
import os
import selectors
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn, Self

from fenchel.deploy.cli.main import ONE_THREAD, application, set_up_process
from fenchel.deploy.cli.main import main as command_line
from fenchel.deploy.launch.fork_server import LENGTH


@dataclass(frozen=True)
class Order:
    """Request for a new process.

    Attributes
    ----------
    words
        Command-line arguments after ``fenchel``.
    environment
        Environment variables; ``None`` for those of the fork server.
    folder
        Working folder of the process.
    output
        File descriptor for standard output and standard error.
    status
        File descriptor to which the fork server writes the exit code.
    given
        File descriptor of standard input; ``None`` to inherit that of the fork server.
    """

    words: Sequence[str]
    environment: Mapping[str, str] | None
    folder: str
    output: int
    status: int
    given: int | None

    @classmethod
    def received(cls, control: socket.socket) -> Self | None:
        """Wait for the next request; return ``None`` after the last request."""
        header, descriptors, _, _ = socket.recv_fds(control, LENGTH, 3)
        if len(header) < LENGTH:
            return None
        order = json.loads(control.recv(int.from_bytes(header), socket.MSG_WAITALL))
        output, status, *given = descriptors
        return cls(**order, output=output, status=status, given=given[0] if given else None)

    def become(self) -> NoReturn:
        """Configure this forked process as requested, run its command, and exit."""
        for number in (signal.SIGINT, signal.SIGCHLD):
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
        os.close(self.status)
        for standard in (sys.stdout, sys.stderr):
            standard.flush()
            os.dup2(self.output, standard.fileno())
        os.close(self.output)
        if self.given is not None:
            os.dup2(self.given, sys.stdin.fileno())
            os.close(self.given)
        if self.environment is not None:
            os.environ.clear()
            os.environ.update(self.environment)
        os.chdir(self.folder)
        if sys.platform == "darwin":  # Apple's linear algebra library does not work after a fork
            os.execv(sys.executable, [sys.executable, "-P", "-m", "fenchel", *self.words])  # noqa: S606
        sys.argv = ["fenchel", *self.words]
        command_line()


def _serve(control: socket.socket) -> Order | None:
    """Fork a child for each request; return the request in the child, and ``None`` in the parent after the last."""
    running: dict[int, int] = {}  # file descriptor for the exit code, by process id
    wake, woken = socket.socketpair()
    wake.setblocking(False)
    signal.set_wakeup_fd(wake.fileno())
    signal.signal(signal.SIGCHLD, lambda *_: None)
    # Ignore Ctrl-C in the terminal, which also reaches the forked processes: this process must report their exit codes.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with wake, woken, selectors.DefaultSelector() as selector:
        selector.register(control, selectors.EVENT_READ)
        selector.register(woken, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fileobj is woken:
                    woken.recv(1024)
                    _reap(running)
                    continue
                order = Order.received(control)
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
                if order.given is not None:
                    os.close(order.given)
                control.sendall(pid.to_bytes(LENGTH))


def _reap(running: dict[int, int]) -> None:
    """Report the exit codes of all children that have ended."""
    while running:
        pid, state = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        status = running.pop(pid)
        try:
            os.write(status, os.waitstatus_to_exitcode(state).to_bytes(LENGTH, signed=True))
        except BrokenPipeError:  # the client that requested the process has exited
            continue
        finally:
            os.close(status)


def main() -> None:
    """Import the modules that the forked processes need, then fork a process for each request."""
    gc.disable()  # imported objects stay; each child enables the search for cycles again
    os.environ.update(dict.fromkeys(ONE_THREAD, "1"))  # one thread for linear algebra, as a fork does not copy threads
    set_up_process()
    import scipy.linalg  # SciPy's parts are otherwise imported at their first use, by each child
    import scipy.sparse
    import scipy.special  # noqa: F401

    import fenchel.algorithms.registry
    import fenchel.client.client_process
    import fenchel.deploy.certificates.pairs
    import fenchel.deploy.launch.bundle
    import fenchel.deploy.monitoring.client_exporters
    import fenchel.keys.shared  # noqa: F401

    application("client")
    control, *modules = sys.argv[1:]
    for module in modules:
        importlib.import_module(module)
    gc.freeze()  # so that no child searches, and thereby copies, the memory that it shares
    order = _serve(socket.socket(fileno=int(control)))
    if order is not None:
        order.become()


if __name__ == "__main__":
    main()
