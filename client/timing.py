"""Durations of the parts of a client's answer."""

from __future__ import annotations

import time
from collections.abc import Callable

from fenchel.common.crypto.meter import CipherMeter
from fenchel.proto import fenchel_pb2 as pb


def set_apart(timing: pb.Timing, before: CipherMeter, after: CipherMeter) -> None:
    """Take what was encrypted and decrypted meanwhile out of the time of computation."""
    timing.encryptions = after.encryptions - before.encryptions
    timing.decryptions = after.decryptions - before.decryptions
    timing.encrypt_ns = after.encryption_ns - before.encryption_ns
    timing.decrypt_ns = after.decryption_ns - before.decryption_ns
    timing.compute_ns = max(timing.compute_ns - timing.encrypt_ns - timing.decrypt_ns, 0)


def stopwatch() -> Callable[[], int]:
    """Return a function that gives the nanoseconds since it was last called."""
    last = time.perf_counter_ns()

    def lap() -> int:
        nonlocal last
        now = time.perf_counter_ns()
        elapsed, last = now - last, now
        return elapsed

    return lap
