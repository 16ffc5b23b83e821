"""Command ``fenchel runs``: the index of run folders."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from fenchel.deploy.cli.options import JsonOption
from fenchel.deploy.cli.printing import print_json, say, wide

if TYPE_CHECKING:
    from fenchel.report.index import IndexEntry

_STYLES = {"completed": "green", "stopped": "red", "unfinished": "yellow", "damaged": "bold red"}


def runs(
    folder: Annotated[Path, typer.Argument(metavar="[FOLDER]", help="folder of run folders, or of sweeps")] = Path(
        "runs"
    ),
    as_json: JsonOption = False,
) -> None:
    """List the runs of a folder, newest first, with settings, progress, state, last objective and accuracy."""
    from fenchel.report.index import index

    entries = index(folder)
    if as_json:
        print_json([asdict(entry) for entry in entries], indent=2)
        return
    _show(entries, wide(Console()))


def _show(entries: Sequence[IndexEntry], console: Console) -> None:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    from fenchel.report.formatting import count_text, number_text, plain, share_text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, caption=count_text(len(entries), "run"), caption_justify="left")
    table.add_column("run", overflow="fold")
    for heading in ("algorithm", "data"):
        table.add_column(heading, overflow="ellipsis", no_wrap=True)
    for heading in ("clients", "seed", "rounds"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("state", no_wrap=True)
    for heading in ("objective", "accuracy"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("started", no_wrap=True)
    reasons = []
    for entry in entries:
        numbers = ("" if value is None else plain(str(value)) for value in (entry.clients, entry.seed))
        planned = "" if entry.planned is None else f" of {entry.planned:,}"
        table.add_row(
            Text(plain(entry.id)),
            Text(plain(entry.algorithm or "")),
            Text(plain(entry.data or "")),
            *map(Text, numbers),
            "" if entry.rounds is None else f"{entry.rounds:,}{planned}",
            Text(entry.state, style=_STYLES[entry.state]),
            "" if entry.objective is None else number_text(entry.objective),
            "" if entry.accuracy is None else share_text(entry.accuracy),
            time.strftime("%Y-%m-%d %H:%M", time.localtime(entry.started)) if entry.started else "",
        )
        if entry.state == "damaged":
            reasons.append(f"damaged  {entry.path}: {entry.reason}")
    console.print(table)
    for reason in reasons:
        say(plain(reason), console)
