"""Any module of PyTorch as an objective: gradients, statistics of batches, dropout, and the same bits again."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from scipy.special import softmax

import fenchel
from fenchel.common.data.shard import Shard
from fenchel.common.errors import MissingDependencyError, SettingsError
from fenchel.common.objectives.factory import build_objective, initial_model
from fenchel.common.settings.objective import ObjectiveSettings
from tests.messages import raises
from tests.unit.objectives.problems import ADAPTER, make_shard

torch = pytest.importorskip("torch")
nn = torch.nn
FEATURES, CLASSES = 6, 3
ALL = np.arange(20)


def mlp(features: int, classes: int) -> Any:
    return nn.Sequential(nn.Linear(features, 5), nn.Tanh(), nn.Linear(5, classes))


def normalised(classes: int) -> Any:
    return nn.Sequential(nn.Linear(FEATURES, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, classes))


def dropping() -> Any:
    return nn.Sequential(nn.Dropout(0.5), nn.Linear(FEATURES, CLASSES))


def objective(module: Any, shard: Shard | None = None, *, loss: Any = None, l2: float = 0.0, **given: Any) -> Any:
    described = fenchel.TorchObjective(module, loss or nn.CrossEntropyLoss(), **given)
    return described(make_shard(20, FEATURES, CLASSES, seed=1) if shard is None else shard, l2=l2, dtype="float64")


def of_torch(module: Any, w: Any, shard: Shard) -> tuple[float, Any]:
    """Return loss and gradient as torch itself computes them in a module that holds the model."""
    torch.nn.utils.vector_to_parameters(torch.tensor(w), module.double().parameters())
    loss = nn.functional.cross_entropy(module(torch.tensor(shard.features)), torch.tensor(shard.labels))
    loss.backward()
    return loss.item(), np.concatenate([value.grad.numpy().ravel() for value in module.parameters()])


def test_loss_and_gradient_are_those_of_torch() -> None:
    shard = make_shard(20, FEATURES, CLASSES, seed=1)
    own = objective(mlp, shard, l2=0.1)
    w = own.initial(3)
    loss, gradient = of_torch(mlp(FEATURES, CLASSES), w, shard)
    assert own.loss(w) == pytest.approx(loss, rel=1e-12)
    np.testing.assert_allclose(own.gradient(w), gradient + 0.1 * w, rtol=1e-10)
    assert own.penalty(w) == pytest.approx(0.05 * w @ w)
    metrics = own.evaluate(w)
    assert metrics.loss == pytest.approx(loss, rel=1e-12)
    scores = own.decision_function(w, shard.features)
    assert metrics.correct == np.count_nonzero(scores.argmax(axis=1) == shard.labels)
    np.testing.assert_allclose(own.probabilities(w, shard.features), softmax(scores, axis=1))


def test_more_samples_than_go_through_at_once_have_the_same_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    own = objective(mlp)
    w = own.initial(0)
    whole = own.gradient(w), own.loss(w)
    monkeypatch.setattr("fenchel.common.objectives.networks.module.ModuleObjective._chunks.__defaults__", (7,))
    np.testing.assert_allclose(own.gradient(w), whole[0], rtol=1e-12)
    assert own.loss(w) == pytest.approx(whole[1], rel=1e-12)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_loss_may_weigh_classes(dtype: str) -> None:
    shard, weights = make_shard(20, FEATURES, CLASSES, seed=1), torch.tensor([1.0, 2.0, 4.0])
    loss = nn.CrossEntropyLoss(weight=weights)
    own = fenchel.TorchObjective(mlp, loss)(shard, l2=0.0, dtype=dtype)
    w = own.initial(3)
    probabilities = softmax(own.decision_function(w, shard.features).astype(np.float64), axis=1)
    each = -np.log(probabilities[ALL, shard.labels])
    assert own.loss(w) == pytest.approx(np.average(each, weights=weights.numpy()[shard.labels]), rel=1e-5)
    assert own.gradient(w).dtype == dtype
    assert loss.weight is weights  # which stays where its author has it


def test_the_gradient_in_a_buffer_leads_to_the_statistic_of_the_batch() -> None:
    shard = make_shard(20, FEATURES, CLASSES, seed=1)
    own = objective(normalised, shard)
    w = own.initial(0)
    assert own.dimension == (FEATURES + 1) * 4 + 8 + 5 * CLASSES + 8
    module = own.module_of(w)
    hidden = module[0](torch.tensor(shard.features)).detach().numpy()
    moved = w - own.gradient(w)  # a step of size 1
    np.testing.assert_allclose(moved[-8:-4], hidden.mean(axis=0), rtol=1e-10)
    np.testing.assert_allclose(moved[-4:], hidden.var(axis=0, ddof=1), rtol=1e-10)
    assert own.penalty(w) == 0
    assert objective(normalised, shard, l2=2.0).penalty(w) == pytest.approx(w[:-8] @ w[:-8])


def test_a_term_with_corners_leaves_statistics_alone(named: Callable[[Any], ObjectiveSettings]) -> None:
    settings = named(fenchel.TorchObjective(normalised, nn.CrossEntropyLoss()))
    l1 = {**settings.model_dump(), "regularizer": {"kind": "l1", "weight": 0.5}}
    own = build_objective(ADAPTER.validate_python(l1), make_shard(20, FEATURES, CLASSES, seed=1))
    w, h = np.linspace(-2.0, 3.0, own.dimension), own.regularizer
    assert h.value(w) == pytest.approx(0.5 * np.abs(w[:-8]).sum())
    np.testing.assert_array_equal(h.subgradient(w), np.append(0.5 * np.sign(w[:-8]), np.zeros(8)))
    shrunk = np.sign(w[:-8]) * np.maximum(np.abs(w[:-8]) - 0.25, 0)
    np.testing.assert_array_equal(h.prox(w, 2.0), np.append(shrunk, w[-8:]))


def test_a_batch_of_one_sample_is_normalised_by_the_running_statistics() -> None:
    shard = make_shard(20, FEATURES, CLASSES, seed=1)
    own = objective(normalised, shard)
    w = own.initial(0)
    w[-8:] = np.linspace(0.5, 2.0, 8)
    one = ALL[3:4]
    gradient = own.batch_gradient(w, one)
    np.testing.assert_array_equal(gradient[-8:], 0)
    module = own.module_of(w)  # which uses them, too
    loss = nn.functional.cross_entropy(module(torch.tensor(shard.features[one])), torch.tensor(shard.labels[one]))
    loss.backward()
    expected = np.concatenate([value.grad.numpy().ravel() for value in module.parameters()])
    np.testing.assert_allclose(gradient[:-8], expected, rtol=1e-10, atol=1e-15)
    assert own.batch_gradient(w, ALL)[-8:].all()  # the next batch has statistics again


def test_descent_with_batch_normalisation_evaluates_as_it_trains() -> None:
    own = objective(normalised)
    w = own.initial(0)
    for _ in range(300):
        w = w - 0.1 * own.gradient(w)
    assert own.loss(w) < 0.5
    module = own.module_of(w)  # a module of torch with the same values gives the same outputs
    shard = make_shard(20, FEATURES, CLASSES, seed=1)
    outputs = module(torch.tensor(shard.features)).detach().numpy()
    np.testing.assert_allclose(outputs, own.decision_function(w, shard.features), rtol=1e-12)


def test_a_variance_below_zero_does_no_harm() -> None:
    own = objective(normalised)
    w = own.initial(0)
    w[-4:] = -1.0
    assert np.isfinite(own.loss(w))
    assert np.isfinite(own.gradient(w)).all()


def test_dropout_depends_on_model_and_batch_alone() -> None:
    own, again = objective(dropping), objective(dropping)
    w = own.initial(0)
    torch.manual_seed(11)
    expected = torch.rand(2)
    torch.manual_seed(11)
    first = own.batch_gradient(w, ALL[:8])
    assert (torch.rand(2) == expected).all()  # torch's own numbers are left alone
    assert again.batch_gradient(w, ALL[:8]).tobytes() == first.tobytes()
    others = (own.batch_gradient(w, ALL[8:16]), own.batch_gradient(w + 1e-9, ALL[:8]))
    dropped = [np.count_nonzero(each == 0) for each in (first, *others)]
    assert len({each.tobytes() for each in (first, *others)}) == 3
    assert max(dropped) < w.size
    assert own.loss(w) == own.loss(w)  # evaluated without it


def test_augmentation_changes_training_alone() -> None:
    plain, noisy = objective(mlp), objective(mlp, transform=lambda batch: batch + torch.randn_like(batch))
    w = plain.initial(0)
    assert noisy.loss(w) == plain.loss(w)
    assert not np.allclose(noisy.gradient(w), plain.gradient(w))
    assert noisy.gradient(w).tobytes() == noisy.gradient(w).tobytes()


def test_samples_take_the_shape_that_the_module_wants() -> None:
    def images(classes: int) -> Any:
        return nn.Sequential(nn.Conv2d(1, 2, 2), nn.Flatten(), nn.Linear(4, classes))

    own = objective(images, shape=(1, 2, 3))
    assert own.gradient(own.initial(0)).shape == (own.dimension,)


@pytest.mark.parametrize("flat", [False, True])
def test_one_output_is_a_score_or_a_number(flat: bool) -> None:
    layers = [nn.Linear(FEATURES, 1), *([nn.Flatten(0)] if flat else [])]
    two = make_shard(20, FEATURES, 2, seed=1)
    score = objective(nn.Sequential(*layers), two, loss=nn.BCEWithLogitsLoss())
    w = score.initial(0)
    z = np.asarray(two.features) @ w[:-1] + w[-1]
    assert score.loss(w) == pytest.approx(np.logaddexp(0, np.where(two.labels == 1, -z, z)).mean(), rel=1e-9)
    assert score.evaluate(w).correct == np.count_nonzero((z > 0) == (two.labels == 1))
    np.testing.assert_allclose(score.probabilities(w, two.features)[:, 1], 1 / (1 + np.exp(-z)))
    numbers = make_shard(20, FEATURES, 0, seed=1)
    regression = objective(nn.Sequential(*layers), numbers, loss=nn.MSELoss())
    z = np.asarray(numbers.features) @ w[:-1] + w[-1]
    assert regression.loss(w) == pytest.approx(np.mean((z - numbers.labels) ** 2))
    assert regression.evaluate(w).correct is None


def test_gradients_are_clipped_sample_by_sample() -> None:
    own = objective(mlp, l2=0.1)
    w = own.initial(0)
    each = [own.batch_gradient(w, np.array([row])) - 0.1 * w for row in ALL]
    clipped = np.mean([g * min(1, 0.2 / np.linalg.norm(g)) for g in each], axis=0) + 0.1 * w
    np.testing.assert_allclose(own.clipped_gradient(w, ALL, 0.2), clipped, rtol=1e-9)
    with raises(SettingsError, key="objective.name"):
        mixing = objective(normalised)
        mixing.clipped_gradient(mixing.initial(0), ALL, 1.0)


def test_a_module_begins_anew_under_the_seed_and_frozen_layers_stay() -> None:
    module = nn.Sequential(nn.Linear(FEATURES, 4), nn.LayerNorm(4), nn.Linear(4, CLASSES))
    own, other = objective(module), objective(nn.Sequential(*[type(m)(*a) for m, a in zip(module, SIZES, strict=True)]))
    assert own.initial(5).tobytes() == other.initial(5).tobytes()
    assert own.initial(5).tobytes() != own.initial(6).tobytes()
    module[0].requires_grad_(False)
    assert objective(module).dimension == 8 + 5 * CLASSES


SIZES = [(FEATURES, 4), (4,), (4, CLASSES)]


class Loose(nn.Module):  # type: ignore[misc, name-defined]
    """A parameter that no layer draws."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(FEATURES, CLASSES))

    def forward(self, x: Any) -> Any:
        return x @ self.weight


def test_what_cannot_be_an_objective_is_refused() -> None:
    frozen = nn.Linear(FEATURES, CLASSES).requires_grad_(False)
    wrong: list[Callable[[], Any]] = [
        lambda: objective(Loose()),
        lambda: objective(frozen),
        lambda: objective(nn.Unflatten(1, (2, 3))),
        lambda: objective(lambda: nn.Sequential(nn.Linear(FEATURES, 4), nn.Unflatten(1, (2, 2)))),
        lambda: objective(mlp, loss=nn.CrossEntropyLoss(reduction="none")).loss(np.zeros(53)),
    ]
    for make in wrong:
        with raises(SettingsError, key="objective.name"):
            make()
    assert objective(Loose).initial(1).tobytes() == objective(Loose).initial(1).tobytes()  # made under the seed


OPTIMIZERS = [
    partial(torch.optim.SGD, momentum=0.9, nesterov=True, weight_decay=0.01),
    torch.optim.AdamW,
    partial(torch.optim.RMSprop, centered=True),
]


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("module", [mlp, normalised])
def test_steps_of_an_optimiser_are_those_of_a_training_loop_of_torch(module: Any, optimizer: Any) -> None:
    shard = make_shard(20, FEATURES, CLASSES, seed=1)
    own = objective(module, shard, optimizer=optimizer)
    w = own.initial(3)
    theirs = own.module_of(w).train()
    for layer in theirs.modules():
        if isinstance(layer, nn.BatchNorm1d):
            layer.momentum = 0.1  # of torch, where an objective of gradients has another
    training = optimizer(theirs.parameters(), lr=0.05)
    step = own.local_step(w, 0.05)
    for start in (0, 5, 10, 15, 0):
        rows = ALL[start : start + 5]
        w = step(w, own.batch_gradient(w, rows))
        training.zero_grad()
        nn.functional.cross_entropy(
            theirs(torch.tensor(shard.features[rows])), torch.tensor(shard.labels[rows])
        ).backward()
        training.step()
    state = theirs.state_dict()
    kept = [name for name in state if "running" not in name and "tracked" not in name]
    kept += [name for name in state if "running" in name]
    np.testing.assert_allclose(w, np.concatenate([state[name].numpy().ravel() for name in kept]), rtol=1e-9, atol=1e-12)


def test_an_optimiser_that_cannot_take_steps_is_refused() -> None:
    own = objective(mlp, optimizer=torch.optim.LBFGS)
    with raises(SettingsError, key="objective.name"):
        own.local_step(own.initial(0), 0.1)
    private = objective(mlp, optimizer=torch.optim.Adam)
    with raises(SettingsError, key="objective.name"):
        private.clipped_gradient(private.initial(0), ALL, 1.0)
    with raises(TypeError):
        objective(mlp, optimizer=torch.optim.Adam([torch.zeros(1)]))
    for wrong in (lambda parameters: torch.optim.SGD(parameters, 0.1), lambda parameters, lr: None):
        with raises(SettingsError, key="objective.name"):
            objective(mlp, optimizer=wrong).local_step(own.initial(0), 0.1)


def test_the_pull_of_fedprox_leaves_statistics_alone(named: Callable[[Any], ObjectiveSettings], tmp_path: Path) -> None:
    shard = make_shard(60, FEATURES, CLASSES, seed=1)
    described = fenchel.TorchObjective(normalised, nn.CrossEntropyLoss(), optimizer=torch.optim.AdamW)
    algorithm = {"name": "fedprox", "proximity": 25.0, "step_size": 1e-3, "local_steps": 50}
    settings = {"rounds": 1, "clients": 1, "objective": named(described).model_dump(), "algorithm": algorithm}
    run = fenchel.up(settings, data=(shard.features, shard.labels), in_process=True, runs=tmp_path)
    assert np.abs(run.model).max() < 100


@pytest.fixture
def named(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], ObjectiveSettings]:
    """Return settings that name an objective of a user's module."""

    def settings(found: Any) -> ObjectiveSettings:
        module = ModuleType("a_users_networks")
        module.found = found  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "a_users_networks", module)
        return ADAPTER.validate_python({"kind": "own", "name": "a_users_networks:found", "dtype": "float32"})

    return settings


def test_settings_name_it(named: Callable[[Any], ObjectiveSettings]) -> None:
    settings = named(fenchel.TorchObjective(normalised, nn.CrossEntropyLoss()))
    own = build_objective(settings, make_shard(20, FEATURES, CLASSES, seed=1))
    assert own.gradient(initial_model(settings, FEATURES, CLASSES, 3)).dtype == np.float32


def test_a_run_trains_it_and_predicts_with_it(named: Callable[[Any], ObjectiveSettings], tmp_path: Path) -> None:
    objective = named(fenchel.TorchObjective(normalised, nn.CrossEntropyLoss())).model_dump()
    shard = make_shard(60, FEATURES, CLASSES, seed=1)
    settings = {
        "rounds": 3,
        "clients": 2,
        "objective": objective,
        "algorithm": {"name": "fedavg", "step_size": 0.1, "local_epochs": 1, "batch_size": 8},
    }
    run = fenchel.up(settings, data=(shard.features, shard.labels), in_process=True, runs=tmp_path)
    again = fenchel.up(settings, data=(shard.features, shard.labels), in_process=True, runs=tmp_path)
    assert run.model.tobytes() == again.model.tobytes()
    assert run.predict(shard.features).shape == (60,)
    assert run.predict_proba(shard.features).shape == (60, CLASSES)


@pytest.mark.parametrize(
    ("algorithm", "trains"),
    [
        ({"name": "fedavg"}, True),
        ({"name": "fedprox"}, True),
        ({"name": "fedopt"}, True),
        ({"name": "robust-aggregation", "faulty": 0}, True),
        ({"name": "fedavg", "regularizer_step": "prox"}, False),
        ({"name": "fednova"}, False),
        ({"name": "scaffold"}, False),
        ({"name": "feddyn"}, False),
        ({"name": "mb-sgd"}, False),
    ],
)
def test_algorithms_use_an_optimiser_or_refuse_it(
    named: Callable[[Any], ObjectiveSettings], tmp_path: Path, algorithm: dict[str, Any], trains: bool
) -> None:
    shard = make_shard(60, FEATURES, CLASSES, seed=1)

    def trained(optimizer: Any) -> fenchel.Run:
        described = fenchel.TorchObjective(normalised, nn.CrossEntropyLoss(), optimizer=optimizer)
        settings = {"rounds": 2, "clients": 2, "objective": named(described).model_dump(), "algorithm": algorithm}
        return fenchel.up(settings, data=(shard.features, shard.labels), in_process=True, runs=tmp_path)

    if not trains:
        with raises(
            SettingsError, key="algorithm.regularizer_step" if "regularizer_step" in algorithm else "objective.name"
        ):
            trained(torch.optim.AdamW)
        return
    adam, again, plain = trained(torch.optim.AdamW), trained(torch.optim.AdamW), trained(None)
    assert adam.model.tobytes() == again.model.tobytes() != plain.model.tobytes()


def test_where_updates_are_clipped_any_network_and_optimiser_will_do(
    named: Callable[[Any], ObjectiveSettings], tmp_path: Path
) -> None:
    pytest.importorskip("dp_accounting")
    shard = make_shard(60, FEATURES, CLASSES, seed=1)
    described = fenchel.TorchObjective(normalised, nn.CrossEntropyLoss(), optimizer=torch.optim.AdamW)
    settings = {
        "rounds": 2,
        "clients": 2,
        "data": {"name": "own", "classes": [0, 1, 2]},
        "objective": named(described).model_dump(),
        "algorithm": {"name": "fedavg"},
        "differential_privacy": {"mechanism": "clip-update", "clip": 1.0, "noise_multiplier": 0.1, "delta": 1e-5},
    }
    data = [(shard.features[start::2], shard.labels[start::2]) for start in (0, 1)]
    assert fenchel.up(settings, data=data, in_process=True, runs=tmp_path).state == "completed"


def test_steps_that_an_optimiser_cannot_take_are_refused_before_the_run(
    named: Callable[[Any], ObjectiveSettings], tmp_path: Path
) -> None:
    described = fenchel.TorchObjective(normalised, nn.CrossEntropyLoss(), optimizer=torch.optim.SparseAdam)
    settings = {"rounds": 1, "clients": 1, "objective": named(described).model_dump(), "algorithm": {"name": "fedavg"}}
    shard = make_shard(20, FEATURES, CLASSES, seed=1)
    with raises(SettingsError, key="objective.name"):
        fenchel.up(settings, data=(shard.features, shard.labels), in_process=True, runs=tmp_path)


@pytest.mark.parametrize(
    ("module", "problem"),
    [
        (nn.Sequential(nn.Flatten(), nn.Linear(FEATURES - 1, CLASSES)), f"of {FEATURES} features"),
        (nn.Conv2d(1, CLASSES, 3), f"of {FEATURES} features"),
        (nn.Linear(FEATURES, CLASSES - 1), f"{CLASSES - 1} outputs for {CLASSES} classes"),
        (nn.Sequential(nn.Linear(FEATURES, 1), nn.Flatten(0)), f"1 outputs for {CLASSES} classes"),
    ],
)
def test_a_module_that_does_not_fit_the_data_is_refused_when_it_is_built(module: Any, problem: str) -> None:
    with raises(SettingsError, key="objective.name") as refusal:
        objective(lambda: module)
    assert problem in refusal.value.problem


class Wrong(nn.Module):  # type: ignore[misc, name-defined]
    """A module with a mistake in its own code."""

    def forward(self, samples: Any) -> Any:
        """Return a product of shapes that do not fit."""
        return samples @ samples


def test_an_error_in_the_code_of_a_module_keeps_its_traceback() -> None:
    with pytest.raises(RuntimeError, match="shapes"):
        objective(lambda: nn.Sequential(nn.Linear(FEATURES, 3), Wrong()))


def test_without_torch_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.delitem(sys.modules, "fenchel.common.objectives.networks.module", raising=False)
    monkeypatch.delitem(vars(fenchel), "TorchObjective", raising=False)
    with raises(MissingDependencyError):
        _ = fenchel.TorchObjective


# On a GPU

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU here")


def images(classes: int) -> Any:
    return nn.Sequential(
        *(nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.AdaptiveAvgPool2d(1)),
        *(nn.Flatten(), nn.Linear(4, classes)),
    )


@needs_cuda
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_gpu_computes_what_the_cpu_does(dtype: str) -> None:
    shard = make_shard(40, 64, CLASSES, seed=3)
    loss = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 4.0]))

    def on(device: Any) -> Any:
        described = fenchel.TorchObjective(images, loss, shape=(1, 8, 8), device=device, optimizer=torch.optim.AdamW)
        return described(shard, l2=0.1, dtype=dtype)

    here, there = on("cpu"), on("cuda")
    w, rows = here.initial(4), np.arange(30)
    np.testing.assert_array_equal(there.initial(4), w)
    computations: tuple[Callable[[Any], Any], ...] = (
        lambda f: f.batch_gradient(w, rows),
        lambda f: f.local_step(w, 0.1)(w, here.batch_gradient(w, rows)),
        lambda f: f.decision_function(w, shard.features),
        lambda f: np.array([f.loss(w), f.evaluate(w).loss]),
    )
    for compute in computations:
        expected, found = compute(here), compute(there)
        assert isinstance(found, np.ndarray)
        assert np.linalg.norm(found - expected) < 1e-4 * np.linalg.norm(expected)
        np.testing.assert_array_equal(compute(there), found)
    assert {value.device.type for value in there.module_of(w).state_dict().values()} == {"cpu"}


@needs_cuda
def test_dropout_and_augmentation_on_a_gpu_depend_on_model_and_batch_alone() -> None:
    def noisy(batch: Any) -> Any:
        return batch + torch.randn_like(batch)

    own, again = (objective(dropping, transform=noisy, device="cuda") for _ in range(2))
    w = own.initial(0)
    torch.cuda.manual_seed_all(11)
    expected = torch.rand(2, device="cuda")
    torch.cuda.manual_seed_all(11)
    first = own.batch_gradient(w, ALL[:8])
    assert (torch.rand(2, device="cuda") == expected).all()  # torch's own numbers are left alone
    assert again.batch_gradient(w, ALL[:8]).tobytes() == first.tobytes()
    assert own.batch_gradient(w, ALL[8:16]).tobytes() != first.tobytes()


@needs_cuda
def test_a_layer_that_a_gpu_cannot_repeat_is_refused() -> None:
    def enlarging(classes: int) -> Any:
        layers = nn.Conv2d(1, 2, 3), nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(32, classes)
        return nn.Sequential(*layers)

    shard = make_shard(20, 64, CLASSES, seed=1)
    own = objective(enlarging, shard, shape=(1, 8, 8), device="cuda")
    with raises(SettingsError, key="objective.name"):
        own.gradient(own.initial(0))


@needs_cuda
@pytest.mark.cluster
def test_processes_that_share_a_gpu_give_the_same_bits_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a_users_images.py").write_text(
        "import fenchel\nfrom torch import nn\n\n\ndef network(classes):\n"
        "    return nn.Sequential(nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Dropout(0.2), nn.Flatten(),\n"
        "                         nn.Linear(288, classes))\n\n\n"
        "found = fenchel.TorchObjective(network, nn.CrossEntropyLoss(), shape=(1, 8, 8), device='cuda')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    settings = {
        "rounds": 4,
        "clients": 3,
        "data": {"name": "digits", "scale": "unit-interval"},
        "objective": {"kind": "own", "name": "a_users_images:found", "dtype": "float32"},
        "algorithm": {"name": "fedavg", "step_size": 0.1, "local_epochs": 2, "batch_size": 32},
    }
    run, again = (fenchel.up(settings, runs=tmp_path / "runs") for _ in range(2))
    assert run.model.tobytes() == again.model.tobytes()
    assert run.metrics_table["test_accuracy"][-1].as_py() > 0.9
