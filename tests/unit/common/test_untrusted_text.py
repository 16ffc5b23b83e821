from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fenchel.common.untrusted_text import LONGEST, sanitize


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("no idea", "no idea"),
        ("ünïcödé λ", "ünïcödé λ"),
        ("one\nWARNING client b is lost", "one WARNING client b is lost"),
        ("\x1b[2J\x1b]0;title\x07", " [2J ]0;title "),
        ("a\u202eb\u2028c", "a b c"),
    ],
)
def test_what_moves_a_cursor_or_begins_a_line_becomes_a_space(text: str, expected: str) -> None:
    assert sanitize(text) == expected


def test_nobody_reads_a_megabyte() -> None:
    assert sanitize("x" * LONGEST) == "x" * LONGEST
    assert sanitize("x" * (1 << 20)) == "x" * LONGEST + "..."


@given(st.text(max_size=60), st.integers(0, 50))
def test_every_text_is_fit_for_one_line(text: str, longest: int) -> None:
    kept = sanitize(text, longest)
    assert kept.isprintable()
    assert len(kept) <= longest + 3
    assert len(kept.splitlines()) <= 1
