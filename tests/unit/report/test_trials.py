"""Trials side by side: dropped, compared, chosen, and shown."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from rich.console import Console

from fenchel.common.errors import CheckpointError
from fenchel.common.settings.tuning import Selection
from fenchel.report.run import Run
from fenchel.report.tuning import pareto_front, trials
from fenchel.report.tuning.trials import Trial, Verdict, judge
from tests.messages import raises

UNKNOWN = math.nan
SECONDS = [1.0, 1.0, 1.0]


@pytest.fixture
def verdict(altered: Callable[..., Run]) -> Verdict:
    """Trial 1 is fast and steady, 2 reaches more and sooner, 0 is worse than 1 in all; 3 and 4 went wrong."""

    def trial(number: int, losses: list[float], seconds: list[float], **drawn: Any) -> Trial:
        accuracy = [1 - loss / 10 for loss in losses]
        columns = {"objective": losses, "seconds": seconds, "holdout_accuracy": accuracy}
        return Trial(number, drawn, altered(f"trial-{number}", metrics=columns).path)

    return judge(
        [
            trial(0, [3.0, 4.5, 2.0], [1.1, 1.0, 1.0], step=0.001, batch=8),
            trial(1, [3.0, 1.0, 0.5], SECONDS, step=0.12345, batch=None),
            trial(2, [3.0, 0.5, 0.25], [9.0, 9.0, 9.0], step=0.2, batch="all"),
            trial(3, [3.0, 9.0, UNKNOWN], SECONDS, step=100.0, batch=8),
            Trial(4, {"step": 1.0, "batch": 16}, None, "nobody \x1banswered"),
        ],
        Selection(last=1),
    )


def shown(verdict: Verdict, width: int = 80) -> str:
    output = StringIO()
    trials.show(verdict, Console(file=output, width=width))
    return output.getvalue()


def test_what_failed_or_diverged_is_dropped_and_the_rest_compared(verdict: Verdict) -> None:
    states = ["finished", "finished", "finished", "diverged", "failed"]
    assert [judged.state for judged in verdict.trials] == states
    assert [judged.trial.number for judged in verdict.compared] == [0, 1, 2]
    assert (verdict.loss, verdict.accuracy) == ("objective", "holdout_accuracy")
    assert all(verdict.used)
    assert verdict.best is not None
    assert verdict.best.number == 1


def test_only_trials_on_the_front_have_a_grade(verdict: Verdict) -> None:
    # Of the seven criteria 1 is best in four and 2 in three; the worst of two has the coefficient 1/3.
    assert verdict.on_front() == {1: pytest.approx(5 / 7), 2: pytest.approx(13 / 21)}


def test_the_table_has_a_row_a_trial(verdict: Verdict, tmp_path: Path) -> None:
    trials.write_table(verdict, tmp_path / "trials.parquet")
    rows = pq.read_table(tmp_path / "trials.parquet").to_pylist()
    assert [row["trial"] for row in rows] == [0, 1, 2, 3, 4]
    assert [row["step"] for row in rows] == [0.001, 0.12345, 0.2, 100.0, 1.0]
    assert [json.loads(row["batch"]) for row in rows] == [8, None, "all", 8, 16]
    assert [row["run"] for row in rows] == ["trial-0", "trial-1", "trial-2", "trial-3", None]
    assert [row["chosen"] for row in rows] == [False, True, False, False, False]
    assert [math.isnan(row["grade"]) for row in rows] == [not row["front"] for row in rows]
    assert (rows[1]["loss"], rows[1]["accuracy"], rows[1]["runtime_0.8s"]) == (0.5, 0.95, pytest.approx(1.8))
    assert math.isnan(rows[3]["loss"])
    assert "not finite" in rows[3]["reason"]


def test_scripts_get_the_same_as_json(verdict: Verdict) -> None:
    values = json.loads(json.dumps(trials.as_json(verdict), allow_nan=False))
    assert values["best"] == 1
    assert values["trials"][1]["criteria"]["accuracy"] == 0.95
    assert values["trials"][3]["criteria"]["loss"] is None
    assert values["trials"][4]["grade"] is None


def test_the_terminal_shows_the_best_first_and_why_others_were_dropped(verdict: Verdict) -> None:
    text = shown(verdict)
    rows = [line.split()[0] for line in text.splitlines() if line.strip()[:1].isdigit()]
    assert rows[:3] == ["1*", "2", "0"]
    assert "trial 3 diverged: objective is not finite (step 100, batch 8)" in text
    assert "trial 4 failed: nobody \N{REPLACEMENT CHARACTER}answered" in text
    assert all(len(line) <= 80 for line in text.splitlines())


def test_a_criterion_that_no_trial_has_is_left_out(altered: Callable[..., Run], tmp_path: Path) -> None:
    names = ("train_accuracy", "test_accuracy", "holdout_accuracy")
    without = altered(metrics={name: [UNKNOWN] * 3 for name in names})
    verdict = judge([Trial(0, {"step": 1}, without.path)], Selection())
    assert [name for name, used in zip(verdict.names, verdict.used, strict=True) if not used] == ["accuracy"]
    assert verdict.best is not None
    assert "–" in shown(verdict)
    assert pareto_front.draw(verdict, tmp_path / "front.png").stat().st_size > 10_000


def test_nothing_is_chosen_where_all_was_dropped(altered: Callable[..., Run], tmp_path: Path) -> None:
    failed = Trial(0, {"step": 1.0}, None, "too few replies")
    diverged = Trial(1, {"step": 2.0}, altered(metrics={"objective": [1.0, 2.0, math.inf]}).path)
    for given in ([failed], [failed, diverged], [diverged]):
        verdict = judge(given, Selection())
        assert verdict.best is None
        assert trials.table(verdict)["chosen"].to_pylist() == [False] * len(given)
        assert "dropped" not in shown(verdict)
        with pytest.raises(ValueError):
            pareto_front.draw(verdict, tmp_path / "front.png")


def test_the_picture_is_a_png(verdict: Verdict, tmp_path: Path) -> None:
    path = pareto_front.draw(verdict, tmp_path / "pictures" / "front.png")
    assert path.read_bytes().startswith(b"\x89PNG")


def test_a_trial_whose_run_is_gone_is_refused(tmp_path: Path) -> None:
    with raises(CheckpointError, file="gone"):
        judge([Trial(0, {}, tmp_path / "gone")], Selection())
    with raises(CheckpointError):
        judge([Trial(0, {}, None)], Selection())
