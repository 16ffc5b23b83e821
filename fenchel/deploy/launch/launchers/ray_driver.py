"""Ray driver, a process separate from the server's because it forwards the secrets of client processes.

The driver connects to the cluster, surveys the nodes, and then runs an actor for each client process.
:mod:`fenchel.deploy.launch.launchers.handover` passes the standard streams of each client process to the driver. The
driver ends when its own standard input closes.
"""

from __future__ import annotations

import json
import os
import select
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from fenchel.deploy.launch.launchers.handover import STREAMS

DIAL = "DIAL"
"""Placeholder for the address of this machine in the arguments of a survey."""

_CHUNK = 65_536  # chunk size in bytes, small enough for Ray to bypass its object store
_ROOM = 10.0  # time after which a process reports that it is waiting for resources, in seconds
_GRACE = 5.0  # grace period for client processes to exit, in seconds
LOOKING = 60.0
"""Timeout for a survey of all nodes in seconds, which includes the start of a Python process on each node."""

_CLEANING = 15.0  # timeout for removing the temporary folder on all nodes, in seconds
_DISCONNECTING = 15.0  # timeout for disconnecting from the cluster, in seconds


class RemoteProcess:
    """Process on a Ray node, with its standard streams.

    The driver sends the code of this class, of :func:`look` and of :func:`remove` to the nodes, because a survey must
    also run on nodes without Fenchel.
    """

    def __init__(self, words: Sequence[str]) -> None:
        pipe = subprocess.PIPE
        # However this actor ends, the standard input of the process closes, and the process exits.
        self._process = subprocess.Popen([sys.executable, *words], bufsize=0, stdin=pipe, stdout=pipe, stderr=pipe)

    def write(self, given: bytes) -> None:
        """Write to the standard input of the process, or close the standard input if ``given`` is empty."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            if given:
                self._process.stdin.write(given)
            else:
                self._process.stdin.close()

    def output(self) -> Iterator[tuple[int, bytes]]:
        """Yield chunks of the output, each after its file descriptor (1 or 2), until the process exits."""
        with selectors.DefaultSelector() as selector:
            for number, stream in ((1, self._process.stdout), (2, self._process.stderr)):
                assert stream is not None
                selector.register(stream, selectors.EVENT_READ, number)
            while selector.get_map():
                for key, _ in selector.select():
                    if printed := os.read(key.fd, 65_536):
                        yield key.data, printed
                    else:
                        selector.unregister(key.fileobj)
        self._process.wait()


def look(words: Sequence[str]) -> tuple[int, str, str]:
    """Run Python on a node, and return its exit code, standard output and the end of standard error."""
    done = subprocess.run([sys.executable, *words], stdin=subprocess.DEVNULL, capture_output=True, check=False)
    return done.returncode, done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")[-500:]


def remove(folder: str) -> None:
    """Remove a folder on a node."""
    shutil.rmtree(folder, ignore_errors=True)


@dataclass
class Relay:
    """Connection of local file descriptors to the standard streams of a process on a node.

    Parameters
    ----------
    ray
        Module ``ray``, connected to a cluster.
    actor
        Actor of class :class:`RemoteProcess`.
    connection
        Connection to the local command that represents the process. When either ends, so does the other.
    given, report, log
        File descriptors of standard input, standard output and standard error.
    """

    ray: Any
    actor: Any
    connection: socket.socket
    given: int
    report: int
    log: int

    def run(self) -> None:
        """Forward all streams until the process exits."""
        feeding = threading.Thread(target=self._feed, daemon=True)
        feeding.start()
        try:
            for reference in self.actor.output.options(num_returns="streaming").remote():
                number, printed = self.ray.get(reference)
                with suppress(BrokenPipeError):
                    os.write(self.report if number == 1 else self.log, printed)
        except self.ray.exceptions.RayError as error:
            self._say(f"its actor was lost: {str(error).strip()[:500]}")
        finally:
            self.connection.shutdown(socket.SHUT_RDWR)
            feeding.join()
            for descriptor in (self.given, self.report, self.log):
                os.close(descriptor)
            self.connection.close()

    def _feed(self) -> None:
        """Forward standard input, and kill the actor when the connection closes."""
        poll = select.poll()
        for each in (self.connection.fileno(), self.given):
            poll.register(each, select.POLLIN)
        with suppress(self.ray.exceptions.RayError):  # if the actor is lost, run() reports the same error
            while self.connection.fileno() not in (ready := dict(poll.poll())):
                assert self.given in ready
                chunk = os.read(self.given, _CHUNK)
                self._write(chunk)
                if not chunk:
                    poll.unregister(self.given)
        self.ray.kill(self.actor)

    def _write(self, chunk: bytes) -> None:
        """Write to the process, whose start may have to wait for free resources."""
        writing = self.actor.write.remote(chunk)
        begun, is_said = time.monotonic(), False
        while not self.ray.wait([writing], timeout=0.5)[0]:
            if select.select([self.connection], [], [], 0)[0]:
                return
            if not is_said and time.monotonic() > begun + _ROOM:
                self._say("waits for room in the cluster; ray status shows what takes it")
                is_said = True
        self.ray.get(writing)

    def _say(self, text: str) -> None:
        os.write(self.log, f"Ray: {text}\n".encode())


@dataclass
class Driver:
    """Actors of client processes on a cluster.

    Parameters
    ----------
    ray
        Module ``ray``, connected to the cluster.
    options
        Options of each actor.
    """

    ray: Any
    options: Mapping[str, Any]
    _running: list[threading.Thread] = field(default_factory=list)

    def able(self) -> Iterator[tuple[Mapping[str, Any], int]]:
        """Yield each node with resources for at least one client process, and the number of processes that fit."""
        wanted = {"CPU": self.options["num_cpus"], "GPU": self.options["num_gpus"], **self.options.get("resources", {})}
        for node in self.ray.nodes():
            rooms = [int(node["Resources"].get(name, 0) / each + 1e-9) for name, each in wanted.items() if each]
            if node["Alive"] and (room := min(rooms, default=sys.maxsize)):
                yield node, room

    def on_nodes(self, function: Any, argument: Any, patience: float) -> list[dict[str, Any]]:
        """Call a function on each node of :meth:`able`, and return the nodes' addresses and results.

        Parameters
        ----------
        patience
            Timeout in seconds, after which the result of a node without an answer is ``None``.
        """
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        nodes, calls = [node for node, _ in self.able()], []
        for node in nodes:
            pinned = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
            task = self.ray.remote(num_cpus=0, max_retries=0, scheduling_strategy=pinned)(function)
            calls.append(task.remote(argument))
        answered = set(self.ray.wait(calls, num_returns=len(calls), timeout=patience)[0]) if calls else set()
        return [
            {"node": node["NodeManagerAddress"], "result": self.ray.get(call) if call in answered else None}
            for node, call in zip(nodes, calls, strict=True)
        ]

    def survey(self, look_for: Sequence[str], dial: str, processes: int) -> dict[str, Any]:
        """Return the state of the cluster before the start of client processes.

        Parameters
        ----------
        look_for
            Arguments of a node's survey, with the placeholder :data:`DIAL` for the address of this machine.
        dial
            Address of this machine; by default the address that Ray uses.
        processes
            Number of client processes. Nodes are not surveyed if the cluster has too few resources for this number.
        """
        dial = dial or self.ray.util.get_node_ip_address()
        room = sum(room for _, room in self.able())
        words = [dial if word == DIAL else word for word in look_for]
        return {
            "dial": dial,
            "room": room,
            "resources": self.ray.cluster_resources(),
            "nodes": self.on_nodes(look, words, LOOKING) if room >= processes else [],
        }

    def accept(self, server: socket.socket) -> None:
        """Run an actor in a new thread for each connection. This method never returns."""
        while True:
            connection, _ = server.accept()
            self._running.append(threading.Thread(target=self._run, args=(connection,), daemon=True))
            self._running[-1].start()

    def end(self, temporary: str) -> None:
        """Wait for client processes to exit, and remove the temporary folder on all nodes, if any."""
        until = time.monotonic() + _GRACE
        for running in self._running:
            running.join(max(0.0, until - time.monotonic()))
        if temporary:
            with suppress(self.ray.exceptions.RayError):
                self.on_nodes(remove, temporary, _CLEANING)
        self.ray.shutdown()

    def _run(self, connection: socket.socket) -> None:
        _, (given, report, log), _, _ = socket.recv_fds(connection, 1, STREAMS)
        with connection.makefile("rb") as orders:
            words = json.loads(orders.readline())
        actor = self.ray.remote(**self.options)(RemoteProcess).remote(words)
        Relay(self.ray, actor, connection, given, report, log).run()


def main() -> None:
    """Run a driver for a request (``ORDER``, a JSON object), and print a report on the cluster as one line of JSON.

    The first line of standard input is the path of the temporary folder on nodes, or empty. Standard input then stays
    open until the end of the run.
    """
    import ray

    # Ignore Ctrl-C in the terminal: the driver ends when standard input closes.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    order = json.loads(sys.argv[1])
    driver = Driver(ray, order["options"])
    try:
        ray.init(order["address"] or "auto", log_to_driver=False, logging_level="error")
        found = driver.survey(order["look"], order["dial"], order["processes"])
    except Exception as error:  # for example, no cluster, another version of Ray or Python, or a full node
        found = {"problem": f"{type(error).__name__}: {error}"}
    # Create the socket's folder only now, because a driver that is killed during the connection would leave it behind.
    with socket.socket(socket.AF_UNIX) as server:
        with tempfile.TemporaryDirectory(prefix="fenchel-") as folder:
            server.bind(path := f"{folder}/ray")
            server.listen(128)
            print(json.dumps({"socket": path, **found}), flush=True)  # noqa: T201
            threading.Thread(target=driver.accept, args=(server,), daemon=True).start()
            temporary = sys.stdin.readline().strip()
            sys.stdin.read()
        # Outside the folder, as Ray may hang or end the process. If the command was killed, nothing else ends a driver.
        watchdog = threading.Timer(_GRACE + _CLEANING + _DISCONNECTING, os._exit, (1,))
        watchdog.daemon = True
        watchdog.start()
        driver.end(temporary)
    os._exit(0)  # exit at once, because threads may be blocked in calls that never return


if __name__ == "__main__":
    main()
