"""Supervisor of a server or a client, which restarts a process that was killed by a signal.

``python -m fenchel.deploy.cli.supervise client [WORDS...]`` runs ``fenchel client``, which resumes from its journal.

``python -m fenchel.deploy.cli.supervise server DIR [OPTIONS...] -- SETTINGS [OPTIONS...]`` runs ``fenchel server`` with
run folders in ``DIR``. Every start of a server has the options, such as ``--listen`` and ``--certs``. Only
``SETTINGS``, ``--clients`` and ``--set`` apply to a new run alone, because a resumed run keeps its settings.

The folder of a run in progress is in ``DIR/running-HOST``, where HOST is the name of this machine or container, and
moves to ``DIR`` after the run. A restarted container thus finds its interrupted run.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from fenchel.common.errors import INTERRUPTED, SettingsError, TooManyFilesError
from fenchel.common.storage.run_folder import RunFolder

_RESTARTS = 10  # largest number of restarts of a process
_FENCHEL = (sys.executable, "-m", "fenchel")
_SIGNALLED = 128  # base of the exit codes by which shells report a signal, to which its number is added


def keep_going(command: Callable[[], Sequence[str]]) -> int:
    """Run a command, and restart it after a signal or a lack of file descriptors; return its exit code.

    The number of restarts is limited. The exit code after a signal is 128 plus the signal's number, as in shells.

    Parameters
    ----------
    command
        Function that returns the words of the command before each start.
    """
    for _ in range(1 + _RESTARTS):
        code = _run(command())
        if 0 <= code != TooManyFilesError.exit_code:
            break
        _say(f"the process {f'was killed by {signal.Signals(-code).name}' if code < 0 else 'had too many files open'}")
    return code if code >= 0 else _SIGNALLED - code


def _run(words: Sequence[str]) -> int:
    """Run a command, and return its exit code, negative if a signal killed it.

    On Ctrl-C, terminate the command and return ``INTERRUPTED``.
    """
    with subprocess.Popen(words) as process:
        try:
            return process.wait()
        except KeyboardInterrupt:
            process.terminate()
            process.wait()
            return INTERRUPTED


@dataclass(frozen=True)
class ServerSupervisor:
    """Supervisor of the server of a run.

    Attributes
    ----------
    runs
        Folder of the run folders.
    always
        Arguments of every start of a server.
    beginning
        Arguments of a new run: its settings file and overrides of settings.
    command
        Command that starts a server.
    """

    runs: Path
    always: Sequence[str]
    beginning: Sequence[str]
    command: Sequence[str] = (*_FENCHEL, "server")

    @property
    def _mine(self) -> Path:
        return self.runs / f"running-{os.uname().nodename}"

    def run(self) -> int:
        """Begin a run, or resume an interrupted run; return the exit code of the last server process."""
        code = keep_going(self._words)
        if code < _SIGNALLED and code != TooManyFilesError.exit_code:
            self._put_away()
        return code

    def _words(self) -> Sequence[str]:
        interrupted = [path for path in self._folders() if RunFolder(path).can_be_resumed]
        if interrupted:
            return [*self.command, "--resume", str(max(interrupted)), *self.always]
        return [*self.command, *self.beginning, "--runs", str(self._mine), *self.always]

    def _folders(self) -> list[Path]:
        return list(self._mine.iterdir()) if self._mine.is_dir() else []

    def _put_away(self) -> None:
        for path in self._folders():
            path.rename(self.runs / path.name)
            _say(f"moved to    {self.runs / path.name}")
        if self._mine.is_dir():
            self._mine.rmdir()


def _divided(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the options of every start among the words of a new run, with their values, and the rest."""
    always: list[str] = []
    beginning: list[str] = []
    words_of_option = beginning  # the settings file comes before any option
    for word in words:
        if word.startswith("-"):
            words_of_option = beginning if word.partition("=")[0] in ("--clients", "--set") else always
        words_of_option.append(word)
    return always, beginning


def _say(words: str) -> None:
    print(words, file=sys.stderr)  # noqa: T201


def main(words: Sequence[str]) -> int:
    """Parse the command line, supervise the process, and return the exit code."""
    # Container engines stop processes with SIGTERM, which is treated like Ctrl-C.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    match words:
        case ["client", *rest]:
            return keep_going(lambda: (*_FENCHEL, "client", *rest))
        case ["server", runs, *rest] if "--" in rest:
            split = rest.index("--")
            always, beginning = _divided(rest[split + 1 :])
            return ServerSupervisor(Path(runs), [*rest[:split], *always], beginning).run()
        case _:
            _say(__doc__ or "")
            return SettingsError.exit_code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
