"""From the seconds of rounds to the table."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Limit:
    """How many times the rounds a second of another system Fenchel must reach."""

    system: str
    floats: int
    times: float


@dataclass(frozen=True)
class Measured:
    """A system's rounds at one size."""

    system: str  # its name
    repetitions: Sequence[Sequence[float]]
    """Seconds of the rounds that count, in each repetition. Repetition i of all systems was done in turn."""

    @property
    def medians(self) -> list[float]:
        """Of each repetition, in seconds."""
        return [statistics.median(seconds) for seconds in self.repetitions]

    @property
    def median(self) -> float:
        """Of the repetitions' medians, in seconds."""
        return statistics.median(self.medians)

    def times_slower(self, other: Measured) -> list[float]:
        """Return, for each repetition, how many times as long as the other's its rounds took."""
        return [mine / its for mine, its in zip(self.medians, other.medians, strict=True)]


def rows(floats: int, measured: Sequence[Measured], of: str) -> list[dict[str, object]]:
    """Return the rows of one size."""
    ours = {each.system: each for each in measured}[of]
    made: list[dict[str, object]] = []
    for each in measured:
        ratios = each.times_slower(ours)
        made.append(
            {
                "system": each.system,
                "floats": f"{floats:.0e}",
                "ms a round": f"{1e3 * each.median:,.1f}",
                "from - to": f"{1e3 * min(each.medians):,.1f} - {1e3 * max(each.medians):,.1f}",
                "rounds/s": f"{1 / each.median:.3g}",
                "times Fenchel's": f"{statistics.median(ratios):.2f}",
                "from - to ": f"{min(ratios):.2f} - {max(ratios):.2f}",
                "rounds": " + ".join(str(len(seconds)) for seconds in each.repetitions),
            }
        )
    return made


@dataclass(frozen=True)
class Verdict:
    """Whether a limit is reached."""

    limit: Limit  # the limit
    ratio: float  # how many times slower the other system was: the median of the repetitions' ratios

    @property
    def reached(self) -> bool:
        """Whether the other system was so much slower."""
        return self.ratio >= self.limit.times

    def __str__(self) -> str:
        """Return a line for people."""
        return (
            f"{self.limit.system}, {self.limit.floats:.0e} floats: {self.ratio:.2f} times, "
            f"limit {self.limit.times:g}: {'reached' if self.reached else 'NOT reached'}"
        )


def judge(measured: Mapping[int, Sequence[Measured]], limits: Sequence[Limit], of: str) -> list[Verdict]:
    """Return for each limit whether it is reached.

    measured: by the length of the vector.
    limits: those about systems or sizes that were not measured are left out.
    """
    verdicts = []
    for limit in limits:
        named = {each.system: each for each in measured.get(limit.floats, ())}
        if limit.system in named and of in named:
            ratio = statistics.median(named[limit.system].times_slower(named[of]))
            verdicts.append(Verdict(limit, ratio))
    return verdicts
