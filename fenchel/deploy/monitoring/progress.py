"""Progress display of a run in a Python program: in a notebook, or on a terminal."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console

from fenchel.deploy.monitoring.display import Display
from fenchel.deploy.monitoring.notebook import NotebookProgress, notebook_display
from fenchel.server.telemetry.observer import Observer, Observers


@contextmanager
def progress_shown(observer: Observer | None, title: str, rounds: int) -> Iterator[Observer | None]:
    """Show a run's progress below a notebook's cell, or on standard error if that is a terminal.

    Parameters
    ----------
    observer
        Observer given by the caller; ``None`` without one.
    title
        Name of the run.
    rounds
        Number of planned rounds.

    Yields
    ------
    Observer or None
        Observer for the run, which includes ``observer`` and the display.
    """
    given = () if observer is None else (observer,)
    console = Console(stderr=True)
    if (cell := notebook_display()) is not None:
        yield Observers(*given, NotebookProgress(cell, rounds))
    elif console.is_terminal:
        with Display(console, title, rounds) as display:
            yield Observers(*given, display)
    else:
        yield observer
