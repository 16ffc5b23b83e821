"""Entry points of another machine: a client process, and a look around before it is started.

A client process reports its exit code on standard output, and prints to standard error, so that no text of its log
can pass for the report.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from contextlib import suppress
from typing import NoReturn

from fenchel.common.version import software

_PATIENCE = 5.0  # seconds for a connection


def _client() -> NoReturn:
    """Run the command line, and report how it ended."""
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
        with suppress(BrokenPipeError):  # nothing waits for it any more
            os.write(report, b"%d\n" % code)


def _look(dial: str, port: int) -> dict[str, str]:
    """Tell the version of Fenchel, and why an address cannot be reached.

    dial: by default the address that ssh comes from.
    """
    dial = dial or os.environ.get("SSH_CONNECTION", "").partition(" ")[0]
    problem = ""
    try:
        socket.create_connection((dial, port), _PATIENCE).close()
    except OSError as error:
        problem = error.strerror or str(error)
    return {"software": software(), "dial": dial, "problem": problem}


def main() -> None:
    """Look around (``look HOST PORT``), or run a command of ``fenchel``."""
    if sys.argv[1:2] == ["look"]:
        print(json.dumps(_look(sys.argv[2], int(sys.argv[3]))))  # noqa: T201
    else:
        _client()


if __name__ == "__main__":
    main()
