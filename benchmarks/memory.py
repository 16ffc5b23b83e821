"""Peak memory of this process while something goes on."""

from __future__ import annotations

import threading
from types import TracebackType
from typing import Self

import psutil


class PeakMemory:
    """Looks at the resident memory of this process every 20 ms during a ``with`` block."""

    def __init__(self) -> None:
        self.peak = 0  # the most that was seen, in bytes
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        process = psutil.Process()
        while not self._over.wait(0.02):
            self.peak = max(self.peak, process.memory_info().rss)
