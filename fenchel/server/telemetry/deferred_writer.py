"""Deferred recording of a round, while the clients work on the next one."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

log = logging.getLogger("fenchel.server")

_WRITTEN_AFTER = 0.02  # longest delay of the row of a round, in seconds


class DeferredWriter:
    """Deferred call that records the last round, after the next round's instructions are queued or a short delay."""

    def __init__(self) -> None:
        self._write: Callable[[], None] | None = None
        self._error: BaseException | None = None

    def defer(self, write: Callable[[], None]) -> None:
        """Defer a call of ``write``, which records the round that has ended; make an earlier deferred call first."""
        try:
            self.flush()
        finally:
            self._write = write
        # time limit in case the next round sends no request earlier
        asyncio.get_running_loop().call_later(_WRITTEN_AFTER, self._now)

    def schedule(self) -> None:
        """Schedule the deferred call for the next iteration of the event loop."""
        if self._write is not None:
            asyncio.get_running_loop().call_soon(self._now)

    def flush(self) -> None:
        """Make the deferred call now if it is still due, and raise its error or that of an earlier deferred call."""
        self._do()
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _now(self) -> None:
        try:
            self._do()
        except (KeyboardInterrupt, SystemExit):
            raise  # flush() raises other exceptions, which the event loop would only log
        except BaseException as error:
            # Log the error immediately: the current round may last long before the error ends the run.
            log.error("the run ends after the next round: %s", error)
            self._error = error

    def _do(self) -> None:
        write, self._write = self._write, None
        if write is not None:
            write()
