"""The final model of a run on new samples: the classes of the run's own evaluation, for every objective."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from scipy.special import expit

import fenchel
from fenchel.common.data.source import DataSource
from fenchel.common.objectives.linear import LinearObjective
from fenchel.common.objectives.objective import Objective
from tests.messages import raises

RNG = np.random.default_rng(5)
X = RNG.normal(2.0, 3.0, size=(120, 6))
SCORE = (X - 2) @ [1.0, -2.0, 0.5, 0.0, 1.0, -1.0]
IMAGES = RNG.integers(0, 256, (90, 8, 8), np.uint8)
BRIGHT = IMAGES.reshape(90, -1).mean(axis=1)
THREE = np.digitize(SCORE, [-2, 2])
FEDAVG = {"name": "fedavg", "step_size": 0.1, "local_epochs": 2, "batch_size": 8}


def run_of(folder: Path, given: Any, objective: dict[str, Any], **sections: Any) -> fenchel.Run:
    settings = {"rounds": 4, "clients": 2, "objective": objective, "algorithm": FEDAVG} | sections
    return fenchel.up(settings, data=given, in_process=True, runs=folder)


def held_out(run: fenchel.Run) -> tuple[Any, Any]:
    """Return the run's test set as it was stored, and its class numbers."""
    source = DataSource.open(run.settings.data, run.settings.seed, run.settings.positive)
    assert source._test is not None
    return source._test.features, source._test.labels


@pytest.mark.parametrize(
    ("data", "objective", "prepared"),
    [
        ((X, SCORE > 0), {"kind": "logistic"}, {"scale": ["standard", "unit-rows"], "bias": 1.0}),
        ((X, SCORE > 0), {"kind": "hinge", "l2": 0.01}, {"scale": "unit-interval"}),
        ((X, SCORE > 0), {"kind": "squared"}, {"bias": 0.5}),
        ((sp.csr_array(X * (np.abs(X) > 2)), SCORE > 0), {"kind": "smoothed-hinge"}, {"scale": "unit-rows"}),
        ((X, THREE), {"kind": "softmax", "dtype": "float32"}, {"scale": "standard", "bias": 1.0}),
        ((X, THREE), {"kind": "one-sided-logistic"}, {"scale": "standard"}),
        ((X, THREE), {"kind": "softmax"}, {"scale": "standard", "binarise": {"positive": [0, 2]}}),
        ((IMAGES, BRIGHT > 127), {"kind": "logistic"}, {"scale": "unit-interval"}),
        ((X, THREE), {"kind": "binary", "positive": [0, 2]}, {"scale": "standard"}),
    ],
)
def test_it_is_as_accurate_as_the_run_says(data: Any, objective: Any, prepared: Any, tmp_path: Path) -> None:
    run = run_of(tmp_path, data, objective, data=prepared | {"test_fraction": 0.25})
    features, labels = held_out(run)
    if objective["kind"] == "binary":
        labels = np.isin(labels, objective["positive"]).astype(np.int64)
    classes = run.predictor.classes
    assert classes is not None
    assert np.mean(run.predict(features) == classes[labels]) == pytest.approx(run.figures["test_accuracy"])


def test_networks_predict_too(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    run = run_of(tmp_path, (X, THREE), {"kind": "mlp"}, data={"scale": "standard"})
    features, labels = held_out(run)
    assert np.mean(run.predict(features) == labels) == pytest.approx(run.figures["test_accuracy"])
    probabilities = run.predict_proba(features)
    np.testing.assert_allclose(probabilities.sum(axis=1), 1, rtol=1e-6)
    assert (probabilities.argmax(axis=1) == run.predict(features)).all()
    assert run.predict(X[:0]).shape == (0,)


def test_regression_predicts_numbers(tmp_path: Path) -> None:
    run = run_of(tmp_path, (X, SCORE), {"kind": "squared"}, data={"task": "regression", "scale": "standard"})
    features, labels = held_out(run)
    loss = np.mean((run.predict(features) - labels) ** 2) / 2
    assert loss == pytest.approx(run.figures["test_loss"])
    with raises(fenchel.SettingsError):
        run.predict_proba(features)


def test_probabilities_are_those_of_the_loss(tmp_path: Path) -> None:
    run = run_of(tmp_path, (X, np.where(SCORE > 0, "well", "ill")), {"kind": "logistic"})
    scores = X @ run.model
    np.testing.assert_allclose(run.decision_function(X), scores)
    np.testing.assert_allclose(run.predict_proba(X), np.stack([expit(-scores), expit(scores)], axis=1))
    assert run.predict(X).tolist() == np.where(scores > 0, "well", "ill").tolist()
    hinge = run_of(tmp_path, (X, SCORE > 0), {"kind": "hinge", "l2": 0.1})
    with raises(fenchel.SettingsError):
        hinge.predict_proba(X)


def test_an_objective_without_scores_is_not_told_to_use_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = run_of(tmp_path, (X, SCORE > 0), {"kind": "logistic"})
    monkeypatch.setattr(LinearObjective, "decision_function", Objective.decision_function)
    with pytest.raises(fenchel.SettingsError) as refused:
        run.predict(X)
    assert not str(refused.value).endswith("use decision_function")


def test_columns_of_a_table_are_found_by_their_names(tmp_path: Path) -> None:
    names = list("abcdef")
    frame = pd.DataFrame(X, columns=names).assign(outcome=SCORE > 0)
    run = run_of(tmp_path, frame, {"kind": "logistic"}, data={"label": "outcome", "scale": "standard"})
    wanted = run.predict(X)
    assert (run.predict(frame[["outcome", *reversed(names)]]) == wanted).all()
    assert (run.predict(X.tolist()) == wanted).all()
    assert (run.predict(sp.csr_array(X)) == wanted).all()
    with raises(fenchel.DataError, source="X"):
        run.predict(frame[["a", "b"]])


def test_clients_with_data_of_their_own_leave_a_model_that_predicts(tmp_path: Path) -> None:
    parts = [(X[:60], SCORE[:60] > 0), (X[60:], SCORE[60:] > 0)]
    run = run_of(tmp_path, parts, {"kind": "logistic"}, data={"scale": "unit-rows", "bias": 1.0})
    assert np.mean(run.predict(X) == (SCORE > 0)) == pytest.approx(run.figures["train_accuracy"])
    pixels = [(IMAGES[:45], BRIGHT[:45] > 127), (IMAGES[45:], BRIGHT[45:] > 127)]
    run = run_of(tmp_path, pixels, {"kind": "logistic"}, data={"scale": "unit-interval"})
    assert np.mean(run.predict(IMAGES) == (BRIGHT > 127)) == pytest.approx(run.figures["train_accuracy"])
    with raises(fenchel.DataError):  # only clients know by how much pixels were divided
        run.predict(IMAGES.reshape(90, -1).astype(float))


def test_constants_that_suit_all_clients_do_what_standard_does_where_all_is_known(tmp_path: Path) -> None:
    frame = pd.DataFrame(X, columns=list("abcdef")).assign(outcome=SCORE > 0)
    constants = {"mean": dict(zip("abcdef", X.mean(axis=0), strict=True)), "std": X.std(axis=0).tolist()}
    prepared = {"label": None, "scale": ["normalise", "unit-rows"], "normalise": constants}
    run = run_of(tmp_path, [frame[:60], frame[60:]], {"kind": "logistic"}, data=prepared)
    standard = (X - X.mean(axis=0)) / X.std(axis=0)
    scores = standard / np.linalg.norm(standard, axis=1, keepdims=True) @ run.model
    np.testing.assert_allclose(run.decision_function(frame[[*"fedcba"]]), scores)
    np.testing.assert_allclose(run.decision_function(sp.csr_array(X)), scores)
    assert np.mean(run.predict(X) == (SCORE > 0)) == pytest.approx(run.figures["train_accuracy"])
    assert (run.model_for("sklearn").predict(frame[[*"abcdef"]]) == run.predict(X)).mean() > 0.98  # but for ties


def test_constants_of_a_named_data_set_are_part_of_its_preparation(tmp_path: Path) -> None:
    data = {"scale": "normalise", "normalise": {"mean": 2, "std": 3}}
    run = run_of(tmp_path, (X, SCORE > 0), {"kind": "logistic"}, data=data)
    np.testing.assert_allclose(run.decision_function(X), (X - 2) / 3 @ run.model)


def test_samples_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    run = run_of(tmp_path, (X, SCORE > 0), {"kind": "logistic"})
    for wrong in (X[:, :5], X[0], np.full_like(X, np.nan), [["a"] * 6], IMAGES):
        with raises(fenchel.DataError, source="X"):
            run.predict(wrong)


@pytest.mark.parametrize("names", [("01", "1"), ("007", "008"), ("-0", "2")])
def test_class_names_with_leading_zeros_stay_texts(names: tuple[str, str], tmp_path: Path) -> None:
    labels = np.where(SCORE > 0, *names)
    run = run_of(tmp_path, (X, labels), {"kind": "logistic"}, data={"scale": "standard"})
    assert run.predictor.classes is not None
    assert sorted(run.predictor.classes) == sorted(names)
    assert np.mean(run.predict(X) == labels) > 0.8
