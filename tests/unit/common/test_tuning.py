"""Settings of a search: what is drawn, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fenchel.common.errors import SettingsError
from fenchel.common.settings.tuning import Choice, LogUniform, TuningSettings, Uniform, load_tuning
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


@given(st.floats(1e-9, 1e9), st.floats(1.001, 1e6), st.integers(0, 99))
def test_draws_lie_between_their_bounds(low: float, factor: float, seed: int) -> None:
    random, bounds = np.random.default_rng(seed), (low, low * factor)
    for distribution in (LogUniform(log_uniform=bounds), Uniform(uniform=bounds)):
        assert bounds[0] <= distribution.draw(random) <= bounds[1]
    bounds = (float(1 + seed), float(51 + seed))
    for distribution in (LogUniform(log_uniform=bounds, integer=True), Uniform(uniform=bounds, integer=True)):
        drawn = distribution.draw(random)
        assert isinstance(drawn, int)
        assert bounds[0] <= drawn <= bounds[1]


def test_every_order_of_magnitude_is_equally_likely() -> None:
    random = np.random.default_rng(1)
    drawn = np.array([LogUniform(log_uniform=(1e-4, 1e2)).draw(random) for _ in range(6000)])
    counts, _ = np.histogram(np.log10(drawn), bins=6, range=(-4, 2))
    # Each has 1000 with standard deviation 29.
    assert (np.abs(counts - 1000) < 130).all()


def test_small_whole_numbers_are_as_likely_as_their_logarithms_are_wide() -> None:
    random = np.random.default_rng(1)
    drawn = np.array([LogUniform(log_uniform=(1, 4), integer=True).draw(random) for _ in range(9000)])
    widths = np.log([3.0, 5 / 3, 7 / 5, 9 / 7])
    np.testing.assert_allclose(np.bincount(drawn)[1:] / 9000, widths / widths.sum(), atol=0.02)
    values = (8, None, "inverse", {"kind": "iid"})
    choices = [Choice(choice=values).draw(random) for _ in range(100)]
    assert all(value in choices for value in values)


def test_a_file_names_the_settings_beside_it(tmp_path: Path) -> None:
    tuning = load_tuning(
        written(
            tmp_path,
            "settings: ../run.yaml\ntrials: 3\noverrides: {rounds: 5}\nparameters:\n"
            "  algorithm.step_size: {log_uniform: [1e-4, 1]}\n  algorithm.batch_size: {choice: [8, null]}\n",
        )
    )
    assert tuning.settings == tmp_path / "../run.yaml"
    assert tuning.parameters["algorithm.step_size"] == LogUniform(log_uniform=(1e-4, 1.0))
    assert tuning.parameters["algorithm.batch_size"] == Choice(choice=(8, None))
    assert (tuning.selection.zeta, tuning.selection.latencies) == (0.5, (0.0, 0.2575, 0.8))


def test_settings_written_as_yaml_are_read_as_the_same(tmp_path: Path) -> None:
    tuning = TuningSettings.model_validate(MINIMAL)
    again = load_tuning(written(tmp_path, tuning.to_yaml()))
    assert again.model_copy(update={"settings": tuning.settings}) == tuning


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
