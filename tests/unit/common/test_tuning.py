"""Settings of a search: spaces of parameters, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from optuna.trial import FixedTrial

from fenchel.common.errors import SettingsError
from fenchel.common.settings.tuning import Choice, LogUniform, Pruning, TuningSettings, Uniform, load_tuning
from tests.messages import raises

MINIMAL: dict[str, Any] = {
    "settings": "run.yaml",
    "trials": 2,
    "parameters": {"algorithm.step_size": {"log_uniform": [1e-3, 1]}},
}


def written(folder: Path, text: str) -> Path:
    path = folder / "tune.yaml"
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("distribution", "suggested", "value"),
    [
        (Uniform(uniform=(0, 2)), 0.5, 0.5),
        (Uniform(uniform=(1, 9), integer=True), 9, 9),
        (LogUniform(log_uniform=(1e-3, 1)), 1e-3, 1e-3),
        (LogUniform(log_uniform=(1, 9), integer=True), 1, 1),
        (Choice(choice=(8, None)), None, None),
        (Choice(choice=(None, {"kind": "iid"}, [1, 2])), '{"kind": "iid"}', {"kind": "iid"}),
    ],
)
def test_a_trial_suggests_a_value_of_the_type_that_the_setting_takes(
    distribution: Uniform | LogUniform | Choice, suggested: Any, value: Any
) -> None:
    found = distribution.suggest(FixedTrial({"key": suggested}), "key")  # type: ignore[arg-type]
    assert found == value
    assert type(found) is type(value)


def test_a_file_names_the_settings_beside_it(tmp_path: Path) -> None:
    tuning = load_tuning(
        written(
            tmp_path,
            "settings: ../run.yaml\ntrials: 3\noverrides: {rounds: 5}\npruning: {}\nparameters:\n"
            "  algorithm.step_size: {log_uniform: [1e-4, 1]}\n  algorithm.batch_size: {choice: [8, null]}\n",
        )
    )
    assert tuning.settings == tmp_path / "../run.yaml"
    assert tuning.parameters["algorithm.step_size"] == LogUniform(log_uniform=(1e-4, 1.0))
    assert tuning.parameters["algorithm.batch_size"] == Choice(choice=(8, None))
    assert (tuning.sampler, tuning.objectives, tuning.pruning) == ("tpe", {"objective": "minimize"}, Pruning())


def test_settings_written_as_yaml_are_read_as_the_same(tmp_path: Path) -> None:
    tuning = TuningSettings.model_validate(MINIMAL)
    again = load_tuning(written(tmp_path, tuning.to_yaml()))
    assert again.model_copy(update={"settings": tuning.settings}) == tuning


def test_a_grid_has_as_many_trials_as_combinations() -> None:
    parameters = {"algorithm.step_size": {"choice": [0.1, 1.0]}, "rounds": {"choice": [1, 2, 3]}}
    grid = TuningSettings.model_validate({"settings": "run.yaml", "sampler": "grid", "parameters": parameters})
    assert grid.total == 6
    assert grid.model_copy(update={"trials": 4}).total == 4
    assert grid.model_copy(update={"trials": 40}).total == 6


@pytest.mark.parametrize(
    "distribution",
    [
        "{log_uniform: [1, 0.1]}",
        "{log_uniform: [0, 1]}",
        "{uniform: [2, 2]}",
        "{uniform: [0.5, 2], integer: true}",
        "{uniform: [0, .inf]}",
        "{choice: []}",
        "{normal: [0, 1]}",
        "{uniform: [0, 1], choice: [1]}",
        "0.1",
        "{uniform: [0, 1], whole: true}",
    ],
)
def test_a_distribution_that_cannot_be_drawn_from_is_refused(tmp_path: Path, distribution: str) -> None:
    path = written(tmp_path, f"settings: run.yaml\ntrials: 1\nparameters:\n  algorithm.step_size: {distribution}\n")
    with raises(SettingsError, file="tune.yaml"):
        load_tuning(path)


@pytest.mark.parametrize(
    "text",
    [
        "settings: run.yaml\ntrials: 1\nparameters: {}\n",
        "settings: run.yaml\ntrials: 1\nparameters: {name: {choice: [a]}}\n",
        "settings: run.yaml\nparameters: {rounds: {choice: [1]}}\n",
        "settings: run.yaml\nsampler: grid\nparameters: {rounds: {uniform: [1, 2]}}\n",
        "settings: run.yaml\ntrials: 1\nobjectives: {objective: down}\nparameters: {rounds: {choice: [1]}}\n",
        "settings: run.yaml\ntrials: 1\nobjectives: {}\nparameters: {rounds: {choice: [1]}}\n",
        "settings: run.yaml\ntrials: 1\npruning: {}\nobjectives: {objective: minimize, seconds: minimize}\n"
        "parameters: {rounds: {choice: [1]}}\n",
        "name: x\nrounds: 1\nalgorithm: {name: fedavg}\n",
        "[]",
        "{",
    ],
)
def test_a_file_that_is_no_search_is_refused(tmp_path: Path, text: str) -> None:
    with raises(SettingsError, file="nowhere.yaml"):
        load_tuning(tmp_path / "nowhere.yaml")
    with raises(SettingsError, file="tune.yaml"):
        load_tuning(written(tmp_path, text))
