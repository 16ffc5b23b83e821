"""A search for good parameters: draws trials, does each as a real run, and goes on where it was interrupted."""

from __future__ import annotations

import json
import secrets
import shutil
import time
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console

from fenchel.common.data.source import DataSource
from fenchel.common.errors import (
    CheckpointError,
    DataError,
    FenchelError,
    MissingDependencyError,
    RunStoppedError,
    SettingsError,
    StorageError,
)
from fenchel.common.randomness import generator
from fenchel.common.settings.participation import OnShortage
from fenchel.common.settings.run import RunSettings, load, validate
from fenchel.common.settings.tuning import TuningSettings, load_tuning
from fenchel.deploy.launch.data import ensure
from fenchel.deploy.launch.up import up
from fenchel.report.render.canvas import missing
from fenchel.report.run import Run
from fenchel.report.tuning.pareto_front import draw
from fenchel.report.tuning.trials import Trial, Verdict, judge, write_table
from fenchel.server.preflight import check_run, open_data
from fenchel.server.telemetry.observer import Observer


@dataclass(frozen=True)
class TuningFolder:
    """Where the parts of a search are kept."""

    path: Path  # the folder

    @classmethod
    def create(cls, parent: Path, tuning: TuningSettings, base: RunSettings) -> TuningFolder:
        """Create the folder of a new search below ``parent``, with all that repeats the search."""
        stamp = time.strftime("%Y%m%d-%H%M%S")
        folder = cls(parent / f"{stamp}-{tuning.name}-{secrets.token_hex(2)}")
        try:
            folder.trials.mkdir(parents=True)
            folder.base.write_text(base.to_yaml())
            folder.write_settings(tuning)
        except OSError as error:
            raise StorageError(
                f"no tuning folder can be made there ({error.strerror}); make room on the disk, or the "
                "folder writable, or choose another with --runs",
                source=parent,
            ) from None
        return folder

    def write_settings(self, tuning: TuningSettings) -> None:
        """Write the settings of the search, which then rest on the copy of the run's settings in this folder."""
        kept = tuning.model_copy(update={"settings": Path(self.base.name), "overrides": {}})
        self.settings.write_text(kept.to_yaml())

    @property
    def settings(self) -> Path:
        """The settings of the search, defaults included."""
        return self.path / "tuning.yaml"

    @property
    def base(self) -> Path:
        """The settings that all trials begin from, overrides included."""
        return self.path / "base.yaml"

    @property
    def trials(self) -> Path:
        """The run folders of the trials."""
        return self.path / "trials"

    @property
    def record(self) -> Path:
        """The trials that are over, a JSON object a line."""
        return self.path / "trials.jsonl"

    @property
    def table(self) -> Path:
        """A row a trial (Parquet)."""
        return self.path / "trials.parquet"

    @property
    def figure(self) -> Path:
        """The picture of the front and the choice."""
        return self.path / "front.png"

    @property
    def best(self) -> Path:
        """The settings of the chosen trial, which start its run again."""
        return self.path / "best.yaml"

    @property
    def log(self) -> Path:
        """What happened in all trials, a JSON object a line."""
        return self.path / "log.jsonl"


@dataclass
class Search:
    """A search that can be done, or gone on with."""

    tuning: TuningSettings  # what is searched
    base: RunSettings  # the settings that all trials begin from
    folder: TuningFolder  # of the search
    finished: dict[int, Trial] = field(default_factory=dict)  # the trials that are over, by number

    @classmethod
    def begin(cls, tuning: TuningSettings, runs: Path, overrides: tuple[str, ...] = ()) -> Search:
        """Return a new search, whose folder is made below ``runs``.

        overrides: ``key=value`` pairs that change the run's settings for all trials, after those of the tuning file.
        """
        given = [_override(key, value) for key, value in tuning.overrides.items()]
        base = load(tuning.settings, [*given, *overrides])
        _check(tuning, base, tuning.settings)
        return cls(tuning, base, TuningFolder.create(runs, tuning, base))

    @classmethod
    def reopen(cls, path: Path, trials: int | None = None) -> Search:
        """Return the search of a folder, with the trials that are over.

        trials: how many there are to be, in place of the settings'. More trials continue the same sequence of draws.
        """
        folder = TuningFolder(path)
        if not folder.settings.is_file():
            raise CheckpointError(f"not a tuning folder (it has no {folder.settings.name})", source=path)
        tuning = load_tuning(folder.settings)
        if trials is not None:
            tuning = tuning.model_copy(update={"trials": trials})
            folder.write_settings(tuning)
        base = load(tuning.settings)
        finished = {trial.number: trial for trial in _recorded(folder) if trial.number < tuning.trials}
        _check(tuning, base, folder.base, finished)
        for trial in finished.values():
            if trial.parameters != _plain(parameters(tuning, trial.number)):
                raise CheckpointError(
                    f"trial {trial.number} was done with {dict(trial.parameters)}, which is not what "
                    f"{folder.settings.name} draws; parameters and seed of a search cannot be changed: start a new one",
                    source=folder.record,
                )
        return cls(tuning, base, folder, finished)

    def go(
        self,
        *,
        in_process: bool = False,
        processes: int | None = None,
        beginning: Callable[[int, Mapping[str, Any]], Observer] = lambda number, drawn: Observer(),
        ended: Callable[[Trial], None] = lambda trial: None,
    ) -> Verdict:
        """Do the trials that are left, judge all of them and write the results.

        A trial whose run fails is recorded with the reason, and the search goes on.

        beginning: called with each trial's number and parameters; returns the observer of its run.
        """
        for number in range(self.tuning.trials):
            if number not in self.finished:
                drawn = parameters(self.tuning, number)
                trial = self._run(number, drawn, beginning(number, drawn), in_process, processes)
                self._note(trial)
                ended(trial)
        verdict = judge([self.finished[number] for number in range(self.tuning.trials)], self.tuning.selection)
        write_table(verdict, self.folder.table)
        if verdict.best is None:
            reasons = "\n  ".join(f"trial {each.trial.number}: {each.reason}" for each in verdict.trials)
            raise RunStoppedError(f"no trial can be chosen, all were dropped\n  {reasons}", source=self.folder.path)
        if missing() is None:  # without matplotlib the table says it alone
            draw(verdict, self.folder.figure)
        self.folder.best.write_text(self._settings_of(verdict.best).to_yaml())
        return verdict

    def _run(
        self, number: int, drawn: Mapping[str, Any], observer: Observer, in_process: bool, processes: int | None
    ) -> Trial:
        name = f"trial-{number:03d}"
        pattern = f"*-{name}-????"
        for interrupted in self.folder.trials.glob(pattern):
            shutil.rmtree(interrupted)
        settings = _named(trial_settings(self.base, drawn, number), name, on_shortage="stop")
        try:
            run = up(settings, runs=self.folder.trials, in_process=in_process, processes=processes, observer=observer)
        except (DataError, MissingDependencyError):
            raise  # it would be the same for every trial
        except FenchelError as error:
            begun = next(iter(self.folder.trials.glob(pattern)), None)
            return Trial(number, _plain(drawn), begun, str(error) or type(error).__name__)
        return Trial(number, _plain(drawn), run.path)

    def _note(self, trial: Trial) -> None:
        self.finished[trial.number] = trial
        line = {
            "trial": trial.number,
            "parameters": trial.parameters,
            "run": None if trial.run is None else trial.run.name,
            "error": trial.error,
        }
        with self.folder.record.open("a") as file:
            file.write(json.dumps(line) + "\n")

    def _settings_of(self, trial: Trial) -> RunSettings:
        assert trial.run is not None
        return _named(Run(trial.run).settings, self.base.name, self.base.participation.on_shortage)


def _named(settings: RunSettings, name: str, on_shortage: OnShortage) -> RunSettings:
    """Return settings under another name; a trial stops for want of replies, since waiting would hold up the search."""
    participation = settings.participation.model_copy(update={"on_shortage": on_shortage})
    return settings.model_copy(update={"name": name, "participation": participation})


def parameters(tuning: TuningSettings, number: int) -> dict[str, Any]:
    """Draw the parameters of one trial.

    They depend on the seed, the trial's number and each parameter's key alone: more trials, or another
    parameter, leave the others as they were.
    """
    return {
        key: distribution.draw(generator(tuning.seed, "trial", number, key))
        for key, distribution in tuning.parameters.items()
    }


def trial_settings(base: RunSettings, drawn: Mapping[str, Any], number: int) -> RunSettings:
    """Return the settings of a trial."""
    values = base.model_dump(mode="json")
    for key, value in drawn.items():
        *path, last = key.split(".")
        section: Any = values
        for part in path:
            section = section.get(part) if isinstance(section, dict) else None
        if not isinstance(section, dict):
            raise SettingsError(f"the settings of the run have no section {'.'.join(path)!r}", key=f"parameters.{key}")
        section[last] = value
    return validate(values, f"trial {number}")


def _check(tuning: TuningSettings, base: RunSettings, source: Path, finished: Container[int] = frozenset()) -> None:
    """Refuse a search before it starts if one of its trials could not start."""
    if not isinstance(base.clients, int):
        raise SettingsError("auto means whoever joins; a search needs a number", source=source, key="clients")
    trials = [trial_settings(base, parameters(tuning, number), number) for number in range(tuning.trials)]
    sources: dict[str, DataSource | None] = {}
    for number, trial in enumerate(trials):
        if number in finished:
            continue
        # As a rule trials differ in other things than their data, which may be large.
        same = f"{trial.seed} {trial.positive} {trial.data.model_dump_json()}"
        if same not in sources:
            ensure(trial.data, Console(stderr=True))
            sources = {same: open_data(trial)}
        try:
            check_run(trial, sources[same], base.clients)
        except MissingDependencyError:
            raise  # it would be the same for every trial
        except SettingsError as error:
            raise SettingsError(f"{error.problem} (trial {number})", key=error.key) from None


def _override(key: str, value: Any) -> str:
    return f"{key}={yaml.safe_dump(value, default_flow_style=True)}"


def _plain(drawn: Mapping[str, Any]) -> dict[str, Any]:
    """Return parameters as they look after they were written as JSON and read again."""
    read: dict[str, Any] = json.loads(json.dumps(dict(drawn), default=str))
    return read


def _recorded(folder: TuningFolder) -> list[Trial]:
    """Return the trials that are over. A line that a crash cut off is removed: its trial is done again."""
    if not folder.record.exists():
        return []
    text = folder.record.read_text(errors="replace")
    whole = text[: text.rfind("\n") + 1]
    if whole != text:
        folder.record.write_text(whole)
    trials = []
    for position, line in enumerate(whole.splitlines(), 1):
        try:
            values = json.loads(line)
            run = None if values["run"] is None else folder.trials / values["run"]
            trials.append(Trial(values["trial"], values["parameters"], run, values["error"]))
        except (ValueError, KeyError, TypeError, RecursionError):
            raise CheckpointError(f"line {position} is not the record of a trial", source=folder.record) from None
    return trials
