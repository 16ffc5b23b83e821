"""Experiments: runs that are kept are found again, and all methods get the same steps."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import fenchel
from benchmarks import codasca_digits, codasca_methods
from benchmarks.experiment import Planned, all_kept, begun, done, kept
from benchmarks.outcome import evaluated, first
from benchmarks.page import put
from fenchel.algorithms.auc.coda_plus import CodaPlusSettings
from fenchel.algorithms.auc.codasca import CodascaSettings
from fenchel.algorithms.auc.stages import PracticeSchedule
from fenchel.algorithms.fedavg import LocalTrainingSettings
from fenchel.common.settings.run import load

DIGITS = Path(__file__).parents[2] / "experiments" / "codasca" / "digits.yaml"
SHORT = ("rounds=4", "objective.scorer={kind: linear}", "evaluation.every=2", "algorithm.local_steps=2")


def test_a_run_is_found_again_by_its_settings_only(tmp_path: Path) -> None:
    planned = Planned(DIGITS, SHORT, tmp_path)
    assert kept(planned) is None
    run = fenchel.up(DIGITS, overrides=SHORT, runs=tmp_path, in_process=True)
    found = kept(planned)
    assert found is not None
    assert found.path == run.path
    assert kept(Planned(DIGITS, (*SHORT, "seed=7"), tmp_path)) is None
    (run.path / "summary.json").write_text(json.dumps({**(run.summary or {}), "completed": False}))
    assert kept(planned) is None


def test_rows_of_a_table_have_folders_of_their_own_and_differ_in_their_algorithms(tmp_path: Path) -> None:
    algorithm = {"name": "fedavg", "local_steps": 3, "batch_size": 8}
    row = Planned.row(DIGITS, "FedAvg, η = 0.1", algorithm, ("rounds=7",), tmp_path, in_process=True)
    assert row.folder == tmp_path / "fedavg-0-1"
    settings = load(row.settings, row.overrides)
    assert (settings.algorithm.name, settings.rounds) == ("fedavg", 7)
    assert row.in_process


def test_a_run_that_broke_off_is_begun_and_not_kept(tmp_path: Path) -> None:
    planned = Planned(DIGITS, (*SHORT, "name=broken"), tmp_path, in_process=True)
    other = Planned(DIGITS, (*SHORT, "name=whole"), tmp_path, in_process=True)
    assert begun(planned) is None
    whole = done(other)
    (whole.path / "summary.json").unlink()
    assert begun(planned) is None
    found = begun(other)
    assert found is not None
    assert found.path == whole.path
    assert kept(other) is None
    assert done(other).path != whole.path


def test_a_run_that_is_kept_is_not_done_again(tmp_path: Path) -> None:
    planned = Planned(DIGITS, SHORT, tmp_path, in_process=True)
    assert done(planned).path == done(planned).path
    assert list(all_kept({"there": planned, "not": Planned(DIGITS, (), tmp_path)})) == ["there"]


def test_what_was_evaluated(tmp_path: Path) -> None:
    run = fenchel.up(DIGITS, overrides=SHORT, runs=tmp_path, in_process=True)
    rounds, values = evaluated(run, "test_auc")
    assert rounds.tolist() == [2, 4]
    assert values[-1] == run.figures["test_auc"]
    assert first(rounds, values, values.min()) == rounds[values >= values.min()][0]
    assert first(rounds, values, 1.1) is None


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


def test_stages_that_end_within_a_round_are_refused() -> None:
    with pytest.raises(ValueError):
        codasca_methods.algorithm("CODASCA", 128, 1.0, 192)


def test_what_was_measured_stands_between_its_markers(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- a: begin -->\nold\n<!-- a: end -->\nafter\n")
    put(page, "a", "new\n")
    assert page.read_text() == "before\n<!-- a: begin -->\nnew\n<!-- a: end -->\nafter\n"
    with pytest.raises(SystemExit, match="b: begin"):
        put(page, "b", "new")
