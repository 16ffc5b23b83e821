"""Output of commands: lines, warnings, tables and JSON objects."""

from __future__ import annotations

import json
import math
import os
from typing import Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

_FILE_WIDTH = 160  # width of tables in files and pipes, in columns


def console_for(as_json: bool, quiet: bool) -> Console:
    """Return the console for the progress and outcome of a run."""
    # A quiet console must not count as a terminal, as its live display would swallow other output to the terminal.
    return Console(stderr=as_json, quiet=quiet, force_terminal=False if quiet else None)


def wide(console: Console) -> Console:
    """Return the console, or a wider one for tables if output is no terminal and ``COLUMNS`` is not set."""
    return console if console.is_terminal or "COLUMNS" in os.environ else Console(width=_FILE_WIDTH)


def say(words: str, console: Console | None = None) -> None:
    """Print a line verbatim, by default on standard output."""
    (console or Console()).print(words, highlight=False, markup=False, emoji=False, soft_wrap=True)


def warn_of(words: str) -> None:
    """Show a warning on standard error."""
    _print_labelled("[bold yellow]warning:[/]", words)


def complain_of(words: str) -> None:
    """Show an error on standard error."""
    _print_labelled("[bold red]error:[/]", words)


def _print_labelled(label: str, words: str) -> None:
    console = Console(stderr=True, soft_wrap=True, highlight=False, emoji=False)
    console.print(f"{label} {escape(words)}")


def print_json(content: Any, *, indent: int | None = None) -> None:
    """Print the output of ``--json``, with null for numbers that are not finite, which JSON lacks."""
    print(json.dumps(_finite(content), indent=indent, allow_nan=False))  # noqa: T201


def _finite(content: Any) -> Any:
    if isinstance(content, dict):
        return {key: _finite(value) for key, value in content.items()}
    if isinstance(content, list | tuple):
        return [_finite(value) for value in content]
    return None if isinstance(content, float) and not math.isfinite(content) else content


def plain_table(*columns: str | Column, title: str | None = None) -> Table:
    """Return an empty table without borders."""
    return Table(*columns, title=title, box=None, header_style="dim", pad_edge=False)


def figures_table(subject: str, *headings: str, min_width: int) -> Table:
    """Return an empty table with a column of names, of at least ``min_width`` characters, and columns of figures."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column(subject, overflow="fold", min_width=min_width, vertical="bottom")
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True, vertical="bottom")
    return table
