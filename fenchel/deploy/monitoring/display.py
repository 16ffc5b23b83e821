"""Progress display of a run: a live table on a terminal, plain lines in a log."""

from __future__ import annotations

import math
import sys
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.status import Status
from rich.table import Table
from rich.text import Text

from fenchel.common.storage.round_columns import Row
from fenchel.deploy.monitoring.notebook import NotebookProgress, notebook_display
from fenchel.deploy.monitoring.time_left import TimeLeft
from fenchel.report.formatting import bytes_text, fitting, seconds_text
from fenchel.server.telemetry.observer import Observer, Observers

_SHOWN_ROWS = 12
_LARGE = 1e6  # least number that is shown without decimals


def _number(figure: float, digits: int = 4) -> str:
    """Return a number with fixed decimals, or with significant digits if decimals would hide it or be too many."""
    if math.isnan(figure):
        return ""
    is_usual = figure == 0 or 10.0 ** (1 - digits) <= abs(figure) < _LARGE
    return f"{figure:.{digits}f}" if is_usual else f"{figure:.{digits}g}"


def _small(figure: float) -> str:
    return "" if math.isnan(figure) else f"{figure:.2e}"


def _percent(figure: float, digits: int = 1) -> str:
    return "" if math.isnan(figure) else f"{100 * figure:.{digits}f} %"


@dataclass(frozen=True)
class _Column:
    """Column of the progress display. A ``rare`` column is omitted from the live table if all its cells are empty."""

    title: str
    text: Callable[[Row], str]
    rare: bool = False


_COLUMNS = (
    _Column("round", lambda row: f"{row['round']:.0f}"),
    _Column("objective", lambda row: _number(_objective(row))),
    _Column("gap", lambda row: _small(row.get("gap", math.nan)), rare=True),
    _Column("accuracy", lambda row: _percent(row.get(_of_split(row, "accuracy"), math.nan))),
    _Column("auc", lambda row: _auc(row), rare=True),
    _Column("epsilon", lambda row: _number(row.get("epsilon_pld", math.nan), 3), rare=True),
    _Column("seconds", lambda row: f"{row['seconds']:.3f}"),
    _Column("compute", lambda row: f"{row['compute_s']:.3f}"),
    _Column("encryption", lambda row: f"{spent:.3f}" if (spent := row["encryption_s"]) else "", rare=True),
    _Column("coding", lambda row: f"{row['coding_s']:.3f}"),
    _Column("network", lambda row: f"{row['network_s']:.3f}"),
    _Column("rest", lambda row: f"{_rest(row):.3f}"),
    _Column("down", lambda row: bytes_text(row["wire_down"])),
    _Column("up", lambda row: bytes_text(row["wire_up"])),
    _Column("replies", lambda row: f"{row['counted']:.0f}/{row['asked']:.0f}"),
)


_LEFT_OUT = ("coding", "rest", "compute", "replies", "down", "up", "encryption", "network", "seconds")
"""Titles of the columns that narrow terminals omit, in the order of removal."""


def _rest(row: Row) -> float:
    """Return the seconds of a round outside of compute, encryption, coding and network."""
    shown = sum(row[f"{part}_s"] for part in ("compute", "encryption", "coding", "network"))
    return max(row["seconds"] - shown, 0.0)


def _objective(row: Row) -> float:
    """Return the evaluated objective, or else that reported by the algorithm, which lags by one round."""
    figure = row.get("objective", math.nan)
    return row.get("primal_objective", math.nan) if math.isnan(figure) else figure


def _of_split(row: Row, kind: str) -> str:
    """Return the name of the first known figure among test set, clients' holdouts and training samples."""
    names = [f"{split}_{kind}" for split in ("test", "holdout", "train")]
    return next((name for name in names if not math.isnan(row.get(name, math.nan))), names[-1])


def _auc(row: Row) -> str:
    """Return the AUC as text, with an error bound if it is computed from a histogram of scores."""
    name = _of_split(row, "auc")
    error = row.get(f"{name}_error", math.nan)
    return _percent(row.get(name, math.nan), 2) + (f" ± {_percent(error, 2)}" if error > 0 else "")


class Display(Observer):
    """Progress display of a run.

    Parameters
    ----------
    console
        Console of the output: a live table on a terminal, otherwise a line for each round.
    title
        Name of the run.
    rounds
        Number of planned rounds.
    """

    def __init__(self, console: Console, title: str, rounds: int) -> None:
        self._console = console
        self._title = title
        self._rounds = rounds
        self._left = TimeLeft(rounds)
        self._rows: deque[Row] = deque(maxlen=_SHOWN_ROWS)
        self._status = "starting"
        self._present = 0
        self._live = None
        if console.is_terminal:
            # Output of the calling program must not be redirected if its standard output is a file.
            redirects = not console.stderr or sys.stdout.isatty()
            self._live = Live(self._table(), console=console, refresh_per_second=8, redirect_stdout=redirects)

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._live is not None:
            self._live.update(self._table())
            self._live.stop()

    def say(self, status: str) -> None:
        """Show a status line."""
        self._status = status
        if self._live is not None:
            self._live.update(self._table())
        else:
            self._console.print(status, highlight=False, markup=False)

    def joined(self, present: int, expected: int | None) -> None:
        """Show the number of clients that are ready."""
        ready = f"{present} of {expected or '?'} clients ready"
        again = present == self._present
        self._present = present
        self.say(f"a client is connected again; {ready}" if again else ready)

    def waiting(self, reason: str) -> None:
        """Show in the live table the reason why the run waits. Without a table, only the log contains the reason."""
        self._status = reason
        if self._live is not None:
            self._live.update(self._table())

    def round_ended(self, row: Row) -> None:
        """Show the row of a round."""
        self._rows.append(row)
        self._left.round_ended(row)
        self._status = ""
        if self._live is not None:
            self._live.update(self._table())
        else:
            shown = [f"{column.title} {text}" for column in _COLUMNS if (text := column.text(row))]
            self._console.print("  ".join(shown), highlight=False, soft_wrap=True)

    def _table(self) -> Table:
        done = int(self._rows[-1]["round"]) if self._rows else 0
        left = "" if self._left.seconds is None else f"   about {seconds_text(self._left.seconds)} left"
        table = Table(
            title=f"{self._title}   round {done} of {self._rounds}{left}",
            title_style="bold",
            caption=Text(self._status),
            header_style="dim",
            box=None,
            pad_edge=False,
        )
        found = {column.title: [column.text(row) for row in self._rows] for column in _COLUMNS}
        for column in _COLUMNS:
            if column.rare and not any(found[column.title]):
                del found[column.title]
        widths = {title: max(map(len, (title, *texts))) + 2 for title, texts in found.items()}  # two columns of padding
        titles = fitting(widths, _LEFT_OUT, self._console.width)
        for title in titles:
            table.add_column(title, justify="right", no_wrap=True)
        for texts in zip(*(found[title] for title in titles), strict=True):
            table.add_row(*texts)
        return table


class StatusLine(Observer):
    """Progress display of a run in one line of the terminal.

    Parameters
    ----------
    status
        Line on the terminal.
    label
        Text before the progress.
    rounds
        Number of planned rounds.
    """

    def __init__(self, status: Status, label: str, rounds: int) -> None:
        self._status = status
        self._label = label
        self._rounds = rounds

    def say(self, text: str) -> None:
        """Show a text after the label."""
        self._status.update(escape(f"{self._label}  {text}"))

    def round_ended(self, row: Row) -> None:
        """Show the number of the round."""
        self.say(f"round {row['round']:.0f} of {self._rounds}")

    def waiting(self, reason: str) -> None:
        """Show the reason for the delay."""
        self.say(reason)


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
