"""Local training on F = mean of f_i + h: subgradients, FedMiD, clipping, kinds of batches; and how F is reported."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fenchel.algorithms.client_half import ClientContext
from fenchel.algorithms.fedavg import LocalTraining
from fenchel.algorithms.registry import client_half
from fenchel.common.arrays import Vector
from fenchel.common.data.source import DataSource
from fenchel.common.errors import DataError
from fenchel.common.objectives.factory import build_objective
from fenchel.common.randomness import generator
from fenchel.common.settings.run import RunSettings
from fenchel.common.storage.run_folder import RunFolder
from fenchel.deploy.launch.in_process import run_in_process
from fenchel.testing import load_model
from tests.algorithms.mlr import SETS, Problem, reproducible, train
from tests.conftest import MakeSettings
from tests.messages import raises

GAMMA, ETA = 0.05, 0.2
SOFTMAX = {"kind": "softmax", "l2": 0.1}
L1 = {"kind": "l1", "weight": GAMMA}
SAMPLES = [4, 5, 6, 7]  # of the clients of the reproducible problem


def soft(u: Vector, threshold: float) -> Vector:
    return np.sign(u) * np.maximum(np.abs(u) - threshold, 0)


def steps_of(problem: Problem, i: int, x: Vector, kind: str, mu: float = 0.0) -> Vector:
    w, f = x.copy(), problem.objectives[i]
    for _ in range(3):
        g = f.gradient(w) + mu * (w - x)
        w = soft(w - ETA * g, ETA * GAMMA) if kind == "prox" else w - ETA * (g + GAMMA * np.sign(w))
    return w


@pytest.mark.parametrize(
    ("algorithm", "kind", "mu"),
    [
        ({"name": "fedavg"}, "subgradient", 0.0),
        ({"name": "fedavg", "regularizer_step": "prox"}, "prox", 0.0),
        ({"name": "fedprox", "proximity": 0.5}, "subgradient", 0.5),
    ],
    ids=["fedavg", "fedmid", "fedprox"],
)
def test_local_steps_treat_the_term_as_the_formula_says(
    algorithm: dict[str, Any], kind: str, mu: float, tmp_path: Path
) -> None:
    problem = reproducible()
    algorithm |= {"local_steps": 3, "batch_size": None, "step_size": ETA, "weighting": "uniform"}
    run = train(problem, tmp_path, algorithm, cohorts=SETS, objective=SOFTMAX | {"regularizer": L1})
    x: Vector = np.zeros(9)
    for cohort in SETS:
        x = np.mean([steps_of(problem, i, x, kind, mu) for i in cohort], axis=0)
    np.testing.assert_allclose(run.model, x, rtol=0, atol=1e-13)


@pytest.mark.parametrize("correction", ["option-i", "option-ii"])
def test_scaffold_and_mini_batch_sgd_step_along_the_same_subgradient(correction: str, tmp_path: Path) -> None:
    # One full local step of everybody: both are the subgradient method on F, whatever the control variates.
    problem = reproducible()
    full = {"local_steps": 1, "batch_size": None, "step_size": ETA, "weighting": "uniform"}
    sections: dict[str, Any] = {"objective": SOFTMAX | {"regularizer": L1}, "rounds": 5}
    scaffold = {"name": "scaffold", "correction": correction} | full
    models = [
        train(problem, tmp_path, algorithm, **sections).model for algorithm in (scaffold, {**full, "name": "mb-sgd"})
    ]
    x: Vector = np.zeros(9)
    for _ in range(5):
        x = x - ETA * (problem.gradient(x) / 4 + GAMMA * np.sign(x))
    for model in models:
        np.testing.assert_allclose(model, x, rtol=0, atol=1e-13)


def test_a_control_variate_holds_the_subgradient_too(tmp_path: Path) -> None:
    problem = reproducible()
    algorithm = {"name": "scaffold", "correction": "option-i", "local_steps": 2, "batch_size": None}
    algorithm |= {"step_size": ETA, "weighting": "uniform"}
    run = train(problem, tmp_path, algorithm, rounds=2, objective=SOFTMAX | {"regularizer": L1})
    x = run.models[0]
    wanted = [f.gradient(x) + GAMMA * np.sign(x) for f in problem.objectives]
    np.testing.assert_allclose(run.client_states("control"), wanted, rtol=0, atol=1e-14)


def half(problem: Problem, tmp_path: Path, algorithm: dict[str, Any], client: int = 0) -> LocalTraining:
    settings = problem.settings(tmp_path, algorithm, objective=SOFTMAX | {"regularizer": L1}, seed=3)
    shard = problem.shards[client]
    made = client_half(settings.algorithm.name)(
        ClientContext(
            client="client-000",
            seed=3,
            settings=settings.algorithm,
            objective=build_objective(settings.objective, shard),
            shard=shard,
        )
    )
    made.state, made.round = made.initial_state(), 1
    assert isinstance(made, LocalTraining)
    return made


@pytest.mark.parametrize("name", ["fedavg", "fedprox", "scaffold", "mb-sgd", "feddyn", "fedpd"])
def test_every_half_takes_clipped_gradients_where_there_is_a_bound(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = reproducible()
    steps = {"local_steps": 1, "batch_size": None, "step_size": ETA, "weighting": "uniform"}
    trained = half(problem, tmp_path, {"name": name} | steps)
    monkeypatch.setattr(type(trained), "clip", 0.1)
    x: Vector = np.linspace(-1, 1, 9)
    phase = "gradient" if name == "mb-sgd" else "train"
    values: dict[str, Any] = {"model": x} | ({} if name in ("fedavg", "fedprox") else {"mean_samples": 5.5})
    values |= {"talks": True} if name == "fedpd" else {}
    out = trained.answer(phase, 1, values)
    f = problem.objectives[0]
    g = f.clipped_gradient(x, f.all_rows, 0.1) + GAMMA * np.sign(x)
    assert np.abs(f.gradient(x) - f.clipped_gradient(x, f.all_rows, 0.1)).max() > 1e-3
    steps_long = 2 if name == "fedpd" else 1  # FedPD sends w + eta mu, and eta mu = w - x in the first round
    wanted = {"gradient": g, "model": x - steps_long * ETA * g, "model_change": -ETA * g}
    (key,) = wanted.keys() & out.keys()
    found = out[key]
    assert isinstance(found, np.ndarray)
    assert np.abs(found - wanted[key]).max() < 1e-14


@pytest.mark.parametrize("draw", ["passes", "epoch", "independent"])
def test_batches_are_drawn_as_the_settings_say(draw: str, tmp_path: Path) -> None:
    trained = half(reproducible(), tmp_path, {"name": "fedavg", "local_steps": 2, "batch_size": 3, "batches": draw}, 2)
    drawn = list(trained.batches())
    source = generator(3, "client-000", 1, "batches")
    if draw == "independent":
        wanted = [source.choice(6, 3, replace=False) for _ in range(2)]
    else:
        order = source.permutation(6)
        wanted = [order[:3], order[3:]]
    np.testing.assert_array_equal(drawn, wanted)


def test_a_client_with_too_few_samples_for_one_epoch_says_so(tmp_path: Path) -> None:
    trained = half(reproducible(), tmp_path, {"name": "fedavg", "local_steps": 2, "batch_size": 3, "batches": "epoch"})
    with raises(DataError):
        trained.batches()


def run(settings: RunSettings, parent: Path) -> tuple[dict[str, float], Vector]:
    folder = RunFolder.create(parent, settings.name)
    summary = asyncio.run(run_in_process(settings, folder))
    return summary.figures, load_model(folder)


@pytest.mark.parametrize("training", [True, False], ids=["by the server", "by the clients"])
def test_the_objective_that_is_reported_has_all_its_terms(
    training: bool, make_settings: MakeSettings, tmp_path: Path
) -> None:
    settings = make_settings(
        rounds=2,
        data={"name": "digits", "samples": 200, "scale": "unit-interval", "bias": 1},
        objective={"kind": "one-sided-logistic", "l2": 0.01, "nonconvex": 0.02, "regularizer": L1},
        algorithm={"name": "fedavg", "step_size": 0.3},
        evaluation={"training": training},
    )
    figures, w = run(settings, tmp_path)
    shard = DataSource.open(settings.data, settings.seed).training()
    scores = np.asarray(shard.features) @ w.reshape(10, 65).T
    loss = np.logaddexp(0, -scores[np.arange(200), shard.labels]).mean()
    terms = 0.005 * w @ w, 0.02 * (w**2 / (1 + w**2)).sum(), GAMMA * np.abs(w).sum()
    assert min(loss, *terms) > 1e-4
    assert figures["train_loss"] == pytest.approx(loss, rel=1e-12)
    assert figures["objective"] == pytest.approx(loss + sum(terms), rel=1e-12)
    assert figures["train_accuracy"] == pytest.approx((scores.argmax(axis=1) == shard.labels).mean())
