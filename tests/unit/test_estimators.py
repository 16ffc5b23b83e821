"""Federated estimators keep scikit-learn's conventions, and are runs like any other."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.datasets import load_iris
from sklearn.linear_model import LinearRegression
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_estimator

import fenchel
from fenchel.common.data.shard import Shard
from fenchel.common.errors import DataError, MissingDependencyError, SettingsError
from fenchel.common.objectives.linear import LinearObjective
from fenchel.common.objectives.losses import Squared
from fenchel.deploy.launch.fork_server import ForkServer
from tests.messages import raises

RNG = np.random.default_rng(2)
X = RNG.normal(1.0, 2.0, size=(120, 4))
SCORE = (X - 1) @ [1.0, -1.0, 0.5, 2.0]
Y = np.where(SCORE > 0, "well", "ill")


@pytest.fixture(scope="module")
def kept() -> Iterator[Callable[[Sequence[str]], Any]]:
    """Something in place of a ``ForkServer`` that leaves all forks to one, which would be started for each run."""
    with ForkServer() as shared:

        class Kept(nullcontext[Any]):
            def __init__(self, modules: Sequence[str] = ()) -> None:
                super().__init__(self)
                self.start = shared.start

        yield Kept


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.SkipTestWarning")
@pytest.mark.parametrize(
    "estimator",
    [
        fenchel.FederatedClassifier(random_state=0),
        fenchel.FederatedRegressor(random_state=0),
        *(
            pytest.param(
                kind(random_state=0, in_process=False, clients=2),
                marks=[pytest.mark.cluster, pytest.mark.timeout(1800)],
            )
            for kind in (fenchel.FederatedClassifier, fenchel.FederatedRegressor)
        ),
    ],
    ids=["classifier", "regressor", "classifier on real processes", "regressor on real processes"],
)
def test_scikit_learn_accepts_them(estimator: Any, kept: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fenchel.estimators.up", partial(fenchel.up, processes=1))  # it fits some 170 times
    monkeypatch.setattr("fenchel.deploy.launch.launchers.local.ForkServer", kept)
    results = check_estimator(estimator, on_fail=None)
    assert [each["check_name"] for each in results if each["status"] == "failed"] == []
    assert sum(each["status"] == "passed" for each in results) > 50


def test_a_classifier_is_the_run_that_its_settings_describe(tmp_path: Path) -> None:
    classifier = fenchel.FederatedClassifier(clients=3, rounds=5, runs=tmp_path, random_state=3).fit(X, Y)
    assert classifier.classes_.tolist() == ["ill", "well"]
    assert classifier.run_ is not None
    settings = classifier.run_.settings
    assert (settings.clients, settings.rounds, settings.data.holdout) == (3, 5, 0.0)
    again = fenchel.up(settings, in_process=True, runs=tmp_path)
    assert again.model.tobytes() == classifier.run_.model.tobytes()
    assert (classifier.predict(X) == np.where(again.predict(X) == 1, "well", "ill")).all()
    np.testing.assert_allclose(classifier.predict_proba(X), again.predict_proba(X))
    assert classifier.score(X, Y) > 0.9


def test_no_run_folder_is_left_and_the_estimator_can_be_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    classifier = fenchel.FederatedClassifier(rounds=2, random_state=0).fit(X, Y)
    assert classifier.run_ is None
    assert list(tmp_path.iterdir()) == []
    again = pickle.loads(pickle.dumps(classifier))
    assert (again.predict(X) == classifier.predict(X)).all()


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numbers overflow
@pytest.mark.parametrize("is_kept", [True, False])
def test_only_a_run_whose_folder_is_kept_can_be_resumed(is_kept: bool, tmp_path: Path) -> None:
    diverging = fenchel.FederatedRegressor(algorithm={"step_size": 1e5}, runs=tmp_path if is_kept else None)
    with raises(fenchel.FenchelError, diverged=True) as caught:
        diverging.fit(X, SCORE)
    assert len(getattr(caught.value, "__notes__", ())) == is_kept


def test_groups_say_who_holds_a_sample(tmp_path: Path) -> None:
    groups = np.array(["north", "south"])[(X[:, 0] > 1).astype(int)]
    classifier = fenchel.FederatedClassifier(rounds=2, runs=tmp_path).fit(X, Y, groups=groups)
    assert classifier.run_ is not None
    held = [shard.samples for _, shard in sorted(classifier.run_.shards.items())]
    assert held == [np.count_nonzero(groups == name) for name in ("north", "south")]


@pytest.mark.parametrize(
    "groups",
    [
        np.arange(120) % 2 == 1,
        (np.arange(120) % 2).astype(np.float32),
        [2, 1.0] * 60,
        np.array([1, 2] * 60, object),
        np.array(["a", "b"] * 60, object),
    ],
    ids=["booleans", "floats", "list", "objects", "strings"],
)
def test_groups_may_be_of_any_type_of_names_and_whole_numbers(groups: Any, tmp_path: Path) -> None:
    classifier = fenchel.FederatedClassifier(rounds=1, runs=tmp_path).fit(X, Y, groups=groups)
    assert classifier.run_ is not None
    assert [shard.samples for shard in classifier.run_.shards.values()] == [60, 60]


@pytest.mark.parametrize(
    "groups",
    [
        np.array([1, "a"] * 60, object),
        [1, "1"] * 60,
        [1.5, 2] * 60,
        np.array([1, np.nan] * 60),
        np.array([1, np.inf] * 60),
        ["a", None] * 60,
        [1, 1 << 63] * 60,
        [[1], [2]] * 60,
        [1, 2] * 10,
        "hospital",
    ],
)
def test_other_groups_are_refused(groups: Any) -> None:
    with pytest.raises(ValueError, match=r"^groups"):
        fenchel.FederatedClassifier(rounds=1).fit(X, Y, groups=groups)


def test_further_data_settings_leave_those_of_the_parameters(tmp_path: Path) -> None:
    groups = np.repeat(["north", "south"], [100, 20])
    classifier = fenchel.FederatedClassifier(
        rounds=1, scale="unit-rows", bias=2.0, settings={"data": {"holdout": 0.25}}, runs=tmp_path
    ).fit(X, Y, groups=groups)
    assert classifier.run_ is not None
    settings = classifier.run_.settings
    data = settings.data
    assert (settings.clients, data.holdout, data.scale, data.bias, data.test_fraction) == (2, 0.25, "unit-rows", 2, 0)
    assert data.partition.kind == "column"


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({"data": {"partition": {"kind": "iid"}}}, "settings.data.partition"),
        ({"data": {"bias": None}}, "settings.data.bias"),
        ({"data": {"task": "regression"}}, "settings.data.task"),
        ({"data": {"classes": [1, 0]}}, "settings.data.classes"),
        ({"data": {"file": "other.csv"}}, "settings.data.file"),
        ({"data": "digits"}, "settings.data"),
        ({"objective": {"kind": "binary", "positive": [0]}}, "settings.objective"),
        ({"rounds": 1}, "settings.rounds"),
        ({"seed": 1}, "settings.seed"),
    ],
)
def test_settings_of_which_the_estimator_has_a_parameter_are_refused(settings: dict[str, Any], key: str) -> None:
    with raises(SettingsError, key=key):
        fenchel.FederatedClassifier(settings=settings).fit(X, Y)


def test_they_work_in_pipelines_searches_and_cross_validation() -> None:
    iris, species = load_iris(return_X_y=True)
    classifier = fenchel.FederatedClassifier(random_state=0, scale="none")
    assert cross_val_score(make_pipeline(StandardScaler(), classifier), iris, species, cv=3).mean() > 0.9
    search = GridSearchCV(fenchel.FederatedClassifier(random_state=0), {"rounds": [1, 10]}, cv=2).fit(iris, species)
    assert search.best_params_ == {"rounds": 10}


@pytest.mark.parametrize("objective", [{"kind": "hinge", "l2": 0.01}, {"kind": "softmax"}, {"kind": "binary"}])
def test_any_objective_and_algorithm_can_be_given(objective: dict[str, Any]) -> None:
    algorithm = {"name": "scaffold", "local_steps": 5, "step_size": 0.1}
    classifier = fenchel.FederatedClassifier(objective=objective, algorithm=algorithm, random_state=0).fit(X, Y)
    assert classifier.score(X, Y) > 0.85
    assert classifier.decision_function(X).shape == (120,)


@pytest.mark.parametrize("positive", [[0], [1]])
def test_the_positive_class_may_be_either_of_two(positive: list[int]) -> None:
    objective = {"kind": "binary", "positive": positive}
    classifier = fenchel.FederatedClassifier(objective=objective, random_state=0).fit(X, Y)
    assert classifier.score(X, Y) > 0.9
    scores, chances = classifier.decision_function(X), classifier.predict_proba(X)
    assert (classifier.predict(X) == np.where(scores > 0, "well", "ill")).all()
    np.testing.assert_allclose(chances[:, 1], 1 / (1 + np.exp(-scores)), rtol=1e-4)


def test_the_squared_loss_classifies() -> None:
    classifier = fenchel.FederatedClassifier(objective={"kind": "squared"}, random_state=0).fit(X, Y)
    assert classifier.score(X, Y) > 0.9
    with raises(SettingsError):
        classifier.predict_proba(X)


@pytest.mark.parametrize(
    "objective", [{"kind": "binary", "positive": [2]}, {"kind": "binary"}, {"kind": "squared"}, {"kind": "hinge"}]
)
def test_an_objective_for_two_classes_is_refused_for_three(objective: dict[str, Any]) -> None:
    with raises(SettingsError, key="objective.kind"):
        fenchel.FederatedClassifier(objective=objective).fit(X, np.digitize(X[:, 0], [0, 2]))


def test_an_error_of_the_data_names_the_arguments_and_no_deleted_file(tmp_path: Path) -> None:
    given: dict[str, Any] = {"data": {"samples": 10 * len(Y)}}
    with pytest.raises(DataError, match=r"^X and y: data\.samples") as caught:
        fenchel.FederatedClassifier(settings=given).fit(X, Y)
    assert caught.value.source == "X and y"
    with pytest.raises(DataError) as caught:
        fenchel.FederatedClassifier(settings=given, runs=tmp_path).fit(X, Y)
    assert caught.value.source == "X and y"


@pytest.mark.parametrize("name", ["rounds", "clients"])
@pytest.mark.parametrize("value", [2.7, "2"])
def test_a_number_that_is_no_integer_is_refused(name: str, value: Any) -> None:
    with pytest.raises(TypeError, match=f"{name} must be an instance of int, not {type(value).__name__}"):
        fenchel.FederatedClassifier(**{name: value}).fit(X, Y)


def test_a_regressor_refuses_an_objective_for_classes() -> None:
    with raises(SettingsError, key="objective.kind"):
        fenchel.FederatedRegressor(objective={"kind": "logistic"}).fit(X, SCORE)


class OneScore(LinearObjective):
    """Objective of one score for any number of classes."""

    def __init__(self, shard: Shard, l2: float, dtype: Any) -> None:
        ordinal = replace(shard, labels=shard.labels.astype(np.float64), classes=0)
        super().__init__(Squared(), ordinal, l2=l2, dtype=dtype)


def test_a_score_that_does_not_tell_three_classes_is_refused() -> None:
    objective = {"kind": "own", "name": f"{__name__}:OneScore"}
    classifier = fenchel.FederatedClassifier(objective=objective, rounds=1).fit(X, np.digitize(X[:, 0], [0, 2]))
    with raises(SettingsError, key="objective"):
        classifier.predict(X)


def test_searches_try_settings_of_sections(tmp_path: Path) -> None:
    grid = {
        "algorithm__step_size": np.array([0.01, 0.3]),
        "objective__l2": [0.001],
        "algorithm__local_epochs": np.arange(1, 2),
        "settings__participation__min_replies": [2],
    }
    search = GridSearchCV(fenchel.FederatedClassifier(rounds=3, random_state=0, runs=tmp_path), grid, cv=2)
    best = search.fit(X, Y).best_estimator_
    chosen = {"step_size": search.best_params_["algorithm__step_size"], "local_epochs": 1}
    assert best.algorithm == chosen
    settings = best.run_.settings
    assert settings.algorithm.model_dump()["name"] == "fedavg"
    assert settings.algorithm.model_dump() | chosen == settings.algorithm.model_dump()
    assert (settings.objective.l2, settings.participation.min_replies) == (0.001, 2)
    steps = fenchel.FederatedClassifier(rounds=2, runs=tmp_path).set_params(algorithm__local_steps=3).fit(X, Y)
    assert steps.run_ is not None
    assert steps.run_.settings.algorithm.model_dump()["local_steps"] == 3
    named = fenchel.FederatedClassifier(algorithm="scaffold").set_params(algorithm__local_steps=2, rounds=4)
    assert (named.algorithm, named.rounds) == ({"name": "scaffold", "local_steps": 2}, 4)
    with pytest.raises(ValueError, match="Invalid parameter 'step_size'"):
        named.set_params(step_size=1)


def test_sparse_samples_are_taken() -> None:
    sparse = sp.csr_array(X * (np.abs(X) > 1))
    assert fenchel.FederatedClassifier(random_state=0).fit(sparse, Y).score(sparse, Y) > 0.7


def test_a_regression_comes_close_to_least_squares() -> None:
    target = 1000 + 50 * SCORE
    regressor = fenchel.FederatedRegressor(rounds=40, random_state=0).fit(X, target)
    exact = LinearRegression().fit(X, target)
    np.testing.assert_allclose(regressor.predict(X), exact.predict(X), rtol=1e-2)


def test_without_scikit_learn_they_say_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "sklearn"]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delitem(sys.modules, "fenchel.estimators", raising=False)
    monkeypatch.delitem(vars(fenchel), "FederatedClassifier", raising=False)
    with raises(MissingDependencyError):
        _ = fenchel.FederatedClassifier


def test_targets_without_a_finite_variance_are_refused() -> None:
    features = np.arange(8.0).reshape(4, 2)
    with pytest.raises(ValueError, match="scale y down"):
        fenchel.FederatedRegressor(rounds=1).fit(features, features[:, 0] * 1e300)
