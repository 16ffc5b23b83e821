"""Where an error that nobody foresaw came from, without its text: that may hold data."""

from __future__ import annotations

import traceback


def described(error: BaseException) -> str:
    """Return the type of an error and the lines of code that led to it, and of those before it that it came from.

    The text of an error is left out: ``could not convert string to float: ...`` shows what is in somebody's
    file. Lines of code show none.
    """
    lines: list[str] = []
    current: BaseException | None = error
    while current is not None:
        word = "an unexpected" if current is error else "  which came of a"
        lines.append(f"{word} {type(current).__name__}, whose text is not shown, as it may hold data")
        frames = traceback.extract_tb(current.__traceback__)
        lines += [f"  {frame.filename}:{frame.lineno} in {frame.name}: {frame.line}" for frame in frames]
        current = current.__cause__ or (None if current.__suppress_context__ else current.__context__)
    return "\n".join(lines)
