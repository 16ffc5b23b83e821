"""Common steps of commands that conduct a run: settings, run folder, log, interruption, warnings and outcome."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from rich.console import Console

from fenchel.common.errors import DataError, FenchelError, SettingsError
from fenchel.common.settings.run import RunSettings, change, load, read, shipped_or_own, validate
from fenchel.common.storage.run_folder import RunFolder
from fenchel.deploy.cli.printing import print_json, say, warn_of
from fenchel.deploy.launch.logs import log_to_file

if TYPE_CHECKING:
    from fenchel.common.tls.credentials import Credentials
    from fenchel.deploy.certificates.pairs import Purpose
    from fenchel.deploy.launch.given_data import OwnFiles
    from fenchel.deploy.monitoring.exporters import MonitoringOptions
    from fenchel.server.telemetry.observer import Observers
    from fenchel.server.telemetry.summary import Summary

T = TypeVar("T")


def chosen_settings(
    settings: Path | None,
    overrides: list[str] | None,
    clients: str | None,
    resume: Path | None,
    previous: bool,
    own: OwnFiles | None = None,
) -> tuple[RunSettings, RunFolder | None]:
    """Return the settings of a new run, or the settings and the folder of a run to resume.

    Parameters
    ----------
    own
        Clients' own data files, which replace the data in the settings of a new run.
    """
    if resume is None:
        if previous:
            raise SettingsError("--previous given without a run; give it with --resume RUN", key="--previous")
        return validate(*chosen_values(settings, overrides, clients, own)), None
    if settings is not None or overrides or clients is not None:
        raise SettingsError("a resumed run keeps its settings; give --resume RUN alone")
    folder = RunFolder.existing(resume)
    return load(folder.settings), folder


def chosen_values(
    settings: Path | None, overrides: list[str] | None, clients: str | None, own: OwnFiles | None
) -> tuple[dict[str, Any], str]:
    """Return the unvalidated settings of a new run, and the path of the settings file."""
    if settings is None:
        raise SettingsError("no settings given; give a file, a name such as quickstart, or --resume RUN")
    from fenchel.deploy.launch.given_data import warn_of_clients

    path = shipped_or_own(settings)
    values = read(path, [*(overrides or []), *([] if clients is None else [f"clients={clients}"])])
    if own is not None:
        asked = own.settings
        if clients is None:
            warn_of_clients(values, asked)
        change(values, asked if clients is None else asked | {"clients": values["clients"]})
    return values, str(path)


def load_shared(settings: Path, overrides: Sequence[str]) -> RunSettings:
    """Load settings for a command that needs the data of all clients; raise a DataError if clients have own files."""
    chosen = load(settings, overrides)
    if chosen.own_data:
        raise DataError(
            "own means that each client has its own file, so the data are not on this machine; use a data set that "
            "all clients share",
            key="data.name",
        )
    return chosen


def check_credentials(pair: Credentials, purpose: Purpose) -> None:
    """Reject a certificate without a matching key or for another purpose, and warn of a key that others can read."""
    from fenchel.deploy.certificates.pairs import check_pair

    check_pair(pair, purpose)
    if pair.key_is_open:
        warn_of(f"{pair.folder}: other users of this machine can read key.pem; run: chmod 600 key.pem")


def interruptible(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine and return its result, or cancel it on Ctrl-C or SIGTERM.

    Raises
    ------
    KeyboardInterrupt
        After Ctrl-C.
    asyncio.CancelledError
        After SIGTERM.
    """

    async def guarded() -> T:
        task = asyncio.current_task()
        assert task is not None
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
        return await work

    return asyncio.run(guarded())


@contextmanager
def conducted(
    folder: RunFolder, settings: RunSettings, exporters: MonitoringOptions, console: Console
) -> Iterator[Observers]:
    """Write a run's log and open its exporters in a ``with`` block; yield the observers of the exporters.

    After an error or interruption, print the option that resumes the run, if it has a checkpoint. After a
    ``FenchelError``, remove the folder of a run that has not begun.
    """
    from fenchel.deploy.monitoring.exporters import watching

    announce = partial(say, console=console)
    try:
        with (
            folder.kept_if_begun(),
            log_to_file(folder.log),
            watching(folder, settings, exporters, announce, warn_of) as watchers,
        ):
            yield watchers
    except (FenchelError, KeyboardInterrupt, asyncio.CancelledError):
        if folder.can_be_resumed:
            say(f"the run is saved up to its last checkpoint; go on with --resume {folder.path}", Console(stderr=True))
        raise


def show_warnings(settings: RunSettings) -> None:
    """Show each warning of a run's algorithm in a panel."""
    from rich.panel import Panel
    from rich.text import Text

    console = Console(stderr=True)
    for warning in settings.algorithm.warnings:
        console.print(Panel(Text(warning, style="bold yellow"), title="Warning", border_style="bold yellow"))


def show_outcome(console: Console, folder: RunFolder, summary: Summary, *, as_json: bool, quiet: bool) -> None:
    """Write the report, and print the outcome of the run."""
    from fenchel.report.render.page import write_report
    from fenchel.report.render.terminal import show
    from fenchel.report.run import Run

    run = Run(folder.path)
    write_report([run], folder.report)
    if as_json:
        print_json(asdict(summary) | {"folder": str(folder.path)})
    elif quiet:
        print(folder.path)  # noqa: T201
    else:
        show([run], console)
        say(f"run folder  {folder.path}\nreport      {folder.report}", console)
