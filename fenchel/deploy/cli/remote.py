"""Entry points on a remote machine: a client process, and a survey of the machine before its start.

A client process writes its exit code to standard output and all other text to standard error, so that no log line can
be mistaken for the exit code.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from typing import NoReturn

from fenchel.deploy.launch.launchers.survey import Survey


def _client() -> NoReturn:
    """Run the command line, and report its exit code."""
    from fenchel.deploy.cli.main import main as command_line

    report = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    code = 1
    try:
        command_line()
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 0 if ended.code is None else 1
        raise
    finally:
        with suppress(BrokenPipeError):  # the reader of the exit code may have exited
            os.write(report, b"%d\n" % code)


def main() -> None:
    """Survey this machine (``look HOST PORT FILE``), or run a command of ``fenchel``."""
    if sys.argv[1:2] == ["look"]:
        _, _, dial, port, file = sys.argv
        print(Survey.take(dial, int(port), file).line())  # noqa: T201
    else:
        _client()


if __name__ == "__main__":
    main()
