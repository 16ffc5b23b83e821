"""Formatting of numbers, and sanitising of untrusted text."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import ValidationError

from fenchel.report import figure_names

UNKNOWN = "–"


def printable(text: str) -> str:
    """Return text from a run with a visible replacement for non-printable characters, such as terminal escapes."""
    return "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in text)


def problem_text(error: ValidationError) -> str:
    """Return the first validation error with the key at which it occurred, such as ``heads.0.times: ...``."""
    problem = error.errors()[0]
    return ": ".join([".".join(map(str, problem["loc"])), problem["msg"]]).removeprefix(": ")


def bytes_text(count: float) -> str:
    """Return a number of bytes in decimal units, such as ``20.8 kB``."""
    if not math.isfinite(count):
        return UNKNOWN
    size = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        # Show 999.5 and above in the next unit, because rounding would give 1000.
        if abs(size) < 999.5:
            return f"{size:.0f} B" if unit == "B" else f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:,.3g} TB" if size < 999.5 else f"{size:,.0f} TB"


def seconds_text(seconds: float) -> str:
    """Return a duration, such as ``4.7 ms``, ``12.1 s``, ``3 min 05 s`` or ``2 h 10 min``."""
    if not math.isfinite(seconds):
        return UNKNOWN
    if seconds < 0:
        return f"-{seconds_text(-seconds)}"
    if seconds == 0:
        return "0 s"
    if seconds < 0.9995e-3:
        return f"{seconds * 1e6:.3g} µs"
    if seconds < 0.9995:
        return f"{seconds * 1e3:.3g} ms"
    if seconds < 59.95:
        return f"{seconds:.3g} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours:,} h {minutes:02d} min"


def part_text(part: str) -> str:
    """Return the label of a part of the rounds' time."""
    return "waiting after the last answer" if part == "waiting" else part


def share_text(share: float, digits: int = 1) -> str:
    """Return a fraction as a percentage."""
    return f"{share:.{digits}%}" if math.isfinite(share) else UNKNOWN


def fitting(widths: Mapping[str, int], left_out: Iterable[str], width: int) -> list[str]:
    """Return the titles of the columns of a table that fit a terminal, in their order.

    Parameters
    ----------
    widths
        Width of each column with its padding, by title.
    left_out
        Titles of the columns that may be omitted, in the order of removal.
    width
        Width of the terminal.
    """
    kept = dict(widths)
    for title in left_out:
        if sum(kept.values()) <= width:
            break
        kept.pop(title, None)
    return list(kept)


def number_text(value: float) -> str:
    """Return a number with four significant digits, or ``inf`` for a figure of a run that has diverged."""
    return UNKNOWN if math.isnan(value) else f"{value:.4g}"


def figure_text(figure: str, value: float) -> str:
    """Return the value of a figure, as a percentage for fractions such as accuracies, otherwise as a number."""
    if figure_names.is_ranking(figure):
        return share_text(value, digits=2)
    return share_text(value) if figure_names.is_share(figure) else number_text(value)


def bounded_text(figure: str, figures: Mapping[str, float]) -> str:
    """Return the value of a figure, with the bound on its error if that is known."""
    value = figures.get(figure, math.nan)
    error = figures.get(f"{figure}_error", math.nan)
    bound = f" ± {figure_text(figure, error)}" if math.isfinite(value) and error > 0 else ""
    return figure_text(figure, value) + bound


def changes_text(changes: Mapping[str, Any]) -> str:
    """Return settings by dotted key as short text, such as ``step_size=0.1 seed=3``, with values in YAML."""
    texts = (
        (key, value if isinstance(value, str) else json.dumps(value, default=str)) for key, value in changes.items()
    )
    return " ".join(f"{key.rpartition('.')[2]}={text}" for key, text in texts)


def count_text(count: int, noun: str) -> str:
    """Return a count with its noun, such as ``1 round`` or ``1,000 rounds``."""
    return f"{count:,} {noun if count == 1 else noun + 's'}"
