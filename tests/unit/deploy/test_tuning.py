"""A search does its trials as real runs, survives what goes wrong, and goes on after an interruption."""

from __future__ import annotations

import json
import logging
import math
import operator
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pytest
import yaml
from optuna.trial import FrozenTrial
from typer.testing import CliRunner

from fenchel.common.errors import CheckpointError, DataError, MissingDependencyError, RunStoppedError, SettingsError
from fenchel.common.settings.run import load
from fenchel.common.settings.tuning import TuningSettings, load_tuning
from fenchel.deploy.cli.main import application
from fenchel.deploy.launch.tuning import Search
from fenchel.deploy.launch.up import up
from fenchel.report.run import Run
from fenchel.report.tuning import SearchResult
from tests.messages import raises
from tests.observing import Calling

BASE: Mapping[str, Any] = {
    "name": "small",
    "seed": 7,
    "rounds": 6,
    "clients": 3,
    "data": {"name": "digits", "samples": 120, "scale": "unit-interval", "holdout": 0.1},
    "objective": {"kind": "softmax", "l2": 1e-3},
    "algorithm": {"name": "fedavg", "local_steps": 1, "batch_size": None, "step_size": 0.5},
}
STEP_SIZES = {"algorithm.step_size": {"log_uniform": [0.01, 1]}}


def written(folder: Path, base: Mapping[str, Any] = BASE, **keys: Any) -> TuningSettings:
    (folder / "run.yaml").write_text(yaml.safe_dump(dict(base)))
    values = {"settings": "run.yaml", "seed": 3, "trials": 4, "parameters": STEP_SIZES} | keys
    (folder / "tune.yaml").write_text(yaml.safe_dump(values))
    return load_tuning(folder / "tune.yaml")


def begun(folder: Path, **keys: Any) -> Search:
    return Search.begin(written(folder, **keys), folder / "runs")


def folders(search: Search) -> list[str]:
    return sorted(path.name for path in search.folder.trials.iterdir())


def values(result: SearchResult) -> list[list[float] | None]:
    return [trial.values for trial in result.trials]


def states(result: SearchResult) -> list[str]:
    return [trial.state.name for trial in result.trials]


def parameters(result: SearchResult) -> list[dict[str, Any]]:
    return [trial.params for trial in result.trials]


class Interruption(BaseException):
    """Somebody pressed Ctrl-C."""


class Interrupting:
    """Interrupts a search in the middle of a trial's run."""

    def __init__(self, trial: int) -> None:
        self.trial = trial
        self.seen: list[int] = []

    def beginning(self, number: int, drawn: Mapping[str, Any]) -> Calling:
        self.seen.append(number)

        def row(row: Mapping[str, float]) -> None:
            if number == self.trial and row["round"] == 2:
                raise Interruption

        return Calling(round_ended=row)


@pytest.mark.slow
def test_a_small_search_finds_the_step_size_and_leaves_settings_that_repeat_its_run(tmp_path: Path) -> None:
    search = begun(tmp_path)
    ended: list[FrozenTrial] = []
    result = search.go(in_process=True, ended=ended.append)
    assert [trial.number for trial in ended] == [0, 1, 2, 3]
    assert len(folders(search)) == 4
    assert search.folder.figure.read_bytes().startswith(b"\x89PNG")
    (best,) = result.front
    assert result.trials[best].values == min(values(result), key=lambda each: each or [math.inf])
    assert load(search.folder.best).participation.on_shortage == "wait", "only trials stop for want of replies"
    assert load(search.folder.best).name == "small"
    again = up(search.folder.best, runs=tmp_path, in_process=True)
    np.testing.assert_array_equal(again.model, Run(search.folder.trials / result.trials[best].user_attrs["run"]).model)
    storage = optuna.storages.RDBStorage(f"sqlite:///{search.folder.study}")
    study = optuna.load_study(study_name=None, storage=storage)  # as the dashboard does
    assert [trial.values for trial in study.trials] == values(result)
    assert study.metric_names == ["objective"]
    storage.remove_session()
    storage.engine.dispose()


@pytest.mark.slow
@pytest.mark.parametrize(("sampler", "trials"), [("tpe", 12), ("random", 4), ("nsga2", 4)])  # the first 10 are random
def test_the_same_seed_gives_the_same_trials(tmp_path: Path, sampler: str, trials: int) -> None:
    keys = {"sampler": sampler, "trials": trials, "overrides": {"rounds": 1, "clients": 1}}
    first, again, other = (begun(tmp_path, **keys, seed=seed).go(in_process=True) for seed in (3, 3, 4))
    assert parameters(first) == parameters(again)
    assert values(first) == values(again)
    drawn = {str(each) for each in parameters(first)}
    assert len(drawn) == trials
    assert not drawn & {str(each) for each in parameters(other)}


@pytest.mark.slow
@pytest.mark.parametrize("sampler", ["tpe", "grid"])
def test_an_interrupted_search_goes_on_and_ends_as_if_nothing_had_happened(tmp_path: Path, sampler: str) -> None:
    space = {"algorithm.step_size": {"choice": [0.1, 0.2, 0.5, 1.0]}} if sampler == "grid" else STEP_SIZES
    keys = {"sampler": sampler, "parameters": space, "pruning": {"trials": 1}}
    search = begun(tmp_path, **keys)
    interrupting = Interrupting(trial=2)
    with pytest.raises(Interruption):
        search.go(in_process=True, beginning=interrupting.beginning)
    assert interrupting.seen == [0, 1, 2]
    done = folders(search)
    assert len(done) == 3

    again = Search.reopen(search.folder.path)
    going_on = Interrupting(trial=-1)
    result = again.go(in_process=True, beginning=going_on.beginning)
    assert going_on.seen == [2, 3]
    assert folders(again)[:2] == done[:2]
    assert done[2] not in folders(again)
    assert len(folders(again)) == 4

    (tmp_path / "other").mkdir()
    undisturbed = begun(tmp_path / "other", **keys).go(in_process=True)
    assert parameters(result) == parameters(undisturbed)
    assert values(result) == values(undisturbed)
    if sampler == "grid":
        assert sorted(trial["algorithm.step_size"] for trial in parameters(result)) == [0.1, 0.2, 0.5, 1.0]

    nothing_left = Interrupting(trial=-1)
    assert values(Search.reopen(search.folder.path).go(beginning=nothing_left.beginning)) == values(result)
    assert nothing_left.seen == []


def test_more_trials_continue_the_same_draws(tmp_path: Path) -> None:
    search = begun(tmp_path, trials=2)
    two = search.go(in_process=True)
    three = Search.reopen(search.folder.path, trials=3).go(in_process=True)
    assert parameters(three)[:2] == parameters(two)
    assert len(three.trials) == 3
    assert load_tuning(search.folder.settings).trials == 3


@pytest.mark.slow
def test_several_objectives_give_the_pareto_front(tmp_path: Path) -> None:
    # More local steps and rounds are better, and each round costs bytes.
    space = {"rounds": {"choice": [1, 3]}, "algorithm.local_steps": {"choice": [1, 4]}}
    directions = {"holdout_accuracy": "maximize", "objective": "minimize", "bytes": "minimize"}
    search = begun(tmp_path, sampler="grid", parameters=space, objectives=directions, trials=None)
    result = search.go(in_process=True)
    found = [dict(zip(result.objectives, each.values, strict=True)) for each in result.trials]
    costs = [(-each["holdout_accuracy"], each["objective"], each["bytes"]) for each in found]
    dominated = [any(other != mine and all(map(operator.le, other, mine)) for other in costs) for mine in costs]
    assert list(result.front) == [number for number, worse in enumerate(dominated) if not worse]
    assert 1 < len(result.front) < 4
    assert sorted(path.name for path in search.folder.front.iterdir()) == [
        f"trial-{number:03d}.yaml" for number in result.front
    ]
    assert search.folder.figure.exists()
    names = [path.name for path in search.folder.front.iterdir() if path.read_text() == search.folder.best.read_text()]
    assert names == [f"trial-{result.chosen:03d}.yaml"]


def test_a_bad_trial_is_pruned_after_a_round(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    choice = {"algorithm.step_size": {"choice": [1.0, 0.9, 1e-6]}}
    search = begun(tmp_path, sampler="grid", trials=None, parameters=choice, pruning={"trials": 2, "rounds": 1})
    result = search.go(in_process=True)
    steps = [trial["algorithm.step_size"] for trial in parameters(result)]
    assert steps[-1] == 1e-6, "the seed no longer puts the bad one last"
    assert states(result) == ["COMPLETE", "COMPLETE", "PRUNED"]
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert list(result.trials[2].intermediate_values)[:2] == [1, 2]
    assert len(result.trials[2].intermediate_values) < BASE["rounds"]
    assert not Run(search.folder.trials / result.trials[2].user_attrs["run"]).completed


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_diverging_and_failing_trials_are_recorded_and_the_search_goes_on(tmp_path: Path) -> None:
    search = begun(
        tmp_path,
        sampler="grid",
        trials=None,
        parameters={
            "algorithm.step_size": {"choice": [0.5, 1e5, 1e200]},
            "participation.deadline": {"choice": [30.0, 1e-9]},
        },
        worst_loss=2.31,
    )
    result = search.go(in_process=True)
    found = {tuple(trial.params.values()): trial for trial in result.trials}
    assert len(found) == 6
    assert [key for key, trial in found.items() if trial.state.name == "COMPLETE"] == [(0.5, 30.0)]
    assert all(trial.state.name == "FAIL" for key, trial in found.items() if key != (0.5, 30.0))
    assert all(trial.user_attrs["reason"] for key, trial in found.items() if key != (0.5, 30.0))
    assert result.trials[result.front[0]] == found[0.5, 30.0]
    assert values(Search.reopen(search.folder.path).go()) == values(result)


def test_a_search_in_which_all_trials_fail_says_so(tmp_path: Path) -> None:
    search = begun(tmp_path, trials=2, overrides={"participation.deadline": 1e-9})
    with raises(RunStoppedError):
        search.go(in_process=True)
    assert not search.folder.best.exists()


def test_a_figure_that_no_run_has_ends_the_search(tmp_path: Path) -> None:
    search = begun(tmp_path, objectives={"test_auc": "maximize"})
    with raises(SettingsError, key="objectives.test_auc"):
        search.go(in_process=True)


def test_overrides_are_part_of_all_trials_and_of_what_is_kept(tmp_path: Path) -> None:
    tuned = written(tmp_path, overrides={"rounds": 4, "data": {**BASE["data"], "samples": 60}})
    search = Search.begin(tuned, tmp_path / "runs", ("rounds=3",))
    assert (search.base.rounds, search.base.data.samples) == (3, 60)
    again = Search.begin(load_tuning(search.folder.settings), tmp_path / "runs")
    assert again.base == search.base


@pytest.mark.parametrize(
    "keys",
    [
        {"parameters": {"algorithm.stepsize": {"choice": [1]}}},
        {"parameters": {"algorithm.step_size": {"uniform": [-1, 0]}}},
        {"parameters": {"algorithm.steps.size": {"choice": [1]}}},
        {"overrides": {"roundss": 3}},
        {"overrides": {"clients": "auto"}},
        {"settings": "nowhere.yaml"},
    ],
)
def test_what_cannot_be_run_is_refused_before_anything_starts(tmp_path: Path, keys: dict[str, Any]) -> None:
    with raises(SettingsError):
        begun(tmp_path, **keys)
    assert not (tmp_path / "runs").exists()


def test_data_that_is_not_there_ends_the_search_at_once(tmp_path: Path) -> None:
    file = tmp_path / "here.csv"
    file.write_text("x,y\n" + "1,0\n2,1\n" * 20)
    base = {**BASE, "data": {"file": str(file), "label": "y"}}
    search = begun(tmp_path, base=base)
    file.rename(tmp_path / "elsewhere.csv")
    with raises(DataError, file="here.csv"):
        search.go(in_process=True)
    with raises(DataError, file="here.csv"):
        begun(tmp_path, base=base)


def test_a_search_whose_parameters_were_changed_is_not_gone_on_with(tmp_path: Path) -> None:
    search = begun(tmp_path, trials=1)
    search.go(in_process=True)
    text = search.folder.settings.read_text()
    search.folder.settings.write_text(text.replace("seed: 3", "seed: 5"))
    with raises(CheckpointError, file="study.db"):
        Search.reopen(search.folder.path)


def test_a_damaged_study_and_a_folder_of_something_else_are_refused(tmp_path: Path) -> None:
    with raises(CheckpointError):
        Search.reopen(tmp_path)
    search = begun(tmp_path, trials=1)
    search.folder.study.write_bytes(b"not SQLite" * 1000)
    with raises(CheckpointError, file="study.db"):
        Search.reopen(search.folder.path)


def test_a_search_without_optuna_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with raises(MissingDependencyError):
        begun(tmp_path)
    assert not (tmp_path / "runs").exists()


def test_the_example_can_be_searched(tmp_path: Path) -> None:
    experiments = Path(__file__).parents[3] / "fenchel" / "experiments"
    search = Search.begin(load_tuning(experiments / "tune-fedavg-digits.yaml"), tmp_path)
    assert search.base.algorithm.model_dump()["local_epochs"] is None


def fenchel(*words: str) -> tuple[int, str]:
    result = CliRunner().invoke(application(), list(words))
    if isinstance(result.exception, Exception) and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stdout


def test_the_command_searches_and_goes_on(tmp_path: Path) -> None:
    written(tmp_path)
    file, runs = str(tmp_path / "tune.yaml"), str(tmp_path / "a[" / "b]")  # no markup
    code, output = fenchel("tune", file, "--in-process", "--trials", "2", "--set", "rounds=3", "--runs", runs, "--json")
    assert code == 0
    found = json.loads(output)
    assert [trial["state"] for trial in found["trials"]] == ["complete", "complete"]
    code, output = fenchel("tune", "--resume", found["folder"], "--trials", "3", "--in-process")
    assert code == 0
    assert "3 trials" in output
    assert f"best settings  {runs}/" in output
    assert "best.yaml" in output.replace("\n", "")


def test_the_command_shows_the_objectives_of_each_trial_with_their_units(tmp_path: Path) -> None:
    objectives = {"bytes": "minimize", "holdout_accuracy": "maximize"}
    written(tmp_path, {**BASE, "rounds": 2}, trials=2, objectives=objectives)
    code, output = fenchel("tune", str(tmp_path / "tune.yaml"), "--in-process", "--runs", str(tmp_path / "runs"))
    assert code == 0
    lines = [line for line in output.splitlines() if line.startswith("trial ")]
    assert len(lines) == 2
    for line in lines:
        assert re.search(r"complete, bytes [\d.]+ kB, holdout_accuracy \d+\.\d%: algorithm.step_size 0", line), line
    assert len(re.findall(r"^ *\d\*? .* [\d.]+ kB +\d+\.\d%", output, re.MULTILINE)) == 2


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["tune.yaml", "--resume", "folder"],
        ["--resume", "folder", "--set", "rounds=1"],
        ["tune.yaml", "--in-process", "--processes", "2"],
    ],
)
def test_words_that_do_not_belong_together_are_refused(words: list[str]) -> None:
    with raises(SettingsError):
        fenchel("tune", *words)


@pytest.mark.slow
@pytest.mark.cluster
def test_trials_run_between_processes(tmp_path: Path) -> None:
    between = begun(tmp_path, trials=1).go(processes=1)
    (tmp_path / "other").mkdir()
    within = begun(tmp_path / "other", trials=1).go(in_process=True)
    assert values(between) == values(within)
