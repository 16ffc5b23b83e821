"""Keep a server going: begin a run, and go on with it when its process or its container was killed.

``python -m fenchel.deploy.cli.supervise DIR [WORDS...] -- SETTINGS [WORDS...]`` is ``fenchel server`` with
run folders in ``DIR``. The words before ``--`` are given whenever a server is started (``--listen``,
``--certs``); those after it only when a run begins (``--clients``, ``--set``), since a resumed run keeps its
settings.

A run in progress is kept in ``DIR/running-HOST``, where HOST is this machine's or container's name, and moves to
``DIR`` when it is over. So a container that is started again finds the run that it was killed in.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fenchel.common.errors import SettingsError, TooManyFilesError
from fenchel.common.storage.run_folder import RunFolder
from fenchel.deploy.cli.main import INTERRUPTED

_RESTARTS = 10  # a server that is killed, or runs out of files, more often will not get through


@dataclass(frozen=True)
class Supervisor:
    """Starts a server as often as it takes to get through a run."""

    runs: Path  # where run folders end up
    always: Sequence[str]  # words that each server is started with
    beginning: Sequence[str]  # words that a run begins with: its settings and what overrides them
    command: Sequence[str] = (sys.executable, "-m", "fenchel", "server")  # what runs a server

    @property
    def _mine(self) -> Path:
        return self.runs / f"running-{os.uname().nodename}"

    def run(self) -> int:
        """Begin a run, or go on with an interrupted one; return the exit code of the last server."""
        try:
            self._mine.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise SettingsError(
                f"cannot be written by user {os.getuid()}, group {os.getgid()} ({error.strerror}); make "
                "the folder before you start, and start as its owner (docs/docker.md: FENCHEL_UID)",
                source=self.runs,
            ) from None
        for _ in range(1 + _RESTARTS):
            code = self._serve()
            if code >= 0 and code != TooManyFilesError.exit_code:
                break
            _say(f"the server {_how_it_ended(code)}")
        if code >= 0 and code not in (INTERRUPTED, TooManyFilesError.exit_code):
            self._put_away()
        return code if code >= 0 else 128 - code

    def _serve(self) -> int:
        interrupted = [path for path in self._mine.iterdir() if RunFolder(path).checkpoint.exists()]
        if interrupted:
            words = ["--resume", str(max(interrupted)), *self.always]
        else:
            words = [*self.beginning, "--runs", str(self._mine), *self.always]
        with subprocess.Popen([*self.command, *words]) as server:
            try:
                return server.wait()
            except KeyboardInterrupt:
                server.terminate()
                server.wait()
                return INTERRUPTED

    def _put_away(self) -> None:
        for path in self._mine.iterdir():
            path.rename(self.runs / path.name)
            _say(f"moved to    {self.runs / path.name}")
        self._mine.rmdir()


def _how_it_ended(code: int) -> str:
    return f"was killed by {signal.Signals(-code).name}" if code < 0 else "had too many files open"


def _say(words: str) -> None:
    print(words, file=sys.stderr)  # noqa: T201


def main(words: Sequence[str]) -> int:
    """Read the words of the command line, supervise, and return the exit code."""
    if not words or "--" not in words[1:]:
        _say(__doc__ or "")
        return SettingsError.exit_code
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # containers are stopped so: as by Ctrl-C
    split = words.index("--")
    try:
        return Supervisor(Path(words[0]), words[1:split], words[split + 1 :]).run()
    except SettingsError as error:
        _say(f"error: {error}")
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
