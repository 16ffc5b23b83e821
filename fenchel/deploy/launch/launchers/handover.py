"""Command that passes its standard input, output and error to another local process, and waits for that process."""

from __future__ import annotations

import json
import signal
import socket
import sys

STREAMS = 3
"""Number of file descriptors to pass: standard input, output and error."""


def main() -> None:
    """Pass the streams to the process at ``SOCKET`` for the command ``WORDS``, and wait until the connection closes."""
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
