"""What was measured, put into the pages that people write about it."""

from __future__ import annotations

from pathlib import Path


def put(page: Path, name: str, made: str) -> None:
    """Put what was measured between a page's markers; what stands around them was written by people."""
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    before, found, rest = page.read_text().partition(begin)
    _, closed, after = rest.partition(end)
    if not found or not closed:
        raise SystemExit(f"{page}: has no lines {begin} and {end} for what was measured to stand between")
    page.write_text(f"{before}{begin}\n{made.strip()}\n{end}{after}")
