"""Command ``fenchel tune``: hyperparameter search."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.status import Status

from fenchel.common.errors import SettingsError
from fenchel.deploy.cli.options import InProcessOption, JsonOption, ProcessesOption, RunsOption
from fenchel.deploy.cli.printing import print_json, say
from fenchel.deploy.launch.logs import log_to_file
from fenchel.report.formatting import number_text

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

    from fenchel.common.settings.tuning import TuningSettings
    from fenchel.server.telemetry.observer import Observer


def tune(
    settings: Annotated[Path | None, typer.Argument(help="tuning file (YAML); see docs/tuning.md")] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="override one setting of all runs; dotted key, YAML value"),
    ] = None,
    trials: Annotated[int | None, typer.Option(min=1, help="number of trials; default: that of the file")] = None,
    in_process: InProcessOption = False,
    processes: ProcessesOption = None,
    runs: RunsOption = Path("runs"),
    resume: Annotated[Path | None, typer.Option(metavar="TUNING", help="tuning folder of a search to continue")] = None,
    as_json: JsonOption = False,
) -> None:
    """Search for good hyperparameters with Optuna, one run per trial; show the best trial or the Pareto front."""
    from fenchel.common.settings.tuning import load_tuning
    from fenchel.deploy.launch.tuning import Search
    from fenchel.report import tuning as report

    if in_process and processes is not None:
        raise SettingsError(
            "--processes limits client processes, but --in-process starts none; leave one of the two out"
        )
    if resume is not None:
        if settings is not None or overrides:
            raise SettingsError("a resumed search keeps its settings; give --resume TUNING (and --trials) alone")
        search = Search.reopen(resume, trials)
    elif settings is not None:
        tuning = load_tuning(settings)
        if trials is not None:
            tuning = tuning.model_copy(update={"trials": trials})
        search = Search.begin(tuning, runs, tuple(overrides or ()))
    else:
        raise SettingsError(
            "no search given; give a tuning file, a name such as tune-fedavg-digits, or --resume TUNING"
        )
    console = Console(stderr=as_json, highlight=False)
    folder = search.folder
    progress = _Progress(console, search.tuning, search.base.rounds)
    try:
        with log_to_file(folder.log), progress.status:
            result = search.go(
                in_process=in_process, processes=processes, beginning=progress.beginning, ended=progress.ended
            )
    except KeyboardInterrupt:
        say(f"to go on: fenchel tune --resume {folder.path}", console)
        raise
    if as_json:
        print_json(report.as_json(result) | {"folder": str(folder.path)})
        return
    report.show(result, console)
    paths = {"tuning folder": folder.path, "study": folder.study, "best settings": folder.best}
    paths |= {"front": folder.front, "plot": folder.figure}
    for name, path in paths.items():
        if path.exists():  # without matplotlib there is no plot
            say(f"{name:14} {path}", console)


class _Progress:
    """Progress display of a search, with a line for each finished trial and a line for the current trial."""

    def __init__(self, console: Console, tuning: TuningSettings, rounds: int) -> None:
        self._console = console
        self._trials = tuning.total
        self._objectives = tuple(tuning.objectives)
        self._rounds = rounds
        self.status = Status("starting", console=console)

    def beginning(self, number: int, drawn: Mapping[str, Any]) -> Observer:
        """Show the start of a trial; return the observer of its run."""
        from fenchel.deploy.monitoring.display import StatusLine

        title = f"trial {number} ({number + 1} of {self._trials}): {_words(drawn)}"
        self.status.update(escape(title))
        return StatusLine(self.status, title, drawn.get("rounds", self._rounds))

    def ended(self, trial: FrozenTrial) -> None:
        """Show the end of a trial, with the values of its objectives if it was completed."""
        from fenchel.report.tuning import value_text

        completed = trial.state.name == "COMPLETE"
        values = zip(self._objectives, trial.values, strict=True) if completed else ()
        ending = ", ".join([trial.state.name.lower(), *(f"{name} {value_text(name, value)}" for name, value in values)])
        text = f"trial {trial.number} {ending}: {_words(trial.params)}"
        self._console.print(text, markup=False, soft_wrap=True)


def _words(drawn: Mapping[str, Any]) -> str:
    return ", ".join(
        f"{key} {number_text(value) if isinstance(value, float) else value}" for key, value in drawn.items()
    )
