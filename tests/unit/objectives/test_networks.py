"""Networks behind the interface of objectives."""

from __future__ import annotations

import hashlib
import math
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fenchel.common.errors import DataError, SettingsError
from fenchel.common.objectives.binary import BinaryObjective
from fenchel.common.objectives.factory import dimension_of, initial_model
from fenchel.common.objectives.metrics import Metrics
from fenchel.common.objectives.objective import Objective
from fenchel.common.settings.objective import ObjectiveSettings
from tests.messages import raises
from tests.unit.objectives.problems import ADAPTER, clipped_by_a_loop, make_objective, make_shard

torch = pytest.importorskip("torch")

ROOT = Path(__file__).parents[3]
both = pytest.mark.parametrize("kind", ["mlp", "cnn"])


def section(**keys: Any) -> ObjectiveSettings:
    return ADAPTER.validate_python(keys)


@both
@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
def test_the_gradient_equals_finite_differences_in_float64(kind: str, sparse: bool) -> None:
    shard = make_shard(6, 64, 3, seed=1, sparse=sparse)
    objective = make_objective(shard, kind=kind, l2=0.1, dtype="float64")
    w, draw, h = objective.initial(2), np.random.default_rng(3), 1e-6
    gradient = objective.gradient(w)
    for _ in range(5):
        u = draw.standard_normal(w.size)
        u /= np.linalg.norm(u)
        slope = (objective.value(w + h * u) - objective.value(w - h * u)) / (2 * h)
        assert gradient @ u == pytest.approx(slope, abs=1e-7)


def test_the_mlp_computes_what_its_formula_says() -> None:
    shard = make_shard(7, 5, 3, seed=4)
    objective = make_objective(shard, kind="mlp", hidden=4, dtype="float64")
    w = objective.initial(5)
    first, second = w[:20].reshape(4, 5), w[20:].reshape(3, 4)
    scores = np.maximum(np.asarray(shard.features) @ first.T, 0) @ second.T
    losses = np.log(np.exp(scores).sum(axis=1)) - scores[np.arange(7), shard.labels]
    assert objective.loss(w) == pytest.approx(losses.mean(), rel=1e-12)
    assert objective.evaluate(w).correct == np.count_nonzero(scores.argmax(axis=1) == shard.labels)


def test_biases_and_weights_are_drawn_within_the_bounds_of_their_layer() -> None:
    start = initial_model(section(kind="cnn", dtype="float64"), 784, 10, seed=1)
    sizes = [144, 16, 4608, 32, 784_000, 500, 5000, 10]
    inputs = [9, 9, 144, 144, 1568, 1568, 500, 500]
    for piece, count in zip(np.split(start, np.cumsum(sizes)[:-1]), inputs, strict=True):
        bound = 1 / math.sqrt(count)
        assert 0.6 * bound < np.abs(piece).max() <= bound


@pytest.mark.slow
def test_a_fresh_process_draws_the_same_initial_model() -> None:
    code = (
        "import hashlib; from pydantic import TypeAdapter\n"
        "from fenchel.common.settings.objective import ObjectiveSettings\n"
        "from fenchel.common.objectives.factory import initial_model\n"
        "settings = TypeAdapter(ObjectiveSettings).validate_python({'kind': 'cnn'})\n"
        "print(hashlib.sha256(initial_model(settings, 784, 10, 7).tobytes()).hexdigest())"
    )
    fresh = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, cwd=ROOT)
    here = hashlib.sha256(initial_model(section(kind="cnn"), 784, 10, 7).tobytes()).hexdigest()
    assert fresh.stdout.strip() == here


@both
def test_seeds_differ_and_torchs_own_random_numbers_stay_untouched(kind: str) -> None:
    before = torch.random.get_rng_state()
    one, other = (initial_model(section(kind=kind), 64, 3, seed) for seed in (1, 2))
    assert not np.array_equal(one, other)
    assert one.dtype == np.float32
    assert torch.equal(torch.random.get_rng_state(), before)


@both
def test_equal_input_gives_equal_bits_and_is_not_changed(kind: str) -> None:
    shard = make_shard(40, 64, 3, seed=6)
    one, other = (make_objective(shard, kind=kind, l2=0.1) for _ in range(2))
    w = one.initial(7)
    w.setflags(write=False)
    rows = np.array([5, 3, 3, 30])
    gradient = one.batch_gradient(w, rows)
    assert gradient.dtype == np.float32
    np.testing.assert_array_equal(gradient, other.batch_gradient(w, rows))
    gradient[:] = 0
    assert np.any(one.batch_gradient(w, rows))
    assert one.evaluate(w) == other.evaluate(w)


@both
def test_many_samples_go_through_a_network_in_pieces(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    shard = make_shard(11, 64, 3, seed=8)
    objective = make_objective(shard, kind=kind, l2=0.1, dtype="float64")
    w = objective.initial(9)
    at_once = objective.gradient(w), objective.evaluate(w)
    monkeypatch.setattr("fenchel.common.objectives.networks.flat.CHUNK", 4)
    objective = make_objective(shard, kind=kind, l2=0.1, dtype="float64")
    in_pieces = objective.gradient(w), objective.evaluate(w)
    np.testing.assert_allclose(in_pieces[0], at_once[0], atol=1e-14)
    assert in_pieces[1].correct == at_once[1].correct
    assert in_pieces[1].loss == pytest.approx(at_once[1].loss, rel=1e-13)


@both
def test_a_network_without_samples_evaluates_other_shards_but_has_no_gradient(kind: str) -> None:
    full = make_shard(5, 64, 3)
    empty = replace(full, features=full.features[:0], labels=full.labels[:0], samples_held=full.samples_held[:0])
    objective = make_objective(empty, kind=kind)
    w = objective.initial(1)
    assert objective.evaluate(w) == Metrics(0.0, 0, 0)
    assert objective.evaluate(w, full) == make_objective(full, kind=kind).evaluate(w)
    for ask in (objective.loss, objective.gradient):
        with raises(DataError):
            ask(w)


@both
def test_a_network_refuses_regression_and_names_the_setting(kind: str) -> None:
    with raises(SettingsError, key="objective.kind"):
        make_objective(make_shard(5, 64, 0), kind=kind)


@pytest.mark.parametrize("features", [4, 30, 63])
def test_the_cnn_refuses_what_is_no_square_image(features: int) -> None:
    with raises(SettingsError, key="objective.kind"):
        dimension_of(section(kind="cnn"), features, 10)


@both
def test_networks_clip_as_a_loop_over_samples_does(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    shard = make_shard(9, 64, 3, seed=1)
    whole = make_objective(shard, kind=kind, l2=0.1, dtype="float64")
    bare = make_objective(shard, kind=kind, dtype="float64")
    monkeypatch.setattr("fenchel.common.objectives.networks.objective.GRADIENTS", 2 * whole.dimension)  # chunks of two
    w, rows = whole.initial(2), np.arange(9)
    bound = float(np.median([np.linalg.norm(bare.batch_gradient(w, np.array([row]))) for row in rows]))
    wanted, clipped = clipped_by_a_loop(bare, whole, w, rows, bound)
    assert 0 < clipped < 9
    np.testing.assert_allclose(whole.clipped_gradient(w, rows, bound), wanted, atol=1e-12)
    np.testing.assert_allclose(whole.clipped_gradient(w, rows, 1e6), whole.gradient(w), atol=1e-12)


# Devices

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU here")
SCORERS: tuple[dict[str, Any], ...] = ({"kind": "mlp"}, {"kind": "cnn"}, {"kind": "resnet20"}, {"kind": "densenet121"})


@pytest.mark.skipif(torch.cuda.is_available(), reason="here is a GPU")
def test_a_gpu_that_is_not_there_is_refused_and_auto_does_without() -> None:
    shard = make_shard(8, 64, 2, seed=1)
    sections: tuple[dict[str, Any], ...] = (
        {"kind": "mlp"},
        {"kind": "cnn"},
        {"kind": "binary", "scorer": {"kind": "mlp"}},
    )
    for keys in sections:
        with raises(SettingsError, key="objective.device"):
            make_objective(shard, **keys, device="cuda")
        here, automatic = (make_objective(shard, **keys, device=device) for device in ("cpu", "auto"))
        w = here.initial(2)
        np.testing.assert_array_equal(automatic.gradient(w), here.gradient(w))


@needs_cuda
@both
def test_a_gpu_computes_what_the_cpu_does(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    monkeypatch.setattr("fenchel.common.objectives.networks.flat.CHUNK", 16)
    shard = make_shard(40, 784, 10, seed=3, sparse=True)
    here, there = (make_objective(shard, kind=kind, l2=0.1, device=device) for device in ("cpu", "cuda"))
    w, rows = here.initial(4), np.arange(30)
    np.testing.assert_array_equal(there.initial(4), w)
    computations: tuple[Callable[[Objective], Any], ...] = (
        lambda f: f.batch_gradient(w, rows),
        lambda f: f.clipped_gradient(w, rows, 0.3),
        lambda f: np.array([f.loss(w), f.batch_loss(w, rows), f.evaluate(w).loss]),
    )
    for compute in computations:
        expected, found = compute(here), compute(there)
        assert isinstance(found, np.ndarray)
        assert np.linalg.norm(found - expected) < 1e-4 * np.linalg.norm(expected)
        np.testing.assert_array_equal(compute(there), found)


@needs_cuda
@pytest.mark.parametrize("scorer", SCORERS, ids=lambda scorer: scorer["kind"])
@pytest.mark.parametrize("chunk", [16, 1024])
def test_a_gpu_differentiates_the_min_max_function_as_the_cpu_does(
    monkeypatch: pytest.MonkeyPatch, scorer: dict[str, Any], chunk: int
) -> None:
    monkeypatch.setattr("fenchel.common.objectives.networks.flat.CHUNK", chunk)
    shard = make_shard(40, 32 * 32, 2, seed=5)
    here, there = (
        make_objective(shard, kind="binary", scorer=scorer, output="sigmoid", device=device)
        for device in ("cpu", "cuda")
    )
    assert isinstance(here, BinaryObjective)
    assert isinstance(there, BinaryObjective)
    u, rows = np.append(here.initial(6), np.array([0.3, 0.1, -0.5], np.float32)), np.arange(32)
    value, g = there.saddle_gradient(u, rows, 0.3)
    expected_value, expected = here.saddle_gradient(u, rows, 0.3)
    assert value == pytest.approx(expected_value, rel=1e-4)
    assert g.dtype == np.float32
    assert np.linalg.norm(g - expected) < 1e-3 * np.linalg.norm(expected)
    np.testing.assert_array_equal(there.saddle_gradient(u, rows, 0.3)[1], g)
    np.testing.assert_allclose(there.scores(u[:-3], rows)[0], here.scores(u[:-3], rows)[0], rtol=1e-3, atol=1e-4)
