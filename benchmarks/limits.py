"""Limits of what a program measures, and whether they were kept."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

Verdict: TypeAlias = dict[str, str | float | bool]
"""A row for people and for JSON: ``limit``, ``measured``, ``bound`` and whether it was ``kept``."""

ALLOWANCE = 5.0
"""Factor on limits of time in a quick run: it has few turns, on a machine that may have other work."""


class Limits:
    """Judges figures.

    quick: whether this is a quick run, in which limits of time are wider by :data:`ALLOWANCE`. All others are as
        strict.
    """

    def __init__(self, *, quick: bool) -> None:
        self._allowance = ALLOWANCE if quick else 1.0
        self.verdicts: list[Verdict] = []  # on all figures so far

    def at_most(self, what: str, measured: float, bound: float, *, timed: bool = False) -> None:
        """Judge a figure that must not be larger; ``timed``: it depends on how fast the machine is at the moment."""
        bound *= self._allowance if timed else 1.0
        self._judge(what, measured, f"at most {bound:g}", measured <= bound)

    def at_least(self, what: str, measured: float, bound: float, *, timed: bool = False) -> None:
        """Judge a figure that must not be smaller; ``timed`` as for :meth:`at_most`."""
        bound /= self._allowance if timed else 1.0
        self._judge(what, measured, f"at least {bound:g}", measured >= bound)

    def _judge(self, what: str, measured: float, bound: str, kept: bool) -> None:
        # A plain float and bool: numpy's own cannot be written as JSON.
        shown = float(f"{measured:.4g}")
        verdict: Verdict = {"limit": what, "measured": shown, "bound": bound, "kept": bool(kept)}
        self.verdicts.append(verdict)


def missed(verdicts: Sequence[Verdict]) -> list[str]:
    """Return a line for each limit that was not kept."""
    return [
        f"limit missed: {verdict['limit']}: {verdict['measured']}, {verdict['bound']}"
        for verdict in verdicts
        if not verdict["kept"]
    ]
