"""The model as an object of scikit-learn, PyTorch and ONNX: each says of samples what the run itself says."""

from __future__ import annotations

import pickle
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp

import fenchel
from fenchel.common.errors import MissingDependencyError, SettingsError
from tests.messages import raises

RNG = np.random.default_rng(7)
X = RNG.normal(2.0, 3.0, size=(90, 5))
SCORE = (X - 2) @ [1.0, -2.0, 0.5, 0.0, 1.0]
TWO = np.where(SCORE > 0, "well", "ill")
THREE = np.digitize(SCORE, [-2, 2])
IMAGES = RNG.integers(0, 256, (60, 8, 8), np.uint8)
FEDAVG = {"name": "fedavg", "step_size": 0.1, "local_epochs": 2, "batch_size": 8}
PREPARED = {"scale": ["standard", "unit-rows"], "bias": 1.0}

LINEAR = [
    pytest.param((X, TWO), {"kind": "logistic"}, PREPARED, id="logistic"),
    pytest.param((X, TWO), {"kind": "hinge", "l2": 0.01}, {"scale": "unit-interval"}, id="hinge"),
    pytest.param((X, TWO), {"kind": "squared"}, {}, id="squared, two classes"),
    pytest.param((X, TWO), {"kind": "softmax"}, PREPARED, id="softmax, two classes"),
    pytest.param((X, THREE), {"kind": "softmax", "dtype": "float32"}, PREPARED, id="softmax"),
    pytest.param((X, THREE), {"kind": "one-sided-logistic"}, {"scale": "standard"}, id="one-sided"),
    pytest.param((X, SCORE), {"kind": "squared"}, PREPARED | {"task": "regression"}, id="regression"),
    pytest.param((X, THREE), {"kind": "binary", "positive": [0, 2]}, {"scale": "standard"}, id="binary"),
    pytest.param((IMAGES, IMAGES.mean((1, 2)) > 127), {"kind": "logistic"}, {"scale": "unit-interval"}, id="images"),
]
NETWORKS = [
    pytest.param((X, THREE), {"kind": "mlp"}, PREPARED, id="mlp"),
    pytest.param((IMAGES, IMAGES.mean((1, 2)) > 127), {"kind": "cnn"}, {"scale": "unit-interval"}, id="cnn"),
    pytest.param((X, TWO), {"kind": "binary", "scorer": {"kind": "mlp"}}, PREPARED, id="scorer"),
]


def run_of(folder: Path, given: Any, objective: Any, prepared: Any) -> fenchel.Run:
    settings = {"rounds": 3, "clients": 2, "data": prepared, "objective": objective, "algorithm": FEDAVG}
    return fenchel.up(settings, data=given, in_process=True, runs=folder)


def test_a_pipeline_of_scores_for_ranking_offers_no_probabilities(tmp_path: Path) -> None:
    settings = {
        "rounds": 2,
        "clients": 2,
        "objective": {"kind": "binary", "positive": [1]},
        "algorithm": {"name": "codasca", "local_steps": 4, "step_size": 0.05},
    }
    run = fenchel.up(settings, data=(X, TWO), in_process=True, runs=tmp_path)
    assert run.decision_function(X).shape == (90,)
    with raises(SettingsError):
        run.predict_proba(X)
    pipeline = run.model_for("sklearn")
    assert not hasattr(pipeline, "predict_proba")
    np.testing.assert_allclose(pipeline.decision_function(X), run.decision_function(X), atol=1e-6)
    assert (pipeline.predict(X) == run.predict(X)).mean() == pytest.approx(1, abs=0.02)


@pytest.mark.parametrize(("given", "objective", "prepared"), LINEAR)
def test_a_pipeline_of_scikit_learn_says_the_same(given: Any, objective: Any, prepared: Any, tmp_path: Path) -> None:
    run = run_of(tmp_path, given, objective, prepared)
    samples = given[0].reshape(len(given[0]), -1)
    pipeline = pickle.loads(pickle.dumps(run.model_for("sklearn")))
    if prepared.get("task") == "regression":
        np.testing.assert_allclose(pipeline.predict(samples), run.predict(samples), rtol=1e-6)
        return
    assert (pipeline.predict(samples) == run.predict(given[0])).mean() == pytest.approx(1, abs=0.02)  # but for ties
    if objective["kind"] in ("logistic", "softmax", "binary"):
        np.testing.assert_allclose(pipeline.predict_proba(samples), run.predict_proba(given[0]), atol=1e-6)


def test_a_pipeline_takes_sparse_samples_as_the_run_does(tmp_path: Path) -> None:
    samples = sp.csr_array(np.abs(X) * (X > 1))
    run = run_of(tmp_path, (samples, TWO), {"kind": "logistic"}, {"scale": ["unit-interval", "unit-rows"], "bias": 1.0})
    pipeline = run.model_for("sklearn")
    np.testing.assert_allclose(pipeline.predict_proba(samples), run.predict_proba(samples), atol=1e-6)


def test_a_pipeline_knows_the_names_of_its_columns(tmp_path: Path) -> None:
    frame = pd.DataFrame(X, columns=list("abcde"))
    run = run_of(tmp_path, (frame, TWO), {"kind": "logistic"}, PREPARED)
    pipeline = run.model_for("sklearn")
    assert pipeline.feature_names_in_.tolist() == list("abcde")
    assert (pipeline.predict(frame) == run.predict(frame)).all()
    with pytest.raises(ValueError, match="feature names"):
        pipeline.predict(frame[list("edcba")])


@pytest.mark.parametrize(("given", "objective", "prepared"), [*LINEAR, *NETWORKS])
def test_a_module_of_pytorch_has_the_same_scores(given: Any, objective: Any, prepared: Any, tmp_path: Path) -> None:
    torch: Any = pytest.importorskip("torch")
    run = run_of(tmp_path, given, objective, prepared)
    module = run.model_for("torch")
    samples = given[0].reshape(len(given[0]), -1).astype(run.model.dtype)
    with torch.no_grad():
        outputs = module(torch.from_numpy(samples)).numpy()
    np.testing.assert_allclose(outputs, run.decision_function(given[0]), rtol=1e-4, atol=1e-5)
    assert not module.training


@pytest.mark.slow
@pytest.mark.parametrize(("given", "objective", "prepared"), [LINEAR[0], *NETWORKS])
def test_a_graph_of_onnx_has_the_same_scores(given: Any, objective: Any, prepared: Any, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    runtime: Any = pytest.importorskip("onnxruntime")
    run = run_of(tmp_path, given, objective, prepared)
    session = runtime.InferenceSession(run.model_for("onnx").SerializeToString())
    samples = given[0].reshape(len(given[0]), -1).astype(run.model.dtype)
    for some in (samples, samples[:1]):
        (scores,) = session.run(["scores"], {"samples": some})
        np.testing.assert_allclose(scores, run.decision_function(given[0])[: len(some)], rtol=1e-4, atol=1e-5)


def test_a_module_of_ones_own_comes_back_trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch: Any = pytest.importorskip("torch")
    nn = torch.nn
    network = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(72, 2))
    described = fenchel.TorchObjective(network, nn.CrossEntropyLoss(), shape=(1, 8, 8))
    monkeypatch.setattr(sys.modules[__name__], "described", described, raising=False)
    objective = {"kind": "own", "name": f"{__name__}:described", "dtype": "float32"}
    monkeypatch.setitem(sys.modules, __name__, sys.modules[__name__])
    run = run_of(tmp_path, (IMAGES, IMAGES.mean((1, 2)) > 127), objective, {"scale": "unit-interval"})
    outputs = run.model_for("torch")(torch.tensor(IMAGES.reshape(60, -1), dtype=torch.float32)).detach().numpy()
    np.testing.assert_allclose(outputs, run.decision_function(IMAGES), rtol=1e-4, atol=1e-5)


def test_what_another_library_cannot_hold_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = run_of(tmp_path, (X, TWO), {"kind": "logistic"}, {})
    with raises(SettingsError, key="library"):
        run.model_for("keras")  # type: ignore[arg-type]
    halves = [(IMAGES[:30], IMAGES[:30].mean((1, 2)) > 127), (IMAGES[30:], IMAGES[30:].mean((1, 2)) > 127)]
    own = run_of(tmp_path, halves, {"kind": "logistic"}, {"scale": "unit-interval"})
    with raises(SettingsError, key="data.scale"):
        own.model_for("sklearn")
    for library in ("sklearn", "torch"):
        monkeypatch.setitem(sys.modules, library, None)
        monkeypatch.delitem(sys.modules, "fenchel.common.objectives.networks.exported", raising=False)
        with raises(MissingDependencyError):
            run.model_for(library)


def test_a_linear_model_for_onnx_without_torch_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = run_of(tmp_path, (X, TWO), {"kind": "logistic"}, {})
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.delitem(sys.modules, "fenchel.common.objectives.networks.exported", raising=False)
    with raises(MissingDependencyError) as refusal:
        run.model_for("onnx")
    assert refusal.value.problem.endswith("'fenchel[torch]'")
