"""What every benchmark program has in common: its flags, its table, its last line."""

from __future__ import annotations

import argparse
import json
import resource
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from benchmarks.limits import missed

Figures: TypeAlias = dict[str, Any]
"""Figures of one program: ``rows`` (the table), perhaps more tables, among them ``limits``, and single figures."""


def run(doc: str, measure: Callable[[bool], Figures]) -> None:
    """Run a benchmark from the command line; end with code 1 if it missed a limit."""
    words = flags(doc).parse_args()
    allow_many_sockets()
    figures = measure(words.quick)
    tell(figures, as_json=words.json)
    if lines := missed(figures.get("limits", ())):
        raise SystemExit("\n".join(lines))


def flags(doc: str | None, quick: str = "less of it: under 50 s on two cores") -> argparse.ArgumentParser:
    """Return a parser of the flags that every program has."""
    parser = argparse.ArgumentParser(description=doc)
    parser.add_argument("--quick", action="store_true", help=quick)
    parser.add_argument("--json", action="store_true", help="last line: one JSON object with the figures")
    return parser


def tell(figures: Figures, *, as_json: bool) -> None:
    """Print what a program measured: the tables, a line for each single figure, and perhaps all of it as JSON."""
    print("\n".join(page(figures)))
    if as_json:
        print(json.dumps(figures))


def page(figures: Figures) -> list[str]:
    """Return what a program measured as lines of Markdown: the tables, then the single figures."""
    tables = {name: figure for name, figure in figures.items() if isinstance(figure, list) and _has_rows(figure)}
    lines = "\n\n".join(map(markdown, tables.values())).split("\n")
    return lines + [f"\n{name}: {figure}" for name, figure in figures.items() if name not in tables]


def _has_rows(figure: list[Any]) -> bool:
    return all(isinstance(row, Mapping) for row in figure) and bool(figure)


def markdown(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return rows as a Markdown table."""
    titles = list(rows[0])
    lines = ["| " + " | ".join(titles) + " |", "|" + "---|" * len(titles)]
    lines += ["| " + " | ".join(str(row[title]) for title in titles) + " |" for row in rows]
    return "\n".join(lines)


def allow_many_sockets() -> None:
    """Raise the limit of open files as far as this user may: every client is a socket."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def progress(words: str) -> None:
    """Tell on standard error what is going on."""
    print(words, file=sys.stderr, flush=True)
