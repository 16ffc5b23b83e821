"""The record of a round, which is written while the clients work on the next."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

log = logging.getLogger("fenchel.server")

_NOTED_AFTER = 0.02  # seconds, at most, that people wait for the row of a round


class DeferredNote:
    """Writes the last round down once the instructions of the next are on their way, or soon after it has ended."""

    def __init__(self) -> None:
        self._write: Callable[[], None] | None = None
        self._error: BaseException | None = None

    def defer(self, write: Callable[[], None]) -> None:
        """Hold on to ``write`` for the round that has ended; settle the one before it first."""
        try:
            self.settle()
        finally:
            self._write = write
        asyncio.get_running_loop().call_later(_NOTED_AFTER, self._now)  # if the next round asks nobody so soon

    def soon(self) -> None:
        """Write it down as soon as the event loop is free."""
        if self._write is not None:
            asyncio.get_running_loop().call_soon(self._now)

    def settle(self) -> None:
        """Have the last round written down; raise what that raised, now or before."""
        self._do()
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _now(self) -> None:
        try:
            self._do()
        except (KeyboardInterrupt, SystemExit):
            raise  # all others the event loop would only write down
        except BaseException as error:
            # The round that goes on may wait for long before this can end the run.
            log.error("the run ends after the next round: %s", error)
            self._error = error

    def _do(self) -> None:
        write, self._write = self._write, None
        if write is not None:
            write()
