"""The command ``fenchel up`` on some engine, compared with the same run in a single process."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Self

import fenchel
from tests.cluster.federation import digest, wait_until

_PATIENCE = 600.0  # seconds; beside other tests an engine starts a dozen processes slowly, and gives them little time


@dataclass(frozen=True)
class Up:
    """A process of ``fenchel up``, whose run folder and log are in a folder."""

    folder: Path
    process: subprocess.Popen[bytes]

    @classmethod
    def start(
        cls, folder: Path, *words: str, before: tuple[str, ...] = (), environment: Mapping[str, str] | None = None
    ) -> Self:
        """Start the command.

        before: another command, which runs this one.
        environment: variables beside those of this process.
        """
        command = [*before, sys.executable, "-P", "-m", "fenchel", "up", *words]
        with (folder / "log").open("ab") as log:
            process = subprocess.Popen(
                command, stdout=log, stderr=log, cwd=folder, env=os.environ | (environment or {})
            )
        return cls(folder, process)

    def said(self) -> str:
        """Return all that was printed in the folder."""
        return (self.folder / "log").read_text()

    def wait_for_round(self, number: int) -> None:
        """Wait until a round is done, and the run goes on."""
        reached = f"round {number} "
        try:
            wait_until(lambda: reached in self.said() or self.process.poll() is not None, reached, _PATIENCE)
            assert self.process.poll() is None, self.said()
        except AssertionError:
            self.kill()
            raise

    def check_exit_code(self, expected: int) -> None:
        """Wait for the end, which must have this exit code."""
        try:
            with suppress(subprocess.TimeoutExpired):  # the log shows how far it is
                self.process.wait(_PATIENCE)
            assert self.process.poll() == expected, self.said()
        finally:
            self.kill()

    def kill(self) -> None:
        """Kill the command, if it has not ended."""
        self.process.kill()
        self.process.wait()

    def check_end(self, expected: str) -> Path:
        """Wait for the end; return the run folder, whose model must have this digest."""
        self.check_exit_code(0)
        (model,) = self.folder.rglob("model.npz")
        assert digest(model) == expected
        return model.parent


def quickstart(rounds: int) -> tuple[str, ...]:
    """Return words of an encrypted quickstart with a short key."""
    return ("quickstart", *(word for override in _overrides(rounds) for word in ("--set", override)))


def wait_calmly(condition: Callable[[], bool], what: str) -> None:
    """Poll until a condition holds whose check takes processor time, such as a search of all processes."""

    def rarely() -> bool:
        time.sleep(0.2)
        return condition()

    wait_until(rarely, what)


@cache
def local_digest(rounds: int) -> str:
    """Return the digest of the model of :func:`quickstart` from a single process."""
    with TemporaryDirectory() as folder:
        fenchel.up("quickstart", overrides=_overrides(rounds), runs=folder, in_process=True)
        (model,) = Path(folder).rglob("model.npz")
        return digest(model)


def _overrides(rounds: int) -> tuple[str, ...]:
    # Rounds wait for all clients, however long an engine takes to start one again: what is compared are bits.
    return (f"rounds={rounds}", "algorithm.encryption.key_bits=2048", "participation.deadline=3600")
