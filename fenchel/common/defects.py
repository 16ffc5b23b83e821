"""Descriptions of unexpected errors.

By default they omit the errors' texts, which may contain data. Authors of algorithms and objectives can ask for them.
"""

from __future__ import annotations

import sysconfig
import traceback
from pathlib import Path
from types import TracebackType


def describe_defect(error: BaseException, *, text: bool = False) -> str:
    """Return the types and lines of code of an error and of the errors that caused it.

    Parameters
    ----------
    text
        Whether to add the texts of the errors. A text such as ``could not convert string to float: ...`` reveals
        contents of a file, whereas lines of code do not.
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


def user_frames(error: BaseException) -> TracebackType | None:
    """Return the part of an error's traceback that begins where Fenchel called the user's own code.

    The result is ``None`` if Fenchel called no code but libraries.
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
