"""One optimum counts for runs of one problem only."""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from fenchel.common.errors import SettingsError
from fenchel.deploy.cli.main import application
from fenchel.report.optimum import optima_of
from fenchel.report.run import Run
from tests.messages import raises

MakeRun = Callable[..., Run]


@pytest.fixture
def changed(altered: MakeRun) -> Callable[..., Run]:
    """Return a function that copies a run with other settings, given by section."""

    def change(name: str, **sections: Any) -> Run:
        def edit(text: str) -> str:
            values = yaml.safe_load(text)
            for key, value in sections.items():
                values[key] = values[key] | value if isinstance(value, Mapping) else value
            return yaml.safe_dump(values)

        return altered(name, settings=edit)

    return change


def test_each_run_may_have_its_own_and_none_is_known_unless_it_is_given(
    finished: Run, changed: Callable[..., Run]
) -> None:
    other = changed("other", objective={"l2": 0.5})
    assert optima_of([finished, other], []) == [None, None]
    assert optima_of([finished, other], [0.25, 0.75]) == [0.25, 0.75]
    for runs, wrong in (([finished, other, other], [0.25, 0.75]), ([finished], [math.nan]), ([finished], [math.inf])):
        with raises(SettingsError, key="--optimum"):
            optima_of(runs, wrong)


def test_one_is_enough_for_runs_that_differ_only_in_how_they_minimise(
    finished: Run, changed: Callable[..., Run]
) -> None:
    other = changed("other", algorithm={"step_size": 0.1}, rounds=7, objective={"dtype": "float32"})
    assert optima_of([finished, other, finished], [0.25]) == [0.25] * 3


@pytest.mark.parametrize(
    "sections",
    [
        {"objective": {"l2": 0.5}},
        {"data": {"scale": "standard"}},
        {"data": {"samples": 100}},
        # These clients hold back a tenth of what they have, so it matters who has what.
        {"seed": 8},
        {"clients": 5},
        {"data": {"partition": {"kind": "dirichlet", "alpha": 0.3}}},
    ],
)
def test_one_is_refused_for_runs_of_different_problems(
    finished: Run, changed: Callable[..., Run], sections: Mapping[str, Any]
) -> None:
    with raises(SettingsError, key="--optimum"):
        optima_of([finished, changed("other", **sections)], [0.25])


def test_the_command_takes_one_for_each_run_and_refuses_one_for_several_problems(
    finished: Run, changed: Callable[..., Run], tmp_path: Path
) -> None:
    other = changed("other", objective={"l2": 0.5})
    app = application()
    words = ["report", str(finished.path), str(other.path), "-o", str(tmp_path / "a.html"), "--csv", str(tmp_path)]
    refused = CliRunner().invoke(app, [*words, "--optimum", "0.25"])
    assert isinstance(refused.exception, SettingsError)
    assert not (tmp_path / "a.html").exists()
    assert CliRunner().invoke(app, [*words, "--optimum", "0.25", "--optimum", "0.5"]).exit_code == 0
    with (tmp_path / "curves.csv").open() as file:
        gaps = [float(row["objective"]) - float(row["optimality_gap"]) for row in csv.DictReader(file)]
    assert gaps == pytest.approx([0.25] * 3 + [0.5] * 3)


def test_who_holds_what_does_not_matter_where_everybody_trains_on_all(changed: Callable[..., Run]) -> None:
    mnist = {"name": "mnist", "holdout": 0.0}  # its test set is published
    one = changed("one", data=mnist)
    other = changed("other", data=mnist | {"partition": {"kind": "classes", "per_client": 2}}, clients=9, seed=3)
    assert optima_of([one, other], [0.25]) == [0.25, 0.25]
    drawn = {"name": "digits", "holdout": 0.0}  # its test set is drawn by the seed
    with raises(SettingsError, key="--optimum"):
        optima_of([changed("a", data=drawn), changed("b", data=drawn, seed=3)], [0.25])
    fixed = drawn | {"test_seed": 0}
    assert optima_of([changed("c", data=fixed), changed("d", data=fixed, seed=3)], [0.25]) == [0.25, 0.25]
