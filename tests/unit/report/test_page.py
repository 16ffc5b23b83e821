"""The page stands alone, says what is true, and nothing in a run folder becomes markup."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from typer.testing import CliRunner

from fenchel.common.objectives.metrics import FIGURES
from fenchel.common.storage.environment_record import EnvironmentRecord
from fenchel.deploy.cli.main import application
from fenchel.report.formatting import seconds_text
from fenchel.report.render.page import write_report
from fenchel.report.run import Run
from fenchel.report.wall_time import wall_of

HOSTILE = "</script></pre><script>alert(1)</script><img src=//x onerror='alert(1)'>\""


class Page(HTMLParser):
    """Elements, texts and scripts of a page, as a browser would take them apart."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.scripts: dict[str, str] = {}
        self._script: str | None = None
        self.feed(path.read_text(encoding="utf-8"))
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag == "script":
            self._script = dict(attrs).get("id") or f"script {len(self.scripts)}"
            self.scripts[self._script] = ""

    def handle_endtag(self, tag: str) -> None:
        if tag == "script":
            self._script = None

    def handle_data(self, data: str) -> None:
        if self._script is None:
            self.text += data
        else:
            self.scripts[self._script] += data

    @property
    def data(self) -> Any:
        return json.loads(self.scripts["data"])

    @property
    def tags(self) -> list[str]:
        return [tag for tag, _ in self.elements]


@pytest.fixture
def written(tmp_path: Path) -> Any:
    return lambda *runs: Page(write_report(runs, tmp_path / "pages" / "report.html"))


def test_the_page_refers_to_nothing_outside_itself(written: Any, finished: Run, killed: Run) -> None:
    for page in (written(finished), written(finished, killed)):
        references = [
            (tag, name) for tag, given in page.elements for name in given if name in ("src", "href", "action", "data")
        ]
        assert references == []
        assert "link" not in page.tags
        assert not re.search(r"@import|url\(", page.text)


def test_a_comparison_leaves_the_pages_of_its_runs_alone(altered: Callable[..., Run]) -> None:
    one, other = altered("one"), altered("other")
    assert CliRunner().invoke(application(), ["report", str(one.path)]).exit_code == 0
    before = (one.path / "report.html").read_bytes()
    words = ["report", str(one.path), str(other.path), str(one.path.parent / "." / other.path.name)]  # one run twice
    assert CliRunner().invoke(application(), words).exit_code == 0
    assert (one.path / "report.html").read_bytes() == before
    assert not (other.path / "report.html").exists()
    assert "2 runs" in Page(one.path.parent / "comparison.html").text


def test_the_page_lets_only_its_own_scripts_run(written: Any, finished: Run) -> None:
    page = written(finished)
    (policy,) = [given["content"] for tag, given in page.elements if "http-equiv" in given]
    allowed = set(re.findall(r"'sha256-([^']+)'", policy))
    run = [text for name, text in page.scripts.items() if name != "data"]
    assert {base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in run} == allowed
    assert policy.startswith("default-src 'none'")


def test_the_page_says_how_the_run_went(written: Any, finished: Run) -> None:
    page = written(finished)
    for part in ("Completed", "fedavg", "3 clients", "Where the time goes", "client-002", "local_epochs: 1"):
        assert part in page.text
    assert finished.id in page.text


@pytest.mark.parametrize(
    ("clients", "text"), [("1", "softmax · 1 client · "), ("auto", "softmax · any number of clients · ")]
)
def test_the_headline_counts_the_clients(written: Any, altered: Callable[..., Run], clients: str, text: str) -> None:
    run = altered(settings=lambda settings: settings.replace("clients: 3", f"clients: {clients}"))
    assert text in " ".join(written(run).text.split())


def test_the_page_says_what_was_computed_with_and_by_whom_where_it_differs(
    written: Any, altered: Callable[..., Run], finished: Run
) -> None:
    (environment,) = set(finished.environments.latest.values())
    assert f"blas{environment.blas}" in written(finished).text
    other = altered()
    record = EnvironmentRecord(dict(finished.environments.latest))
    record.update(HOSTILE, replace(environment, kernel="Another"), 1)
    record.save(other.path / "environments.json", other.id)
    page = written(other)
    assert f"the computing environments of this run differ: kernel: {environment.kernel} (the server" in page.text
    assert f"Another ({HOSTILE})" in page.text
    assert "img" not in page.tags
    (other.path / "environments.json").unlink()
    assert "Computing environment" not in written(Run(other.path)).text


def test_the_wall_time_is_at_the_top_and_explained_for_one_run_and_for_several(
    written: Any, finished: Run, killed: Run
) -> None:
    whole = seconds_text(wall_of(finished).total)
    one = written(finished).text
    assert f"Wall time{whole}" in one  # the tile
    assert f"Wall time {whole} = set-up {seconds_text(wall_of(finished).setup)} + rounds " in one
    assert f"the average client spent {seconds_text(finished.metrics['idle_s'].sum())}" in one
    several = written(finished, killed).text
    for run in (finished, killed):
        wall = wall_of(run)
        parts = (wall.total, wall.setup, wall.rounds, wall.evaluation, wall.rest)
        assert "".join(seconds_text(seconds) for seconds in parts) in several


def test_the_curves_are_those_of_the_table(written: Any, finished: Run) -> None:
    (run,) = written(finished).data["runs"]
    curve = run["curves"]["objective"]
    np.testing.assert_allclose(curve["y"], finished.metrics["objective"], rtol=1e-5)
    np.testing.assert_allclose(curve["seconds"], finished.metrics["seconds"].cumsum(), rtol=1e-5)
    wire = finished.metrics["wire_down"] + finished.metrics["wire_up"]
    np.testing.assert_allclose(curve["bytes"], wire.cumsum(), rtol=1e-5)


def test_no_text_of_a_run_becomes_markup(written: Any, altered: Callable[..., Run], finished: Run) -> None:
    innocent = written(finished, altered()).tags
    calls = {name: [text + HOSTILE for text in finished.calls[name]] for name in ("client", "phase")}
    run = altered(HOSTILE.replace("/", "|"), calls=calls, settings=lambda text: text + f"# {HOSTILE}\n")
    page = written(finished, run)
    assert page.tags == innocent
    assert len(page.scripts) == 3
    assert page.data["runs"][1]["name"] == run.id
    assert HOSTILE in page.text


def test_a_hostile_name_in_the_settings_does_not_end_the_data(
    written: Any, altered: Callable[..., Run], finished: Run
) -> None:
    run = altered(settings=lambda text: text.replace("name: tiny", f"name: {json.dumps(HOSTILE)}"))
    for page in (written(run), written(finished, run)):
        assert page.data["runs"][-1]["name"] == HOSTILE
        assert "img" not in page.tags
        assert len(page.scripts) == 3


def test_a_hostile_reason_of_several_lines_is_shown_as_it_is(written: Any, altered: Callable[..., Run]) -> None:
    page = written(altered(summary={"completed": False, "reason": f"all clients failed\n  client-000: {HOSTILE}"}))
    assert "Stopped after round 3" in page.text
    assert "\N{REPLACEMENT CHARACTER}" not in page.text
    assert f"client-000: {HOSTILE}" in page.text
    assert "img" not in page.tags


def test_the_page_of_a_killed_run_says_that_it_is_not_finished(written: Any, killed: Run) -> None:
    page = written(killed)
    assert "Unfinished" in page.text
    assert "2 of 3 rounds" in page.text


def test_figures_that_are_nowhere_known_are_left_out(written: Any, altered: Callable[..., Run], finished: Run) -> None:
    missing = ["uniform_objective", "holdout_loss", "holdout_accuracy", "train_accuracy", "network_s"]
    missing += [name for name in FIGURES if "client" in name]
    metrics = finished.metrics_table.drop_columns([*missing, "test_accuracy"])
    metrics = metrics.append_column("test_accuracy", pa.array([math.nan] * 3))
    page = written(altered(metrics=metrics, summary={"figures": {}}))
    assert [panel["title"] for panel in page.data["panels"]] == ["Objective", "Loss"]
    assert "ccuracy" not in page.text


def test_the_accuracies_of_clients_share_a_chart_with_the_worst_first(
    written: Any, altered: Callable[..., Run]
) -> None:
    spread = {"client_accuracy_std": [0.1, 0.2, 0.1]}
    panels = {panel["title"]: panel for panel in written(altered(metrics=spread)).data["panels"]}
    assert list(panels["Client accuracy"]["figures"].items()) == [
        ("worst", "client_accuracy_worst"),
        ("worst tenth", "client_accuracy_worst_tenth"),
        ("mean", "client_accuracy_mean"),
    ]
    for title in ("Client accuracy", "Client accuracy std"):
        assert panels[title]["share"]
    assert panels["Worst client loss"]["figures"] == {"": "worst_client_loss"}
    assert not panels["Worst client loss"]["share"]


def test_an_algorithms_own_figures_are_drawn(written: Any, altered: Callable[..., Run]) -> None:
    page = written(altered(metrics={"dual_gap": [3.0, 2.0, 1.0], "step": [1.0, 0.5, 0.5]}))
    gap, step = page.data["panels"][-2:]
    assert gap == {"title": "Dual gap", "figures": {"": "dual_gap"}, "share": False, "log": True}
    assert step == {"title": "Step", "figures": {"": "step"}, "share": False, "log": False}


def test_a_figure_that_never_changes_or_is_the_objective_is_no_chart(
    written: Any, altered: Callable[..., Run], finished: Run
) -> None:
    objective = finished.metrics_table["objective"].to_pylist()
    own = {"bound": [0.0] * 3, "primal_objective": objective, "step": [math.nan, 0.5, 0.4], "mean": [2.0, 2.0, 2.0]}
    one = altered(metrics=own)
    titles = {panel["title"] for panel in written(one).data["panels"]}
    assert {"Objective", "Step"} <= titles
    assert not {"Bound", "Primal objective", "Mean"} & titles
    other = altered("other", metrics=own | {"mean": [2.0, 2.0, 3.0]})
    several = {panel["title"] for panel in written(one, other).data["panels"]}
    assert "Mean" in several
    assert "Bound" not in several


def test_an_accuracy_that_never_changes_stays_beside_the_others(written: Any, altered: Callable[..., Run]) -> None:
    constant = {"test_accuracy": [1.0] * 3, "client_accuracy_worst": [0.0] * 3, "client_accuracy_std": [0.0] * 3}
    panels = {panel["title"]: panel["figures"] for panel in written(altered(metrics=constant)).data["panels"]}
    assert list(panels["Accuracy"]) == ["train", "test", "holdout"]
    assert "worst" in panels["Client accuracy"]
    assert "Client accuracy std" not in panels


def test_the_algorithms_objective_stands_in_for_one_that_nobody_evaluated(
    written: Any, altered: Callable[..., Run], finished: Run
) -> None:
    own = {"primal_objective": [3.0, 2.0, 1.0]}
    titles = [panel["title"] for panel in written(altered(metrics=own)).data["panels"]]
    assert titles[0] == "Objective"
    assert "Primal objective" in titles
    hidden = altered("hidden", metrics=own | {"objective": [math.nan] * 3}, summary={"figures": {}})
    page = written(hidden)
    titles = [panel["title"] for panel in page.data["panels"]]
    assert titles[0] == "Primal objective"
    assert titles.count("Primal objective") == 1
    assert "Primal objective" in page.text


@pytest.mark.parametrize("rounds", [0, 1])
def test_a_run_of_hardly_any_rounds_has_a_page(
    written: Any, altered: Callable[..., Run], finished: Run, rounds: int
) -> None:
    page = written(altered(metrics=finished.metrics_table.slice(0, rounds)))
    (run,) = page.data["runs"]
    assert len(run["time"]["round"]) == rounds
    assert ("No round has been evaluated yet." in page.text) == (rounds == 0)


@pytest.mark.slow
def test_long_runs_of_many_clients_are_aggregated(written: Any, altered: Callable[..., Run], finished: Run) -> None:
    metrics = pa.concat_tables([finished.metrics_table.drop_columns(["round"])] * 2000)
    metrics = metrics.append_column("round", pa.array(range(1, 6001)))
    calls = pa.concat_tables([finished.calls_table.drop_columns(["client"])] * 200)
    calls = calls.append_column("client", pa.array([f"client-{row % 1000:04}" for row in range(calls.num_rows)]))
    page = written(altered(metrics=metrics, calls=calls))
    (run,) = page.data["runs"]
    assert run["curves"]["objective"]["round"][:: len(run["curves"]["objective"]["round"]) - 1] == [1, 6000]
    assert len(run["curves"]["objective"]["y"]) == 400
    assert len(run["time"]["round"]) == 120
    waiting = np.array(run["time"]["parts"]["waiting"]).mean()
    assert waiting == pytest.approx(finished.metrics["waiting_s"].mean(), rel=1e-4)
    assert "The slowest 20 of 1,000 clients" in page.text
    assert page.tags.count("tr") < 40
    assert len(page.scripts["data"]) < 300_000


def test_the_same_runs_give_the_same_light_page_that_opens_on_the_waiting_that_its_title_names(
    tmp_path: Path, finished: Run
) -> None:
    page = write_report([finished], tmp_path / "a.html").read_text()
    assert write_report([Run(finished.path)], tmp_path / "b.html").read_text() == page
    assert len(page.encode()) < 1.5e6
    assert '<button type="button" data-value="waited" aria-pressed="true">' in page
    assert '<button type="button" data-value="took" aria-pressed="false">' in page
    assert "Waiting for slower clients, by client and round" in page
