"""Hyperparameter search with Optuna, in which each trial is a run, and an interrupted search can be resumed."""

from __future__ import annotations

import itertools
import logging
import math
import secrets
import shutil
import sqlite3
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import yaml

from fenchel.common.data.source import DataSource
from fenchel.common.errors import (
    CheckpointError,
    DataError,
    DivergedError,
    FenchelError,
    MissingDependencyError,
    RunStoppedError,
    SettingsError,
    StorageError,
)
from fenchel.common.randomness import generator
from fenchel.common.settings.participation import OnShortage
from fenchel.common.settings.run import RunSettings, dotted, load, validate
from fenchel.common.settings.tuning import Choice, TuningSettings, load_tuning
from fenchel.common.storage.round_columns import Row
from fenchel.common.storage.run_folder import Part
from fenchel.deploy.launch.data import ensure
from fenchel.deploy.launch.up import up
from fenchel.report import tuning as report
from fenchel.report.render.canvas import can_draw
from fenchel.report.run import Run
from fenchel.report.tuning import SearchResult
from fenchel.server.preflight import check_run, open_data
from fenchel.server.telemetry.observer import Observer, Observers, OngoingRun

if TYPE_CHECKING:
    from optuna import Study, Trial
    from optuna.samplers import BaseSampler
    from optuna.trial import FrozenTrial

_STUDY = "fenchel"  # name of the single Optuna study in a file
_REPEATED = "fenchel"  # study attribute with the settings that must not change when a search is resumed


@dataclass(frozen=True)
class TuningFolder:
    """Paths of the files of a search.

    Attributes
    ----------
    path
        Folder of the search.
    settings
        Settings of the search, including defaults.
    base
        Settings that all trials share, including overrides.
    trials
        Run folders of the trials.
    study
        Optuna study (SQLite).
    figure
        Plot of the objectives.
    best
        Settings of the best trial, or of the selected trial on the Pareto front.
    front
        Settings of the trials on the Pareto front, if there are several objectives.
    log
        Log of all trials, with one JSON object per line.
    """

    path: Path

    @classmethod
    def create(cls, parent: Path, tuning: TuningSettings, base: RunSettings) -> TuningFolder:
        """Create the folder of a new search below ``parent``, with all files needed to repeat the search."""
        stamp = time.strftime("%Y%m%d-%H%M%S")
        folder = cls(parent / f"{stamp}-{tuning.name}-{secrets.token_hex(2)}")
        try:
            folder.trials.mkdir(parents=True)
            folder.base.write_text(base.to_yaml())
            folder.write_settings(tuning)
        except OSError as error:
            raise StorageError(
                f"no tuning folder can be created in this folder ({error.strerror}); make room on the disk, make "
                "the folder writable, or choose another one with --runs",
                source=parent,
            ) from None
        return folder

    def write_settings(self, tuning: TuningSettings) -> None:
        """Write the settings of the search, which refer to the copy of the run's settings in this folder."""
        kept = tuning.model_copy(update={"settings": Path(self.base.name), "overrides": {}})
        self.settings.write_text(kept.to_yaml())

    settings = Part("tuning.yaml")
    base = Part("base.yaml")
    trials = Part("trials")
    study = Part("study.db")
    figure = Part("front.png")
    best = Part("best.yaml")
    front = Part("front")
    log = Part("log.jsonl")


class _PrunedError(RunStoppedError):
    """Error that stops a run whose objective is worse than the median of the earlier trials."""


class _Pruner(Observer):
    """Observer that reports the objective of each round, and stops the run if Optuna prunes the trial."""

    def __init__(self, trial: Trial, objective: str) -> None:
        self._trial = trial
        self._objective = objective
        # A restarted trial has already reported the first rounds.
        self._reported = trial.study.trials[trial.number].intermediate_values
        self._last = 0

    def begun(self, run: OngoingRun) -> None:
        """Record the number of rounds, because pruning after the last round saves no time."""
        self._last = run.settings.rounds

    def round_ended(self, row: Row) -> None:
        """Report the objective, and raise an error if Optuna prunes the trial."""
        name = (
            report.loss_column([each for each, value in row.items() if math.isfinite(value)])
            if self._objective == "objective"
            else self._objective
        )
        t, value = int(row["round"]), row.get(name, math.nan)
        if math.isfinite(value):
            if t not in self._reported:
                self._trial.report(value, t)
            if t < self._last and self._trial.should_prune():
                self._last = 0  # report the pruning only once, because the run may finish another round
                raise _PrunedError(f"{name} is {value:.4g} after round {t}, worse than the median of the trials so far")


@dataclass
class Search:
    """New or resumed hyperparameter search.

    Attributes
    ----------
    base
        Settings that all trials share.
    """

    tuning: TuningSettings
    base: RunSettings
    folder: TuningFolder

    @classmethod
    def begin(cls, tuning: TuningSettings, runs: Path, overrides: tuple[str, ...] = ()) -> Search:
        """Return a new search, and create its folder below ``runs``.

        Parameters
        ----------
        overrides
            ``key=value`` pairs that change the run's settings for all trials, after those of the tuning file.

        Raises
        ------
        MissingDependencyError
            If Optuna is not installed.
        SettingsError
            If runs within the bounds of the parameters are impossible.
        """
        _optuna()
        given = [f"{key}={yaml.safe_dump(value, default_flow_style=True)}" for key, value in tuning.overrides.items()]
        base = load(tuning.settings, [*given, *overrides])
        _check(tuning, base, tuning.settings)
        search = cls(tuning, base, TuningFolder.create(runs, tuning, base))
        with search._study() as study:
            study.set_user_attr(_REPEATED, search._repeated)
            with warnings.catch_warnings(action="ignore"):  # Optuna warns that set_metric_names is experimental
                study.set_metric_names(list(tuning.objectives))
            if tuning.sampler == "grid":
                spaces = {key: each.categories for key, each in tuning.parameters.items() if isinstance(each, Choice)}
                points = list(itertools.product(*spaces.values()))
                generator(tuning.seed, "grid").shuffle(points)
                for point in points:
                    study.enqueue_trial(dict(zip(spaces, point, strict=True)))
        return search

    @classmethod
    def reopen(cls, path: Path, trials: int | None = None) -> Search:
        """Return the search in a folder, to be resumed.

        Parameters
        ----------
        trials
            Total number of trials, in place of the number in the settings.

        Raises
        ------
        CheckpointError
            If the folder is not that of a search, or its parameters, objectives, sampler or seed were changed.
        """
        _optuna()
        folder = TuningFolder(path)
        for part in (folder.settings, folder.study):
            if not part.is_file():
                raise CheckpointError(
                    f"not a tuning folder, because it has no {part.name}; check the path", source=path
                )
        tuning = load_tuning(folder.settings)
        if trials is not None:
            tuning = tuning.model_copy(update={"trials": trials})
            folder.write_settings(tuning)
        search = cls(tuning, load(tuning.settings), folder)
        with search._study() as study:
            if study.user_attrs.get(_REPEATED) != search._repeated:
                raise CheckpointError(
                    "the study was begun with other parameters, objectives, sampler or seed than "
                    f"{folder.settings.name} has now; restore that file, or start a new search",
                    source=folder.study,
                )
        return search

    @property
    def _repeated(self) -> str:
        keys = {"parameters", "objectives", "sampler", "seed", "pruning", "worst_loss"}
        return self.tuning.model_dump_json(include=keys)  # JSON text, which preserves the order of the objectives

    def go(
        self,
        *,
        in_process: bool = False,
        processes: int | None = None,
        beginning: Callable[[int, Mapping[str, Any]], Observer] = lambda number, drawn: Observer(),
        ended: Callable[[FrozenTrial], None] = lambda trial: None,
    ) -> SearchResult:
        """Execute the remaining trials, and write the results.

        If the run of a trial fails or diverges, the study records the reason, and the search continues.

        Parameters
        ----------
        beginning
            Function that maps the number and the parameters of a trial to the observer of the trial's run.
        ended
            Function that receives each finished trial.

        Raises
        ------
        RunStoppedError
            If no trial was completed.
        DataError, MissingDependencyError
            If the data or libraries of a trial are unusable, as they would be for every trial.
        """
        with self._study() as study:
            while (number := sum(each.state.is_finished() for each in study.trials)) < self.tuning.total:
                study.sampler = self._sampler(number)
                trial = study.ask()
                drawn = {key: each.suggest(trial, key) for key, each in self.tuning.parameters.items()}
                self._do(trial, drawn, beginning(trial.number, drawn), in_process, processes)
                ended(study.trials[trial.number])
            trials = tuple(trial for trial in study.trials if trial.state.is_finished())
            front = sorted(trial.number for trial in study.best_trials)
        several = len(self.tuning.objectives) > 1
        result = SearchResult(self.tuning.objectives, trials, tuple(front if several else front[:1]))
        if not front:
            reasons = "\n  ".join(f"trial {each.number}: {each.user_attrs.get('reason')}" for each in trials)
            raise RunStoppedError(f"no trial was completed\n  {reasons}", source=self.folder.path)
        if can_draw():  # without matplotlib there is only the table
            report.draw(result, self.folder.figure)
        self.folder.best.write_text(self._settings_of(trials[result.chosen]))
        if several:
            shutil.rmtree(self.folder.front, ignore_errors=True)
            self.folder.front.mkdir()
            for number in front:
                (self.folder.front / f"trial-{number:03d}.yaml").write_text(self._settings_of(trials[number]))
        return result

    def _do(
        self, trial: Trial, drawn: Mapping[str, Any], observer: Observer, in_process: bool, processes: int | None
    ) -> None:
        """Execute the run of a trial, and record its objectives or the reason of a failure in the study."""
        from optuna.trial import TrialState

        name = f"trial-{trial.number:03d}"
        pattern = f"*-{name}-????"
        for interrupted in self.folder.trials.glob(pattern):
            shutil.rmtree(interrupted)
        if self.tuning.pruning is not None:
            observer = Observers(observer, _Pruner(trial, next(iter(self.tuning.objectives))))
        state, values, failure = TrialState.COMPLETE, None, None
        try:
            settings = _named(trial_settings(self.base, drawn, trial.number), name, on_shortage="stop")
            run = up(
                settings,
                runs=self.folder.trials,
                in_process=in_process,
                processes=processes,
                observer=observer,
                progress=False,
            )
        except (DataError, MissingDependencyError):
            raise  # the error would be the same for every trial
        except FenchelError as error:
            state, failure = TrialState.PRUNED if isinstance(error, _PrunedError) else TrialState.FAIL, error
        else:
            try:
                values = self._values(run)
            except DivergedError as error:
                state, failure = TrialState.FAIL, error
        if failure is not None:
            trial.set_user_attr("reason", str(failure) or type(failure).__name__)
        begun = next(iter(self.folder.trials.glob(pattern)), None)
        if begun is not None:
            trial.set_user_attr("run", begun.name)
        trial.study.tell(trial, values, state=state)

    def _values(self, run: Run) -> list[float]:
        worst = self.tuning.worst_loss
        if worst is not None and (loss := report.objective_value(run, "objective")) > worst:
            raise DivergedError(f"the final objective is {loss:.4g}, above worst_loss ({worst:.4g})")
        return [report.objective_value(run, objective) for objective in self.tuning.objectives]

    def _settings_of(self, trial: FrozenTrial) -> str:
        run = Run(self.folder.trials / trial.user_attrs["run"])
        return _named(run.settings, self.base.name, self.base.participation.on_shortage).to_yaml()

    def _sampler(self, number: int) -> BaseSampler:
        """Return the sampler of one trial, whose draws depend on the seed, the trial's number and earlier trials."""
        samplers = _optuna().samplers
        kinds = {"random": samplers.RandomSampler, "nsga2": samplers.NSGAIISampler}
        seed = int(generator(self.tuning.seed, "trial", number).integers(1 << 32))
        sampler: BaseSampler = kinds.get(self.tuning.sampler, samplers.TPESampler)(seed=seed)
        return sampler

    def _check_study(self) -> None:
        """Raise an error for a damaged study file, on which Optuna would leave a connection open."""
        try:
            with closing(sqlite3.connect(self.folder.study)) as connection:
                connection.execute("PRAGMA schema_version")
        except sqlite3.Error as error:
            raise self._unreadable(error) from error

    def _unreadable(self, error: Exception) -> CheckpointError:
        return CheckpointError(
            f"the study cannot be read or written ({error}); check its permissions and the space on the disk, restore "
            "a copy, or start a new search",
            source=self.folder.study,
        )

    @contextmanager
    def _study(self) -> Iterator[Study]:
        """Open the study, and enqueue interrupted trials for another execution."""
        optuna = _optuna()
        from optuna.trial import TrialState
        from sqlalchemy.exc import SQLAlchemyError

        pruning, pruner = self.tuning.pruning, optuna.pruners.NopPruner()
        if pruning is not None:
            # Fenchel counts rounds from 1, whereas Optuna counts steps from 0.
            pruner = optuna.pruners.MedianPruner(n_startup_trials=pruning.trials, n_warmup_steps=pruning.rounds + 1)
        directions = list(self.tuning.objectives.values())
        storage = None
        server_log, verbosity = logging.getLogger("fenchel.server"), optuna.logging.get_verbosity()
        server_log.addFilter(_is_no_pruning)
        optuna.logging.set_verbosity(logging.WARNING)
        try:
            self._check_study()
            storage = optuna.storages.RDBStorage(f"sqlite:///{self.folder.study.absolute()}")
            study = optuna.create_study(
                study_name=_STUDY, storage=storage, directions=directions, pruner=pruner, load_if_exists=True
            )
            study_id = storage.get_study_id_from_name(_STUDY)
            for trial in study.get_trials(deepcopy=False, states=[TrialState.RUNNING]):
                trial_id = storage.get_trial_id_from_study_id_trial_number(study_id, trial.number)
                storage.set_trial_state_values(trial_id, TrialState.WAITING)
            yield study
        except (SQLAlchemyError, optuna.exceptions.StorageInternalError) as error:
            raise self._unreadable(error) from error
        finally:
            optuna.logging.set_verbosity(verbosity)
            server_log.removeFilter(_is_no_pruning)
            if storage is not None:
                storage.remove_session()
                storage.engine.dispose()


def _is_no_pruning(record: logging.LogRecord) -> bool:
    """Return False for log records about the pruning of a trial, which is not an error."""
    return not any(isinstance(each, _PrunedError) for each in (record.args or ()))


def _optuna() -> ModuleType:
    try:
        import optuna
    except ImportError as error:
        raise MissingDependencyError(
            "a search needs optuna, which is not installed; install it with pip install 'fenchel[optuna]'"
        ) from error
    return optuna


def _named(settings: RunSettings, name: str, on_shortage: OnShortage) -> RunSettings:
    """Return the settings with another name, and with another reaction to too few replies."""
    participation = settings.participation.model_copy(update={"on_shortage": on_shortage})
    return settings.model_copy(update={"name": name, "participation": participation})


def trial_settings(base: RunSettings, drawn: Mapping[str, Any], number: int) -> RunSettings:
    """Return the settings of a trial with the drawn parameters, or raise a SettingsError if they are invalid."""
    values = base.model_dump(mode="json")
    for key, value in drawn.items():
        *path, last = dotted(key)
        section: Any = values
        for part in path:
            section = section.get(part) if isinstance(section, dict) else None
        if not isinstance(section, dict):
            raise SettingsError(
                f"the settings of the run have no section {'.'.join(path)!r}; check the parameter's key",
                key=f"parameters.{key}",
            )
        section[last] = value
    return validate(values, f"trial {number}")


def _check(tuning: TuningSettings, base: RunSettings, source: Path) -> None:
    """Raise an error before a search if runs at a bound, or with a listed value, of one parameter are impossible."""
    if not isinstance(base.clients, int):
        raise SettingsError(
            "auto leaves the number of clients open; give a number for a search", source=source, key="clients"
        )
    first = {key: each.extremes[0] for key, each in tuning.parameters.items()}
    corners = [first, *({**first, key: value} for key, e in tuning.parameters.items() for value in e.extremes[1:])]
    sources: dict[str, DataSource | None] = {}
    for corner in corners:
        trial = trial_settings(base, corner, 0)
        # Consecutive trials usually use the same data, so the latest data source is cached.
        same = f"{trial.seed} {trial.positive} {trial.data.model_dump_json()}"
        if same not in sources:
            ensure(trial.data)
            sources = {same: open_data(trial)}
        try:
            check_run(trial, sources[same], base.clients)
        except MissingDependencyError:
            raise  # the error would be the same for every trial
        except SettingsError as error:
            raise SettingsError(f"{error.problem} (a trial with {corner})", key=error.key) from None
