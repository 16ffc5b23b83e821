"""Download of data sets that a run needs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from fenchel.common.data.catalogue import CATALOGUE, Entry, locate
from fenchel.common.data.fetch import fetch
from fenchel.common.settings.data import DataSettings

if TYPE_CHECKING:
    from rich.console import Console


def ensure(settings: DataSettings, console: Console | None = None) -> None:
    """Download the data set that a run needs, unless a local copy exists. Progress is shown on stderr by default."""
    entry = CATALOGUE.get(settings.name or "")
    if entry is not None and locate(entry.name) is None:
        download(entry, console)


def download(entry: Entry, console: Console | None = None) -> Path | None:
    """Download a data set with a progress bar; return its path, or ``None`` for a data set without files."""
    from rich.console import Console  # late import, because most runs download nothing
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=console or Console(stderr=True)) as bars:
        tasks = {}

        def progress(file: str, done: int, total: int | None) -> None:
            if file not in tasks:
                tasks[file] = bars.add_task(file, total=total)
            bars.update(tasks[file], completed=done, total=total)

        return fetch(entry, progress=progress)
