"""Command that passes its standard streams to the Ray driver, and waits for the end of the client process."""

from __future__ import annotations

import json
import signal
import socket
import sys

STREAMS = 3
"""Number of file descriptors to pass: standard input, output and error."""


def main() -> None:
    """Pass the streams and the command ``WORDS`` to the driver at ``SOCKET``, and wait for the connection to close."""
    # Ignore Ctrl-C in the terminal: the launcher closes standard input, which ends the client process and this one.
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
