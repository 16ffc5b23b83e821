"""Ends a process in the middle of writing a file, where a test has ordered that.

Python imports this module by itself in processes that have its folder in ``PYTHONPATH``. An order is a file in
``FENCHEL_TEST_ORDERS``: ``server.checkpoint`` or ``CLIENT.journal`` (the new file is written, and not
yet in its place), or ``CLIENT.reply`` (the journal's entry is in its place, and the reply has not left). Who
takes an order away carries it out.

Each round of a server begins with a pause, as if its network were slow: the kills of a test find one run going on.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

_PAUSE = 0.04  # of a round, in seconds
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


def _pause_before_rounds() -> None:
    """Slow the rounds of a process that was forked from one with Fenchel's modules."""
    if (found := sys.modules.get("fenchel.server.rounds")) is None:
        return
    import asyncio

    train = found.Rounds._train

    async def slowly(self: Any, t: int) -> None:
        await asyncio.sleep(_PAUSE)
        await train(self, t)

    found.Rounds._train = slowly


Path.replace = _replace_or_die  # type: ignore[method-assign, assignment]
os.register_at_fork(after_in_child=_pause_before_rounds)
