"""How long the bytes of a message take to pass, as against how long the first of them is on its way."""

from __future__ import annotations

from dataclasses import dataclass

_SMALL_BYTES = 4096  # passes at once on any link worth mentioning


@dataclass(slots=True)
class Throughput:
    """Of one way between the server and a client: to it, or from it.

    A message of several frames shows its rate itself, between its first and its last byte. One of a single frame
    does not, since whoever receives it sees it whole; it gets the rate of those with several, or else the highest
    at which any of its kind has passed, beside the quickest small message.

    Attributes
    ----------
    rate
        Bytes a second, of the last message of several frames; 0: there was none.
    """

    rate: float = 0.0
    _quickest: float = float("inf")
    _fastest: float = 0.0

    def serialisation(self, size: int, opening: int, spread: float, crossing: float) -> float:
        """Return the seconds that the bytes of a message took to pass; never more than ``crossing``.

        Parameters
        ----------
        size, opening
            Bytes on the wire of the whole message, and of its first frame.
        spread
            Seconds from the end of the first frame to the end of the last, at the receiver.
        crossing
            Seconds from the first byte sent to the last byte received. Errors of the clocks are the same for all
            messages of a way, so they do not enter the difference of two.
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
