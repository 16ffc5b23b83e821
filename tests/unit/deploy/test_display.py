"""The live table and its lines show what a run has, and nothing that it has not."""

from __future__ import annotations

import math
from collections.abc import Callable
from io import StringIO
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from fenchel.deploy.cli.main import application
from fenchel.deploy.monitoring.display import Display

ROW = {
    "round": 1,
    "objective": 0.25,
    "test_accuracy": 0.5,
    "seconds": 1.0,
    "compute_s": 0.125,
    "encryption_s": 0.0,
    "coding_s": 0.0,
    "network_s": 0.0,
    "waiting_s": 0.0,
    "wire_down": 10,
    "wire_up": 20,
    "counted": 2,
    "asked": 2,
}


def displayed(use: Callable[[Display], None], *, terminal: bool = True, width: int = 140, planned: int = 3) -> str:
    output = StringIO()
    console = Console(file=output, width=width, force_terminal=terminal, color_system=None)
    with Display(console, "a run", planned) as display:
        use(display)
    return output.getvalue()


def shown(*rows: dict[str, Any], **how: Any) -> str:
    def use(display: Display) -> None:
        for row in rows:
            display.round_ended(row)

    return displayed(use, **how)


@pytest.mark.parametrize("terminal", [True, False])
def test_gap_and_encryption_are_shown_where_there_are_some(terminal: bool) -> None:
    plain = shown(ROW, terminal=terminal)
    assert "0.2500" in plain
    assert "gap" not in plain
    assert "encryption" not in plain
    text = shown(ROW | {"gap": 3.25e-5, "encryption_s": 0.75}, terminal=terminal)
    assert "gap" in text
    assert "3.25e-05" in text
    assert "encryption" in text
    assert "0.750" in text
    assert "nan" not in shown(ROW | {"gap": 0.5}, ROW | {"gap": math.nan}, terminal=terminal)
    assert "0.3750" in shown(ROW | {"objective": math.nan, "primal_objective": 0.375}, terminal=terminal)


@pytest.mark.parametrize(
    ("objective", "text"), [(3.1e-9, "3.1e-09"), (1.90629e305, "1.906e+305"), (-0.0, "-0.0000"), (math.inf, "inf")]
)
def test_an_objective_of_any_size_is_shown(objective: float, text: str) -> None:
    assert f"objective {text}  " in shown(ROW | {"objective": objective}, terminal=False)


@pytest.mark.parametrize("width", [40, 60, 80, 100])
def test_a_narrow_terminal_gets_fewer_columns_and_none_that_is_cut_off(width: int) -> None:
    text = shown(ROW, terminal=True, width=width)
    assert "…" not in text
    assert ("coding" in text) == (width == 100)
    assert all(title in text for title in ("round", "objective", "accuracy", "seconds"))


@pytest.mark.parametrize(("said", "stands"), [(["waiting for 1 more"], True), (["waiting for 1 more", ""], False)])
def test_what_a_run_waits_for_stands_below_the_table_until_it_goes_on(said: list[str], stands: bool) -> None:
    def wait(display: Display) -> None:
        for words in said:
            display.waiting(words)

    last = displayed(wait).rpartition("round 0 of 3")[2]
    assert ("waiting for 1 more" in last) == stands


def test_a_client_that_is_back_is_no_further_one() -> None:
    def join(display: Display) -> None:
        for present in (1, 2, 2):
            display.joined(present, 2)

    assert displayed(join, terminal=False).splitlines() == [
        "1 of 2 clients ready",
        "2 of 2 clients ready",
        "a client is connected again; 2 of 2 clients ready",
    ]


@pytest.mark.parametrize("terminal", [True, False])
def test_words_are_shown_as_they_are(terminal: bool) -> None:
    """A traceback may hold what looks like markup, and what is none."""
    said = displayed(lambda display: display.say("weights[i] in [/data/x]"), terminal=terminal)
    assert "weights[i] in [/data/x]" in said


@pytest.mark.parametrize("terminal", [True, False])
def test_the_auc_is_shown_beside_the_accuracy_where_there_is_one(terminal: bool) -> None:
    assert "auc" not in shown(ROW | {"test_auc": math.nan}, terminal=terminal)
    text = shown(ROW | {"test_auc": 0.98349, "train_auc": 0.75}, terminal=terminal)
    assert "auc" in text
    assert "98.35 %" in text
    assert "75.00 %" in shown(ROW | {"test_auc": math.nan, "train_auc": 0.75}, terminal=terminal)
    groups = ROW | {"test_auc": math.nan, "holdout_auc": 0.851, "holdout_auc_error": 0.16}
    assert "85.10 % ± 16.00 %" in shown(groups, terminal=terminal)
    assert "±" not in shown(groups | {"holdout_auc_error": 0.0}, terminal=terminal)


@pytest.mark.parametrize("command", [["up", "--runs"], ["server", "--insecure", "--runs"]])
def test_a_run_that_hides_nothing_is_warned_of_before_it_begins(command: list[str], tmp_path: Any) -> None:
    # The settings ask for more clients than can have a part, so that nothing begins.
    settings = tmp_path / "run.yaml"
    settings.write_text(
        "data: {name: breast_cancer, samples: 3}\nrounds: 1\nclients: 4\nobjective: {kind: hinge, l2: 0.01}\n"
        "algorithm: {name: hyfdca, privacy: none}\nnetwork: {join_timeout: 0.1}\n"
    )
    app = application()
    result = CliRunner().invoke(app, [*command, str(tmp_path / "runs"), str(settings)])
    assert "the server sees dual variables" in " ".join(result.stderr.replace("│", "").split())


def test_the_live_table_shows_the_time_left() -> None:
    def rounds(count: int, planned: int) -> str:
        rows = [ROW | {"round": number, "seconds": 60.0, "evaluation_s": 15.0} for number in range(1, count + 1)]
        return shown(*rows, planned=planned).rpartition("a run")[2]

    assert "round 4 of 10   about 7 min 30 s left" in rounds(4, 10)
    assert "left" not in rounds(4, 4)
    assert "left" not in rounds(2, 10)
