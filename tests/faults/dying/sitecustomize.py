"""Ends a process in the middle of writing a file, where a test has ordered that.

Python imports this module by itself in processes that have its folder in ``PYTHONPATH``. An order is a file in
``FENCHEL_TEST_ORDERS``: ``server.checkpoint`` or ``CLIENT.journal`` (the new file is written, and not
yet in its place), or ``CLIENT.reply`` (the journal's entry is in its place, and the reply has not left). Who
takes an order away carries it out.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

_replace = Path.replace


def _obey(order: str) -> None:
    try:
        (Path(os.environ["FENCHEL_TEST_ORDERS"]) / order).unlink()
    except FileNotFoundError:
        return  # there is no such order
    os.kill(os.getpid(), signal.SIGKILL)


def _replace_or_die(self: Path, target: Any) -> Path:
    if self.name == "latest.new":
        _obey("server.checkpoint")
    elif self.name.endswith(".state.new"):
        _obey(f"{self.parent.name}.journal")
        replaced = _replace(self, target)
        _obey(f"{self.parent.name}.reply")
        return replaced
    return _replace(self, target)


Path.replace = _replace_or_die  # type: ignore[method-assign, assignment]
