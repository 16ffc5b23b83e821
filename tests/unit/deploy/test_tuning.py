"""A search does its trials as real runs, survives what goes wrong, and goes on after an interruption."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import yaml
from typer.testing import CliRunner

from fenchel.common.errors import CheckpointError, DataError, RunStoppedError, SettingsError
from fenchel.common.settings.run import load
from fenchel.common.settings.tuning import TuningSettings, load_tuning
from fenchel.deploy.cli.main import application
from fenchel.deploy.launch.tuning import Search, parameters
from fenchel.deploy.launch.up import up
from fenchel.report.run import Run
from fenchel.report.tuning.trials import Trial, Verdict
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


def losses(verdict: Verdict) -> list[float | None]:
    return [None if each.criteria is None else each.criteria.loss for each in verdict.trials]


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


def test_a_small_search_finds_the_step_size_and_leaves_settings_that_repeat_its_run(tmp_path: Path) -> None:
    search = begun(tmp_path)
    ended: list[Trial] = []
    verdict = search.go(in_process=True, ended=ended.append)
    assert [trial.number for trial in ended] == [0, 1, 2, 3]
    assert verdict.best is not None
    assert len(folders(search)) == 4
    rows = pq.read_table(search.folder.table).to_pylist()
    assert [row["algorithm.step_size"] for row in rows] == [
        parameters(search.tuning, number)["algorithm.step_size"] for number in range(4)
    ]
    # Every round of FedAvg is one round trip.
    for row in rows:
        assert row["runtime_0.8s"] == pytest.approx(row["runtime_0s"] + 0.8)
    assert search.folder.figure.read_bytes().startswith(b"\x89PNG")
    best = load(search.folder.best)
    assert best.participation.on_shortage == "wait", "only trials stop for want of replies"
    assert best.name == "small"
    assert verdict.best.run is not None
    again = up(search.folder.best, runs=tmp_path, in_process=True)
    np.testing.assert_array_equal(again.model, Run(verdict.best.run).model)


def test_an_interrupted_search_goes_on_and_ends_as_if_nothing_had_happened(tmp_path: Path) -> None:
    search = begun(tmp_path)
    interrupting = Interrupting(trial=2)
    with pytest.raises(Interruption):
        search.go(in_process=True, beginning=interrupting.beginning)
    assert interrupting.seen == [0, 1, 2]
    done = folders(search)
    assert len(done) == 3

    again = Search.reopen(search.folder.path)
    assert sorted(again.finished) == [0, 1]
    going_on = Interrupting(trial=-1)
    verdict = again.go(in_process=True, beginning=going_on.beginning)
    assert going_on.seen == [2, 3]
    assert folders(again)[:2] == done[:2]
    assert done[2] not in folders(again)
    assert len(folders(again)) == 4

    (tmp_path / "other").mkdir()
    undisturbed = begun(tmp_path / "other").go(in_process=True)
    assert losses(verdict) == losses(undisturbed)

    nothing_left = Interrupting(trial=-1)
    assert losses(Search.reopen(search.folder.path).go(beginning=nothing_left.beginning)) == losses(verdict)
    assert nothing_left.seen == []


def test_more_trials_continue_the_same_draws(tmp_path: Path) -> None:
    search = begun(tmp_path, trials=2)
    two = search.go(in_process=True)
    three = Search.reopen(search.folder.path, trials=3).go(in_process=True)
    assert losses(three)[:2] == losses(two)
    assert load_tuning(search.folder.settings).trials == 3
    assert len(Search.reopen(search.folder.path, trials=1).go().trials) == 1


def test_draws_depend_on_the_trial_and_the_key_alone(tmp_path: Path) -> None:
    alone = written(tmp_path)
    both = written(tmp_path, parameters={"objective.l2": {"log_uniform": [1e-6, 1]}, **STEP_SIZES})
    other = written(tmp_path, seed=4)
    key = "algorithm.step_size"
    drawn = [parameters(alone, number)[key] for number in range(20)]
    assert len(set(drawn)) == 20
    assert [parameters(both, number)[key] for number in range(20)] == drawn
    assert not {parameters(other, number)[key] for number in range(20)} & set(drawn)


@pytest.mark.slow  # make test-all
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_diverging_and_failing_trials_are_recorded_and_dropped(tmp_path: Path) -> None:
    search = begun(
        tmp_path,
        trials=12,
        parameters={
            "algorithm.step_size": {"choice": [0.5, 1e5, 1e200]},
            "participation.deadline": {"choice": [30.0, 1e-9]},
        },
        selection={"worst_loss": 2.31},
    )
    verdict = search.go(in_process=True)
    found = {
        (each.trial.parameters["algorithm.step_size"], each.trial.parameters["participation.deadline"]): each
        for each in verdict.trials
    }
    assert len(found) == 6, "the seed no longer draws all combinations"
    assert found[0.5, 30.0].state == "finished"
    assert found[1e5, 30.0].state == "diverged"
    assert found[1e200, 30.0].state in ("diverged", "failed")
    assert {found[step, 1e-9].state for step in (0.5, 1e5, 1e200)} == {"failed"}
    assert "0 of 3 clients answered" in found[0.5, 1e-9].reason
    assert verdict.best is not None
    assert dict(verdict.best.parameters) == {"algorithm.step_size": 0.5, "participation.deadline": 30.0}

    read_back = Search.reopen(search.folder.path)
    assert losses(read_back.go()) == losses(verdict)


def test_a_search_in_which_all_trials_fail_says_why_and_keeps_the_table(tmp_path: Path) -> None:
    search = begun(tmp_path, trials=2, overrides={"participation.deadline": 1e-9})
    with raises(RunStoppedError):
        search.go(in_process=True)
    assert pq.read_table(search.folder.table)["state"].to_pylist() == ["failed", "failed"]
    assert not search.folder.best.exists()


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
    assert not search.finished
    with raises(DataError, file="here.csv"):
        begun(tmp_path, base=base)


def test_a_search_whose_parameters_were_changed_is_not_gone_on_with(tmp_path: Path) -> None:
    search = begun(tmp_path, trials=1)
    search.go(in_process=True)
    text = search.folder.settings.read_text()
    search.folder.settings.write_text(text.replace("seed: 3", "seed: 5"))
    with raises(CheckpointError, file="trials.jsonl"):
        Search.reopen(search.folder.path)


def test_a_record_that_was_cut_off_is_done_again_and_a_damaged_one_refused(tmp_path: Path) -> None:
    search = begun(tmp_path, trials=2)
    search.go(in_process=True)
    lines = search.folder.record.read_text().splitlines(keepends=True)
    search.folder.record.write_text(lines[0] + lines[1][:20])
    reopened = Search.reopen(search.folder.path)
    assert sorted(reopened.finished) == [0]
    reopened.go(in_process=True)
    assert sorted(Search.reopen(search.folder.path).finished) == [0, 1]
    search.folder.record.write_text("{}\n")
    with raises(CheckpointError, file="trials.jsonl"):
        Search.reopen(search.folder.path)


def test_the_example_can_be_searched(tmp_path: Path) -> None:
    experiments = Path(__file__).parents[3] / "fenchel" / "experiments"
    search = Search.begin(load_tuning(experiments / "tune-fedavg-digits.yaml"), tmp_path)
    assert search.base.algorithm.model_dump()["local_epochs"] is None
    assert len({str(parameters(search.tuning, number)) for number in range(20)}) == 20


def test_a_folder_of_something_else_is_refused(tmp_path: Path) -> None:
    with raises(CheckpointError):
        Search.reopen(tmp_path)


def fenchel(*words: str) -> tuple[int, str]:
    result = CliRunner().invoke(application(), list(words))
    if isinstance(result.exception, Exception) and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stdout


def test_the_command_searches_and_goes_on(tmp_path: Path) -> None:
    written(tmp_path)
    file, runs = str(tmp_path / "tune.yaml"), str(tmp_path / "runs")
    code, output = fenchel("tune", file, "--in-process", "--trials", "2", "--set", "rounds=3", "--runs", runs, "--json")
    assert code == 0
    values = json.loads(output)
    assert len(values["trials"]) == 2
    code, output = fenchel("tune", "--resume", values["folder"], "--trials", "3", "--in-process")
    assert code == 0
    assert "3 trials" in output
    assert "best.yaml" in output.replace("\n", "")


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


@pytest.mark.cluster
def test_trials_run_between_processes(tmp_path: Path) -> None:
    between = begun(tmp_path, trials=1).go(processes=1)
    (tmp_path / "other").mkdir()
    within = begun(tmp_path / "other", trials=1).go(in_process=True)
    assert losses(between) == losses(within)
