"""Download of data sets that a run needs."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from fenchel.common.data.catalogue import CATALOGUE, Entry, locate
from fenchel.common.data.fetch import fetch
from fenchel.common.settings.data import DataSettings


def ensure(settings: DataSettings, console: Console) -> None:
    """Download the data set that a run needs, unless a local copy exists."""
    entry = CATALOGUE.get(settings.name or "")
    if entry is not None and locate(entry.name) is None:
        download(entry, console)


def download(entry: Entry, console: Console) -> Path | None:
    """Download a data set with a progress bar; return its path, or ``None`` for a data set without files."""
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=console) as bars:
        tasks = {}

        def progress(file: str, done: int, total: int | None) -> None:
            if file not in tasks:
                tasks[file] = bars.add_task(file, total=total)
            bars.update(tasks[file], completed=done, total=total)

        return fetch(entry, progress=progress)
