"""A ``fenchel`` command whose client writes down every frame of its stream, inside TLS: a JSON object a line."""

from __future__ import annotations

import json
import os
from pathlib import Path

from fenchel.client import connection
from fenchel.deploy.cli.main import main

FILE = "FENCHEL_TEST_WIRETAP"
"""Environment variable: where to."""


def tap() -> None:
    """Record what the client's side of a Work call reads and writes."""
    inner = connection._ClientStream

    class Tapped(inner):  # type: ignore[misc,valid-type]
        async def read(self) -> bytes | None:
            frame: bytes | None = await super().read()
            if frame is not None:
                note("down", frame)
            return frame

        async def write(self, frame: bytes) -> None:
            note("up", frame)
            await super().write(frame)

    connection._ClientStream = Tapped  # type: ignore[misc]


def note(direction: str, frame: bytes) -> None:
    """Add a frame to the file."""
    with Path(os.environ[FILE]).open("a") as file:
        file.write(json.dumps([direction, frame.hex()]) + "\n")


if __name__ == "__main__":
    tap()
    main()
