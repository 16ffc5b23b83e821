"""Command ``fenchel disclosures``: the information that each party of a run received."""

from __future__ import annotations

from inspect import getdoc, getmembers, isfunction
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Column
from rich.text import Text

from fenchel.deploy.cli.options import JsonOption
from fenchel.deploy.cli.printing import plain_table, print_json, say


def disclosures(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="run folder, finished or not")], as_json: JsonOption = False
) -> None:
    """Show the information that each party of a run received, by kind of message, in plaintext or encrypted.

    The server's disclosure record contains the messages that it sent and received. docs/security.md explains the
    output.
    """
    from fenchel.report.disclosures import disclosure_rows, exporter_rows, head_rows, load_disclosures, noise_rows
    from fenchel.report.formatting import plain

    account = load_disclosures(run)
    if as_json:
        print_json(account, indent=2)
        return
    console = Console(highlight=False)
    headings = ("phase", "way", "name", "what", "form", "who could read it", "clients", "rounds")
    table = plain_table(*headings, Column("times", justify="right"))
    for row in disclosure_rows(account):
        table.add_row(*(Text(plain(f"{cell:,}" if isinstance(cell, int) else cell)) for cell in row))
    console.print(table)
    for sentence in noise_rows(account):
        say(f"noise  {plain(sentence)}")
    heads = plain_table("head", "way", "fields that were ever set", Column("times", justify="right"))
    for message, way, fields, times in head_rows(account):
        heads.add_row(Text(plain(message)), way, Text(plain(fields)), f"{times:,}")
    console.print("\nHeads of messages, always in clear between server and client:")
    console.print(heads)
    if exporters := exporter_rows(account):
        console.print("\nWhere else the run could be watched:")
        for sentence in exporters:
            say(plain(sentence))
    if meanings := _meanings(run):
        console.print("\nWhat clients do in each phase:")
        for phase, meaning in meanings.items():
            say(f"{phase:20} {meaning}")


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
