"""Where an error that nobody foresaw came from: without its text, that may hold data, or for who wrote the code."""

from __future__ import annotations

import sysconfig
import traceback
from pathlib import Path
from types import TracebackType


def described(error: BaseException, *, text: bool = False) -> str:
    """Return the type of an error and the lines of code that led to it, and of those before it that it came from.

    Parameters
    ----------
    text
        Whether to add the texts of the errors. ``could not convert string to float: ...`` shows what is in a file;
        lines of code show nothing of it.
    """
    lines: list[str] = []
    current: BaseException | None = error
    while current is not None:
        word = "an unexpected" if current is error else "  which came of a"
        what = f": {current}" if text else ", whose text is not shown, as it may hold data"
        lines.append(f"{word} {type(current).__name__}{what}")
        frames = traceback.extract_tb(current.__traceback__)
        lines += [f"  {frame.filename}:{frame.lineno} in {frame.name}: {frame.line}" for frame in frames]
        current = current.__cause__ or (None if current.__suppress_context__ else current.__context__)
    return "\n".join(lines)


def outside(error: BaseException) -> TracebackType | None:
    """Return the part of an error's traceback that begins where Fenchel called code of somebody else's.

    ``None``: it called none but libraries.
    """
    home, standard = Path(__file__).parents[1], sysconfig.get_path("stdlib")
    trace, was_within = error.__traceback__, False
    while trace is not None:
        path = Path(trace.tb_frame.f_code.co_filename)
        is_within = path.is_relative_to(home)
        if was_within and not (is_within or path.is_relative_to(standard) or "site-packages" in path.parts):
            return trace
        was_within = was_within or is_within
        trace = trace.tb_next
    return None
