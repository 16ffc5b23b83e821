"""Growth of processor time with the size of a problem: a ratio within one process, whatever machine it runs on."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable

FACTOR = 16
"""How much larger the larger problem is."""

LINEAR = 64.0
"""Growth below which time is taken to be proportional to the size: linear time grows 16 times, quadratic 256 times."""


def growth(work: Callable[[int], object], size: int, repeats: int = 5) -> float:
    """Return how many times the processor time of ``work(size)`` a problem of ``FACTOR * size`` takes.

    Both are measured in turn, and the least time of each counts: other work on the machine only adds to it.
    """
    small, large = [], []
    for _ in range(repeats):
        small.append(_seconds(work, size))
        large.append(_seconds(work, FACTOR * size))
    return min(large) / min(small)


def _seconds(work: Callable[[int], object], size: int) -> float:
    gc.disable()  # it looks at everything that other tests have left, too
    try:
        before = time.thread_time()
        work(size)
        return max(time.thread_time() - before, 1e-6)
    finally:
        gc.enable()
