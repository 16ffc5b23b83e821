"""The command solve: the numbers of docs/specifications/hyfdca.md, section 5.2, from a settings file."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pytest
import yaml
from scipy.optimize import minimize
from typer.testing import CliRunner

from fenchel.common.arrays import Vector
from fenchel.common.data.source import DataSource
from fenchel.common.errors import DataError, SettingsError
from fenchel.common.settings.participation import Weighted
from fenchel.common.settings.run import RunSettings, validate
from fenchel.deploy.cli.main import application
from tests.messages import raises
from tests.slow import rest_slow

SETTINGS: dict[str, Any] = {
    "rounds": 1,
    "clients": 9,
    "data": {
        "name": "breast_cancer",
        "classes": ["malignant", "benign"],
        "test_fraction": 0.2,
        "test_split": "scikit-learn",
        "test_seed": 0,
        "scale": ["standard", "unit-rows"],
    },
    "objective": {"kind": "hinge", "l2": 0.01},
    "algorithm": {"name": "fedavg", "step_size": 0.1},
}

Write: TypeAlias = Callable[[dict[str, Any]], str]


def fenchel(*words: str) -> str:
    """Run the command; return what it prints, or raise what it raises."""
    app = application()
    result = CliRunner().invoke(app, ["solve", *words], catch_exceptions=False)
    assert result.exit_code == 0
    return result.stdout


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Return a function that writes settings and returns their path."""

    def written(values: dict[str, Any]) -> str:
        (tmp_path / "solve.yaml").write_text(yaml.safe_dump(values))
        return str(tmp_path / "solve.yaml")

    return written


@pytest.fixture
def file(write: Write) -> str:
    return write(SETTINGS)


@pytest.mark.parametrize(
    ("l2", "optimum", "train", "test"),
    [(0.1, 0.35448369, 0.960, 0.921), (0.01, 0.15444684, 0.985, 0.956), (0.001, 0.07302129, 0.987, 0.982)],
)
def test_the_optima_and_accuracies_are_those_of_the_specification(
    file: str, l2: float, optimum: float, train: float, test: float
) -> None:
    figures = json.loads(fenchel(file, "--json", "--set", f"objective.l2={l2}", "--set", "objective.dtype=float32"))
    assert figures["samples"] == 455
    assert figures["objective"] == pytest.approx(optimum, abs=6e-9)
    assert figures["objective"] - figures["dual_objective"] == figures["gap"] <= 1e-9
    assert figures["train_accuracy"] == pytest.approx(train, abs=5e-4)
    assert figures["test_accuracy"] == pytest.approx(test, abs=5e-4)


def test_the_figures_are_shown_and_written(file: str, tmp_path: Path) -> None:
    output = tmp_path / "figures.json"
    shown = fenchel(file, "--output", str(output))
    assert "problem         hinge, l2 0.01, 455 samples, 30 features" in shown
    assert "primal          0.15444684" in shown
    assert "test accuracy   95.6 %" in shown
    figures = json.loads(output.read_text())
    assert figures["objective"] == pytest.approx(0.15444684, abs=6e-9)
    assert figures["converged"] is True


def test_a_path_that_reads_like_markup_is_shown_as_it_is(file: str, tmp_path: Path) -> None:
    output = tmp_path / "a[" / "b]" / "o.json"  # in folders that are made
    assert str(output) in fenchel(file, "--output", str(output))


def test_a_solution_that_is_not_there_yet_says_so(file: str) -> None:
    shown = fenchel(file, "--passes", "1")
    assert "the gap is still above 1e-09" in shown
    assert "--passes 10" in shown
    assert json.loads(fenchel(file, "--passes", "1", "--json"))["converged"] is False


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("--set", "objective.l2=0"), SettingsError),
        (("--set", "objective.kind=softmax"), SettingsError),
        (("--set", "data={name: own}"), DataError),
        (("--output", f"{__file__}/x.json"), SettingsError),
        (("--output", "."), SettingsError),
    ],
)
def test_what_cannot_be_solved_is_refused(file: str, words: tuple[str, ...], error: type[Exception]) -> None:
    with raises(error):
        fenchel(file, *words)


UNEVEN: dict[str, Any] = SETTINGS | {
    "clients": 6,
    "objective": {"kind": "logistic", "l2": 0.01},
    "data": SETTINGS["data"] | {"partition": {"kind": "zipf", "exponent": 1.2}},
}


def optimum(settings: RunSettings, weighting: str) -> float:
    """Return the optimum by another solver (scipy), from the clients' own mean losses."""
    source = DataSource.open(settings.data, settings.seed)
    assert isinstance(settings.clients, int)
    shards = [source.shard(client, settings.clients) for client in range(settings.clients)]
    sizes = np.array([shard.samples for shard in shards])
    assert sizes.max() > 5 * sizes.min()  # else the two problems are nearly one
    weights = sizes / sizes.sum() if weighting == "samples" else np.full(len(sizes), 1 / len(sizes))

    def total(w: Vector) -> float:
        losses = [np.logaddexp(0, -np.where(s.labels == 1, 1, -1) * (s.features @ w)).mean() for s in shards]
        return float(weights @ np.array(losses) + settings.objective.l2 / 2 * (w @ w))

    found = minimize(total, np.zeros(source.problem.features), method="BFGS", options={"gtol": 1e-7})
    return float(found.fun)


@pytest.mark.parametrize(
    ("changes", "weighting"),
    rest_slow(
        [
            ({"algorithm": {"name": "fedavg"}}, "samples"),
            ({"algorithm": {"name": "fedavg", "weighting": "uniform"}}, "uniform"),
            ({"algorithm": {"name": "fedpdm"}}, "uniform"),
            ({"algorithm": {"name": "hyfdca"}}, "samples"),
            ({"data": UNEVEN["data"] | {"holdout": 0.3}}, "samples"),
        ],
        2,
    ),
    ids=str,
)
def test_the_problem_that_is_solved_is_that_of_the_run(write: Write, changes: dict[str, Any], weighting: str) -> None:
    path = write(values := UNEVEN | changes)
    figures = json.loads(fenchel(path, "--json"))
    assert figures["weighting"] == weighting
    assert figures["objective"] == pytest.approx(optimum(validate(values), weighting), abs=1e-8)
    assert figures["gap"] <= 1e-9
    assert (figures["samples"] < 455) == ("data" in changes)
    assert f"weighting       {weighting}: each" in fenchel(path)


def test_another_problem_is_solved_if_that_is_wanted_and_said_to_be_one(write: Write) -> None:
    path = write(UNEVEN)
    figures = json.loads(fenchel(path, "--json", "--weighting", "uniform"))
    assert figures["objective"] == pytest.approx(optimum(validate(UNEVEN), "uniform"), abs=1e-8)
    assert "This is not the run's problem, in which each sample does" in fenchel(path, "--weighting", "uniform")
    write(UNEVEN | {"algorithm": {"name": "drdm"}})
    assert "drdm minimises the largest of the clients' losses" in " ".join(fenchel(path).split())
    weighted = Weighted(size=2)
    assert validate(UNEVEN).algorithm.minimises(weighted) is None
    uniform = validate(UNEVEN | {"algorithm": {"name": "fedavg", "weighting": "uniform"}})
    assert uniform.algorithm.minimises(weighted) == "samples"


def test_where_features_are_split_no_client_has_a_loss_to_count(write: Write) -> None:
    split = {"partition": {"kind": "grid", "sample_groups": 3, "feature_groups": 2}}
    values = UNEVEN | {"algorithm": {"name": "hybrid-fedavg"}, "data": SETTINGS["data"] | split}
    path = write(values)
    assert "This is not the run's problem" in fenchel(path)
    with raises(DataError, key="data.partition"):
        fenchel(path, "--weighting", "uniform")
    write(values | {"algorithm": {"name": "hyfdca"}})
    assert "weighting       samples: each sample counts alike, as in the run" in fenchel(path)
