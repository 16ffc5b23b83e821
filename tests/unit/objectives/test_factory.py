"""From settings to objectives, with data and without."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from fenchel.common.arrays import Indices, Vector
from fenchel.common.data.shard import Shard
from fenchel.common.errors import MissingDependencyError, SettingsError
from fenchel.common.objectives.factory import build_objective, dimension_of, margin_loss
from fenchel.common.objectives.metrics import Metrics
from fenchel.common.objectives.objective import Objective
from fenchel.common.settings.objective import ObjectiveSettings
from tests.messages import raises
from tests.unit.objectives.problems import ADAPTER, make_shard


def section(**keys: Any) -> ObjectiveSettings:
    return ADAPTER.validate_python(keys)


def test_every_setting_has_a_description() -> None:
    sections = [part["properties"] for part in ADAPTER.json_schema()["$defs"].values() if "properties" in part]
    assert sections
    assert all(field.get("description") for fields in sections for field in fields.values())


@pytest.mark.parametrize(
    "keys",
    [
        {"kind": "perceptron"},
        {"kind": "hinge", "l2": -1},
        {"kind": "hinge", "smoothing": 1},
        {"kind": "smoothed-hinge", "smoothing": 0},
        {"kind": "mlp", "hidden": 0},
        {"kind": "logistic", "dtype": "float16"},
        {"l2": 0.1},
        {"kind": "own"},
        {"kind": "own", "name": "Median"},
    ],
)
def test_impossible_settings_are_refused(keys: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        section(**keys)


class Median(Objective):
    """Mean distance to the first feature, as an objective from outside the project."""

    def __init__(self, shard: Shard, l2: float, dtype: str, scale: float = 1.0) -> None:
        super().__init__(dimension=1, samples=shard.samples, dtype=dtype)
        self.points = np.asarray(shard.features)[:, 0]
        self.scale = scale

    def loss(self, w: Vector) -> float:
        return self.scale * float(np.abs(w - self.points).mean())

    def batch_gradient(self, w: Vector, rows: Indices) -> Vector:
        return np.array([self.scale * np.sign(w - self.points[rows]).mean()])

    def evaluate(self, w: Vector, shard: Shard | None = None) -> Metrics:
        return Metrics(self.samples * self.loss(w), None, self.samples)


@pytest.fixture
def outside(monkeypatch: pytest.MonkeyPatch) -> str:
    module = ModuleType("a_users_module")
    module.Median = Median  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "a_users_module", module)
    return "a_users_module"


def test_an_objective_of_ones_own_is_built_by_its_name_with_its_parameters(outside: str) -> None:
    own = section(kind="own", name=f"{outside}:Median", parameters={"scale": 2.0}, dtype="float32")
    objective = build_objective(own, make_shard())
    assert isinstance(objective, Median)
    assert (objective.scale, objective.dtype.name) == (2.0, "float32")
    assert dimension_of(own, 5, 2) == 1


@pytest.mark.parametrize("name", ["{}:Mean", "{}.deeper:Median", "math:sqrt", "__main__:net"])
def test_a_name_that_is_no_objective_is_refused(outside: str, name: str) -> None:
    with raises(SettingsError, key="objective.name"):
        dimension_of(section(kind="own", name=name.format(outside)), 5, 2)


def test_a_misspelt_module_is_compared_with_the_files_of_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mynet.py").write_text("plain = None\n")
    monkeypatch.chdir(tmp_path)
    with raises(SettingsError, key="objective.name") as refusal:
        dimension_of(section(kind="own", name="mynett:plain"), 5, 2)
    assert refusal.value.problem.endswith("did you mean mynet?")


@pytest.mark.parametrize("kind", ["softmax", "mlp"])
def test_a_loss_of_several_scores_is_refused_where_one_is_needed(kind: str) -> None:
    with raises(SettingsError, key="objective.kind"):
        margin_loss(section(kind=kind))


@pytest.mark.parametrize(("kind", "remedy"), [("squared", "data.task to regression"), ("logistic", "use softmax")])
def test_many_classes_are_refused_with_the_remedy_of_the_loss(kind: str, remedy: str) -> None:
    with raises(SettingsError, key="objective.kind") as refusal:
        dimension_of(section(kind=kind), 5, 73)
    assert remedy in refusal.value.problem


@pytest.mark.parametrize("kind", ["mlp", "cnn"])
def test_a_network_without_torch_says_what_to_install(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.delitem(sys.modules, "fenchel.common.objectives.networks.factory", raising=False)
    with raises(MissingDependencyError):
        dimension_of(section(kind=kind), 784, 10)


def test_linear_models_do_not_need_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.delitem(sys.modules, "fenchel.common.objectives.networks.factory", raising=False)
    assert dimension_of(section(kind="softmax"), 784, 10) == 7840
