"""What was measured, put into the pages that people write about it."""

from __future__ import annotations

from pathlib import Path

from benchmarks.machine import description

OVER_TLS = "server and clients in separate processes over TLS"


def put(page: Path, name: str, made: str) -> None:
    """Put what was measured between a page's markers; what stands around them was written by people."""
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    before, found, rest = page.read_text().partition(begin)
    _, closed, after = rest.partition(end)
    if not found or not closed:
        raise SystemExit(f"{page}: has no lines {begin} and {end} for what was measured to stand between")
    page.write_text(f"{before}{begin}\n{made.strip()}\n{end}{after}")


def made_by(program: str, how: str = OVER_TLS) -> str:
    """Return a sentence that says by what program, how and on what machine something was measured."""
    return (
        f"Made by `python -m benchmarks.{program}`{', ' if how else ''}{how}{',' if how else ''} on\n{description()}."
    )
