"""Words that somebody else wrote."""

from __future__ import annotations

LONGEST = 2000


def plain(text: str, longest: int = LONGEST) -> str:
    """Return a text from the other side of a connection, fit for a log and for a terminal.

    Control characters, which could move a cursor or begin a line of their own, become spaces, and what is
    longer than anybody reads is cut off.
    """
    kept = "".join(letter if letter.isprintable() else " " for letter in text[: longest + 1])
    return kept if len(kept) <= longest else f"{kept[:longest]}..."
