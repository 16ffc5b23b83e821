"""Estimate of a message's transmission time, as opposed to the propagation delay of its first byte."""

from __future__ import annotations

from dataclasses import dataclass

_SMALL_BYTES = 4096  # size in bytes up to which the transmission time of a message is negligible


@dataclass(slots=True)
class Throughput:
    """Estimate of the throughput of the uplink or downlink of one client.

    The rate of a message of several frames is measured between its first and its last frame. That of a single frame
    cannot be measured, because the receiver sees the frame only as a whole. It is taken from the last message of
    several frames. Before the first such message, it is the highest rate of any single frame, after subtracting the
    time of the fastest small message.

    Attributes
    ----------
    rate
        Rate of the last message of several frames, in bytes per second; 0: no such message yet.
    """

    rate: float = 0.0
    _quickest: float = float("inf")
    _fastest: float = 0.0

    def serialisation(self, size: int, opening: int, spread: float, crossing: float) -> float:
        """Update the estimate with a message, and return its transmission time in seconds, at most ``crossing``.

        The time is 0 while the rate is unknown.

        Parameters
        ----------
        size, opening
            Bytes on the wire of the whole message, and of its first frame.
        spread
            Seconds from the end of the first frame to the end of the last, at the receiver.
        crossing
            Seconds from the first byte sent to the last byte received. The clock offset is the same for all messages of
            a direction, so it cancels in the difference of two.
        """
        rest = size - opening
        if 2 * rest >= size > 0 and spread > 0:
            self.rate = rest / spread
            return max(min(size / self.rate, crossing), 0.0)
        if size <= _SMALL_BYTES:
            self._quickest = min(self._quickest, crossing)
        elif crossing > self._quickest:
            self._fastest = max(self._fastest, size / (crossing - self._quickest))
        rate = self.rate or self._fastest
        return max(min(size / rate, crossing), 0.0) if rate else 0.0
