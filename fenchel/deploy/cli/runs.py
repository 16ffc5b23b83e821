"""Command ``fenchel runs``: the index of run folders."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console, JustifyMethod

from fenchel.deploy.cli.options import JsonOption
from fenchel.deploy.cli.printing import print_json, say, wide

if TYPE_CHECKING:
    from fenchel.report.index import IndexEntry

_STYLES = {"completed": "green", "stopped": "red", "unfinished": "yellow", "damaged": "bold red"}
_COLUMNS: Mapping[str, JustifyMethod] = {
    "run": "left",
    "algorithm": "left",
    "data": "left",
    "clients": "right",
    "grid": "left",
    "seed": "right",
    "rounds": "right",
    "state": "left",
    "objective": "right",
    "accuracy": "right",
    "started": "left",
}
_LEFT_OUT = ("started", "clients", "data", "objective", "algorithm", "rounds", "accuracy", "seed", "grid")
"""Titles of the columns that narrow terminals omit, in the order of removal; the id of a run begins with its start."""
_GAP = 2  # spaces between two columns
_LONGEST = 24  # largest width of the names of algorithms and data, and of the values of a grid


def runs(
    folder: Annotated[Path, typer.Argument(metavar="[FOLDER]", help="folder of run folders, or of sweeps")] = Path(
        "runs"
    ),
    as_json: JsonOption = False,
) -> None:
    """List the runs of a folder, newest first, with settings, progress, state, last objective and accuracy.

    A terminal shows the columns that fit; those that tell runs apart come first.
    """
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

    from fenchel.report.formatting import changes_text, count_text, fitting, number_text, printable, share_text

    columns: dict[str, list[Text]] = {title: [] for title in _COLUMNS}
    reasons = []
    for entry in entries:
        planned = "" if entry.planned in (None, entry.rounds) else f" of {entry.planned:,}"
        started = time.strftime("%Y-%m-%d %H:%M", time.localtime(entry.started)) if entry.started else ""
        texts = (
            Text(printable(entry.id)),
            Text(printable(entry.algorithm or "")),
            Text(printable(entry.data or "")),
            Text("" if entry.clients is None else printable(str(entry.clients))),
            Text(printable(changes_text(entry.grid))),
            Text("" if entry.seed is None else printable(str(entry.seed))),
            Text("" if entry.rounds is None else f"{entry.rounds:,}{planned}"),
            Text(entry.state, style=_STYLES[entry.state]),
            Text("" if entry.objective is None else number_text(entry.objective)),
            Text("" if entry.accuracy is None else share_text(entry.accuracy)),
            Text(started),
        )
        for column, text in zip(columns.values(), texts, strict=True):
            column.append(text)
        if entry.state == "damaged":
            reasons.append(f"damaged  {entry.path}: {entry.reason}")
    for text in (*columns["algorithm"], *columns["data"], *columns["grid"]):
        text.truncate(_LONGEST, overflow="ellipsis")
    widths = {title: _GAP + max(len(title), *map(len, texts), 0) for title, texts in columns.items()}
    if not any(columns["grid"]):
        del widths["grid"]
    titles = fitting(widths, _LEFT_OUT, console.width)
    table = Table(
        box=box.SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
        padding=(0, _GAP - 1, 0, 0),  # and a separator
        caption=count_text(len(entries), "run"),
        caption_justify="left",
    )
    for title in titles:
        table.add_column(title, justify=_COLUMNS[title], no_wrap=title != "run", overflow="fold")
    for row in zip(*(columns[title] for title in titles), strict=True):
        table.add_row(*row)
    console.print(table)
    for reason in reasons:
        say(printable(reason), console)
