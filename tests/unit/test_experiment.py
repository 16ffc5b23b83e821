"""Experiments: runs that are kept are found again, and all methods get the same steps."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks import codasca_digits, codasca_methods
from benchmarks.experiment import Planned, done, kept
from benchmarks.outcome import evaluated, first
from benchmarks.page import put
from fenchel.algorithms.auc.coda_plus import CodaPlusSettings
from fenchel.algorithms.auc.codasca import CodascaSettings
from fenchel.algorithms.auc.stages import PracticeSchedule
from fenchel.algorithms.fedavg import LocalTrainingSettings
from fenchel.common.settings.run import load

DIGITS = Path(__file__).parents[2] / "fenchel" / "experiments" / "codasca" / "digits.yaml"
SHORT = ("rounds=4", "objective.scorer={kind: linear}", "evaluation.every=2", "algorithm.local_steps=2")


def test_a_run_is_found_again_by_its_settings_and_not_done_again(tmp_path: Path) -> None:
    planned = Planned(DIGITS, SHORT, tmp_path, in_process=True)
    assert kept(planned) is None
    run = done(planned)
    assert done(planned).path == run.path
    assert kept(Planned(DIGITS, (*SHORT, "seed=7"), tmp_path)) is None
    rounds, values = evaluated(run, "test_auc")
    assert rounds.tolist() == [2, 4]
    assert values[-1] == run.figures["test_auc"]
    (run.path / "summary.json").write_text(json.dumps({**(run.summary or {}), "completed": False}))
    assert kept(planned) is None


def test_the_first_round_that_reaches_a_target() -> None:
    rounds, values = np.array([2, 4, 6]), np.array([0.1, 0.3, 0.2])
    assert [first(rounds, values, target) for target in (0.1, 0.2, 0.4)] == [2, 4, None]


def test_rows_of_a_table_have_folders_of_their_own_and_differ_in_their_algorithms(tmp_path: Path) -> None:
    row = Planned.row(DIGITS, "FedAvg, η = 0.1", {"name": "fedavg"}, ("rounds=7",), tmp_path)
    assert row.folder == tmp_path / "fedavg-0-1"
    settings = load(row.settings, row.overrides)
    assert (settings.algorithm.name, settings.rounds) == ("fedavg", 7)


@pytest.mark.parametrize("window", [1, 8, 32, 128, 512])
def test_step_sizes_fall_at_the_same_local_step_with_every_method(window: int, tmp_path: Path) -> None:
    cells = codasca_digits.plan(tmp_path, [window], codasca_methods.METHODS, [0])
    ends = {}
    for cell, planned in cells.items():
        settings = load(planned.settings, planned.overrides).algorithm
        if isinstance(settings, CodascaSettings | CodaPlusSettings):
            assert isinstance(settings.schedule, PracticeSchedule)
            stages = [settings.schedule.stage(number, 1.0, window) for number in (1, 2, 3)]
            factors = [stage.step_size for stage in stages for _ in range(stage.rounds)]
        else:
            assert isinstance(settings, LocalTrainingSettings)
            factors = [settings.step_size_at(t) / settings.step_size for t in range(1, 3 * 1536 // window + 1)]
        ends[cell.method] = factors[: 4096 // window]
    assert ends["CODASCA"][0] == 1
    assert ends["CODASCA"][-1] == pytest.approx(1 / 9)
    for method in codasca_methods.METHODS:
        assert ends[method] == pytest.approx(ends["CODASCA"]), method


def test_what_was_measured_stands_between_its_markers(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- a: begin -->\nold\n<!-- a: end -->\nafter\n")
    put(page, "a", "new\n")
    assert page.read_text() == "before\n<!-- a: begin -->\nnew\n<!-- a: end -->\nafter\n"
    with pytest.raises(SystemExit, match="b: begin"):
        put(page, "b", "new")
