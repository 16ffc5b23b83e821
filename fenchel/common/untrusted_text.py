"""Sanitisation of text from the other side of a connection."""

from __future__ import annotations

LONGEST = 2000


def sanitize(text: str, longest: int = LONGEST) -> str:
    """Return a received text in a form that is safe for logs and terminals.

    Non-printable characters, such as control characters that move the cursor or begin a new line, become spaces. A text
    longer than ``longest`` characters is truncated to that length, and ``...`` is appended.
    """
    kept = "".join(letter if letter.isprintable() else " " for letter in text[: longest + 1])
    return kept if len(kept) <= longest else f"{kept[:longest]}..."
