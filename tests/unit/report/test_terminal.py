"""The terminal shows what matters, and scripts get the same as JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace

import pytest
import yaml

from fenchel.common.storage.environment_record import EnvironmentRecord
from fenchel.report.render import terminal
from fenchel.report.render.html import headline
from fenchel.report.run import Run
from tests.unit.report.conftest import shown


def test_one_run_is_shown_with_its_settings_its_figures_and_its_phases(finished: Run) -> None:
    text = shown(finished)
    for part in ("completed", "algorithm fedavg", "3 of 3", "test accuracy", "waiting", "train", "client-002"):
        assert part in text
    assert finished.id in text


def test_the_environment_is_shown_and_a_difference_is_a_warning(finished: Run, altered: Callable[..., Run]) -> None:
    (environment,) = set(finished.environments.latest.values())
    text = " ".join(shown(finished, width=400).split())
    assert f"numpy {environment.numpy}" in text
    assert f"kernel {environment.kernel}" in text
    assert "warning" not in text
    other = altered()
    record = EnvironmentRecord(dict(finished.environments.latest))
    record.update("client-001", replace(environment, kernel="Another"), 2)
    record.save(other.path / "environments.json", other.id)
    text = " ".join(shown(other, width=400).split())
    assert "Another (client-001)" in text
    assert text.count("warning") == 2, "they differ, and one has changed"
    assert "Another (client-001)" in terminal.as_json([other])["runs"][0]["environment"]["kernel"]


def test_a_private_run_is_shown_with_the_epsilon_that_counts_and_its_delta(altered: Callable[..., Run]) -> None:
    assert "privacy guarantee" not in shown(altered("open"), width=400)
    for mechanism, guarantee in (("contractive", "epsilon 2 at delta 0.0001, by PLD"), ("paper", "none, because")):
        private = altered(
            mechanism,
            settings=lambda text, mechanism=mechanism: yaml.safe_dump(
                yaml.safe_load(text) | {"differential_privacy": {"mechanism": mechanism, "delta": 0.0001}}
            ),
            metrics={"epsilon_paper": [0.1, 0.2, 0.3], "epsilon_pld": [1.0, 1.5, 2.0]},
        )
        assert f"privacy guarantee {guarantee}" in " ".join(shown(private, width=400).split())
        assert f"privacy guarantee: {guarantee}" in headline(private)
    unknown = altered(
        "unknown",
        settings=lambda text: yaml.safe_dump(
            yaml.safe_load(text) | {"differential_privacy": {"mechanism": "contractive", "delta": 0.0001}}
        ),
    )
    assert "privacy guarantee" not in shown(unknown, width=400)


def test_no_line_is_broken_in_a_terminal_of_eighty_columns(finished: Run) -> None:
    lines = shown(finished, width=80).splitlines()
    assert any(line.startswith("fenchel.evaluate") and line.rstrip().endswith("s") for line in lines)


def test_several_runs_are_compared_by_what_differs(altered: Callable[..., Run], finished: Run) -> None:
    other = altered(settings=lambda text: text.replace("step_size: 0.5", "step_size: 0.25"))
    text = shown(finished, other, width=160)
    assert "step_size" in text
    assert "0.25" in text
    assert "batch_size" not in text
    assert "2 runs" in text


def test_runs_are_compared_by_their_worst_client_where_clients_test_on_samples_of_their_own(
    altered: Callable[..., Run], finished: Run
) -> None:
    assert f"{finished.figures['client_accuracy_worst']:.1%}" in shown(finished, altered(), width=160)
    assert "worst" in shown(finished, altered("b"), width=160)


def test_the_wall_time_is_an_equation_and_who_waited_is_said(finished: Run) -> None:
    text = " ".join(shown(finished, width=80).replace("\N{NO-BREAK SPACE}", " ").split())
    terms = re.search(r"wall time (.+?) = set-up (.+?) \+ rounds (.+?) \+ evaluation (.+?) \+ rest (.+?) time in", text)
    assert terms is not None
    wall, *others = map(seconds_of, terms.groups())
    assert wall == pytest.approx(sum(others), rel=0.03)  # three digits of each are shown
    assert re.search(r"waiting for the slowest \S+ \S+ for the average client \(\d+% of the time in rounds\)", text)
    seconds = terminal.as_json([finished])["runs"][0]["seconds"]
    parts = ("setup", "rounds", "evaluation", "rest", "paused")
    assert seconds["wall"] == pytest.approx(sum(seconds[part] for part in parts))
    assert seconds["idle"] == pytest.approx(finished.metrics["idle_s"].sum())


def seconds_of(text: str) -> float:
    number, unit = text.split()
    return float(number) * {"s": 1.0, "ms": 1e-3, "µs": 1e-6}[unit]


def test_a_run_without_a_round_can_be_shown(killed: Run) -> None:
    for name in ("metrics", "calls"):
        (killed.path / f"{name}.arrows").write_bytes(b"")
    text = shown(Run(killed.path))
    assert "0 of 3" in text
    assert "nothing measured" in text


def test_names_and_reasons_cannot_steer_the_terminal(altered: Callable[..., Run], finished: Run) -> None:
    calls = {"client": ["[red]\x1b[2Jclient"] * finished.calls_table.num_rows}
    run = altered(calls=calls, summary={"completed": False, "reason": "[/bold] no \x1b]0;title\x07"})
    text = shown(run)
    assert "\x1b" not in text
    assert "\x07" not in text
    assert "[red]" in text
    assert "[/bold] no" in text


def test_a_reason_of_several_lines_keeps_them(altered: Callable[..., Run]) -> None:
    text = shown(altered(summary={"completed": False, "reason": "all clients failed\n  client-000: not finite\x07"}))
    assert re.search(r"all clients failed *\n +client-000: not finite\N{REPLACEMENT CHARACTER}", text)


@pytest.mark.parametrize("state", ["finished", "killed"])
def test_the_json_survives_a_round_trip(state: str, request: pytest.FixtureRequest) -> None:
    run: Run = request.getfixturevalue(state)
    values = terminal.as_json([run])
    assert json.loads(json.dumps(values, allow_nan=False)) == values
    (described,) = values["runs"]
    assert described["rounds"] == run.rounds
    assert described["figures"] == run.figures
    assert described["seconds"]["waiting"] == pytest.approx(run.metrics["waiting_s"].sum())
    assert {phase["name"] for phase in described["phases"]} == {"train", "fenchel.evaluate"}


def test_what_is_not_known_is_null_in_the_json(altered: Callable[..., Run], finished: Run) -> None:
    calls = {"outcome": ["unanswered"] * finished.calls_table.num_rows}
    (described,) = terminal.as_json([altered(calls=calls)])["runs"]
    assert described["clients"][0]["total_p50"] is None


@pytest.mark.parametrize("width", [80, 120])
def test_runs_that_differ_in_much_are_told_apart_in_a_narrow_terminal(
    altered: Callable[..., Run], finished: Run, width: int
) -> None:
    def other(text: str) -> str:
        values = yaml.safe_load(text)
        values["name"] = "another-algorithm-here"
        values["algorithm"] = {"name": "other"} | {f"own_setting_{i}": "x" * i for i in range(1, 40)}
        return yaml.safe_dump(values)

    text = shown(finished, altered(settings=other), width=width)
    assert "…" not in text
    told = ("fedavg", "other") if width == 120 else ()  # the algorithm is the last setting to go
    for part in ("another-algorithm-here", "tiny", "completed", *told):
        assert part in text
    assert max(map(len, text.splitlines())) <= width
    assert re.search(r"\+\d\d differing settings(, \d figures?)?(, \d costs?)?, on the page", " ".join(text.split()))
    assert sum(f"own_setting_{i}" in text for i in range(4, 40)) == 0
