"""A command that hands its standard input, output and error to another process of this machine, and waits for it."""

from __future__ import annotations

import json
import signal
import socket
import sys

STREAMS = 3
"""Number of descriptors that are handed over: standard input, output and error."""


def main() -> None:
    """Hand over (``SOCKET WORDS...``); return when the other process has closed the connection or has ended."""
    # Ignore Ctrl-C in the terminal: this process ends when standard input closes.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with socket.socket(socket.AF_UNIX) as control:
        try:
            control.connect(sys.argv[1])
        except OSError as error:
            sys.exit(f"the process that takes client processes to their engine has ended ({error.strerror})")
        socket.send_fds(control, [b"\n"], range(STREAMS))
        control.sendall(json.dumps(sys.argv[2:]).encode() + b"\n")
        while control.recv(1):
            pass


if __name__ == "__main__":
    main()
