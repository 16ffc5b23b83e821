"""Command ``fenchel disclosures``: the information that each party of a run received."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from inspect import getdoc, getmembers, isfunction
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Column, Table
from rich.text import Text

from fenchel.deploy.cli.options import JsonOption
from fenchel.deploy.cli.printing import plain_table, print_json, say, wide

_HEADINGS = ("phase", "way", "name", "what", "form", "who could read it", "clients", "rounds", "times")
_READERS = _HEADINGS.index("who could read it")
_LEAST = 24  # least width of the column of the readers
_GAP = 2  # spaces between two columns


def disclosures(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="run folder, finished or not")], as_json: JsonOption = False
) -> None:
    """Show the information that each party of a run received, by kind of message, in plaintext or encrypted.

    The server's disclosure record contains the messages that it sent and received. docs/security.md explains the
    output.
    """
    from fenchel.report.disclosures import disclosure_rows, exporter_rows, head_rows, load_disclosures, noise_rows
    from fenchel.report.formatting import printable

    account = load_disclosures(run)
    if as_json:
        print_json(account, indent=2)
        return
    console = wide(Console(highlight=False))
    rows = [
        tuple(printable(f"{cell:,}" if isinstance(cell, int) else cell) for cell in row)
        for row in disclosure_rows(account)
    ]
    console.print(_table(rows) if _table_width(rows) <= console.width else _blocks(rows))
    for sentence in noise_rows(account):
        say(f"noise  {printable(sentence)}")
    heads = plain_table("head", "way", "fields that were ever set", Column("times", justify="right"))
    for message, way, fields, times in head_rows(account):
        heads.add_row(Text(printable(message)), way, Text(printable(fields)), f"{times:,}")
    console.print("\nHeads of messages, always in clear between server and client:")
    console.print(heads)
    if exporters := exporter_rows(account):
        console.print("\nWhere else the run could be watched:")
        for sentence in exporters:
            say(printable(sentence))
    if meanings := _meanings(run):
        console.print("\nWhat clients do in each phase:")
        described = Table.grid("", "", padding=(0, 2, 0, 0))
        for phase, meaning in meanings.items():
            described.add_row(Text(phase), Text(meaning))
        console.print(described)


def _table_width(rows: Iterable[Sequence[str]]) -> int:
    """Return the least width of the table, in which no column but that of the readers is narrower than its texts."""
    widths = [max(map(len, column)) for column in zip(_HEADINGS, *rows, strict=True)]
    widths[_READERS] = min(widths[_READERS], _LEAST)
    return sum(widths) + _GAP * (len(widths) - 1)


def _table(rows: Iterable[Sequence[str]]) -> Table:
    """Return the table of disclosures, a row for each kind of message."""
    columns = [Column(heading, no_wrap=column != _READERS) for column, heading in enumerate(_HEADINGS)]
    columns[-1].justify = "right"
    table = plain_table(*columns)
    for row in rows:
        table.add_row(*map(Text, row))
    return table


def _blocks(rows: Iterable[Sequence[str]]) -> Group:
    """Return the disclosures for a narrow terminal: a block for each phase and way, with lines for each message."""
    blocks: list[RenderableType] = []
    for (phase, way), messages in groupby(rows, key=itemgetter(0, 1)):
        block = Table.grid("", "", padding=(0, 2, 0, 0))
        for _, _, name, what, form, readers, clients, rounds, times in messages:
            receivers = "all clients" if clients == "all" else clients
            span = f"round{'s' if ' to ' in rounds else ''} {rounds}, {times} time{'' if times == '1' else 's'}"
            lines = f"{what}, {form}; {receivers}, {span}\nreadable by {readers}"
            block.add_row(Text(name), Text(lines))
        blocks += [Text(f"{phase}, {way}", style="bold"), Padding(block, (0, 0, 1, 2))]
    return Group(*blocks)


def _meanings(run: Path) -> dict[str, str]:
    """Return a description of the client's work in each phase, empty for an algorithm from outside Fenchel."""
    from fenchel.algorithms.registry import client_half
    from fenchel.common.settings.registry import is_outside
    from fenchel.common.storage.run_folder import RunFolder
    from fenchel.report.run import Run
    from fenchel.report.summary import headline

    if not RunFolder(run).settings.exists():
        return {}
    name = str(headline(Run(run))["algorithm"])
    if is_outside(name):
        return {}
    return {
        method.answers_phase: " ".join((getdoc(method) or "").partition("\n\n")[0].split())
        for _, method in getmembers(client_half(name), isfunction)
        if hasattr(method, "answers_phase")
    }
