"""FedAvg, FedProx, SCAFFOLD and FedDyn through a changed way up and down, against plain loops."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fenchel.common.arrays import Vector
from fenchel.common.errors import SettingsError
from tests.algorithms.fedpdm_oracle import Variant, batches_of, down_model, rounded_to_wire, spoilt, up_support
from tests.algorithms.mlr import Problem, Run, reproducible, train
from tests.messages import raises

SEED, STEPS, ETA, MU, ETA_G = 3, 3, 0.2, 0.5, 0.8
EVERYBODY = (0, 1, 2, 3)
COHORTS = ((0, 1), (1, 2, 3), (3,), EVERYBODY, (0, 2), (0, 3))
LAST = len(COHORTS)
LOCAL = {"local_steps": STEPS, "batch_size": 2, "step_size": ETA}
AVERAGES: dict[str, dict[str, Any]] = {
    "fedavg": {"name": "fedavg", "weighting": "samples"},
    "fedprox": {"name": "fedprox", "weighting": "uniform", "proximity": MU},
}
LINKS = {
    "top-k": Variant(support="top-k", keep=0.4),
    "top-k, held": Variant(support="top-k", keep=0.4, hold=True),
    "random": Variant(support="random", keep=0.4, hold=True),
    "shared-random": Variant(support="shared-random", keep=0.4, hold=True),
    "public-top-k": Variant(support="public-top-k", keep=0.4),
    "noise": Variant(noise=0.1),
    "clip": Variant(clip=0.05),
    "float32": Variant(float32=True),
    "down": Variant(down="top-k", down_keep=0.6),
    "down, random": Variant(down="shared-random", down_keep=0.6),
    "all": Variant(support="top-k", keep=0.4, noise=0.1, clip=0.1, float32=True, down="top-k", down_keep=0.6),
}


def real(problem: Problem, algorithm: dict[str, Any], links: Variant, parent: Path, **given: Any) -> Run:
    sections = links.sections()
    objective = {"kind": "softmax", "l2": problem.l2}
    del sections["regularizer"], sections["nonconvex"]
    basis: dict[str, Any] = {"cohorts": COHORTS, "rounds": LAST, "seed": SEED, "objective": objective}
    return train(problem, parent, LOCAL | algorithm, **(basis | sections | given))


def uploads(
    problem: Problem, links: Variant, cohort: Sequence[int], t: int, x: Vector, steps_of: Any, *, minus: float = 0.0
) -> list[tuple[int, Any, Vector]]:
    """Of each client: who it is, which coordinates it sent, and their values less ``minus * x`` as they arrive."""
    found = []
    for i in sorted(cohort):
        name = f"client-00{i}"
        w = x.copy()
        drawn = replace(links, steps=STEPS, batch_size=2)
        for rows in batches_of(drawn, problem.objectives[i].samples, SEED, name, t):
            w = w - ETA * steps_of(i, w, rows)
        chosen = up_support(links, w, x, SEED, name, t)
        values = spoilt(links, w[chosen], x[chosen], SEED, name, t)
        found.append((i, chosen, rounded_to_wire(links, values - minus * x[chosen])))
    return found


def mean_of(sent: list[tuple[int, Any, Vector]], weights: Sequence[float], links: Variant, x: Vector) -> Vector:
    total, coverage = np.zeros_like(x), np.zeros_like(x)
    for i, chosen, values in sent:
        total[chosen] += weights[i] * values
        coverage[chosen] += weights[i]
    uncovered = x if links.hold else np.zeros_like(x)
    return np.array([total[j] / coverage[j] if coverage[j] else uncovered[j] for j in range(x.size)])


@pytest.mark.parametrize("links", LINKS)
@pytest.mark.parametrize("name", AVERAGES)
def test_averages_are_taken_of_what_was_sent(name: str, links: str, tmp_path: Path) -> None:
    problem, way, algorithm = reproducible(), LINKS[links], AVERAGES[name]
    run = real(problem, algorithm, way, tmp_path)
    mu = algorithm.get("proximity", 0.0)
    samples = [float(f.samples) for f in problem.objectives]
    weights = samples if algorithm["weighting"] == "samples" else [1.0] * 4
    x: Vector = down_model(way, np.zeros(9), SEED, 1)
    for t, cohort in enumerate(COHORTS, 1):
        start = x

        def step(i: int, w: Vector, rows: Any, start: Vector = start) -> Vector:
            gradient: Vector = problem.objectives[i].batch_gradient(w, rows) + mu * (w - start)
            return gradient

        mean = mean_of(uploads(problem, way, cohort, t, x, step), weights, way, x)
        x = down_model(way, mean, SEED, t + 1)
        np.testing.assert_allclose(run.models[t - 1], x, rtol=0, atol=1e-12)
    assert np.abs(x).max() > 0.05


@pytest.mark.parametrize("links", LINKS)
@pytest.mark.parametrize("weighting", ["uniform", "samples"])
def test_scaffold_forms_its_control_variates_from_what_was_sent(weighting: str, links: str, tmp_path: Path) -> None:
    way, problem = LINKS[links], reproducible(weighted=weighting == "samples")
    algorithm = {"name": "scaffold", "weighting": weighting, "server_step_size": ETA_G}
    if way.noise and weighting == "samples":
        with raises(SettingsError, source="settings"):
            real(problem, algorithm, way, tmp_path)
        return
    run = real(problem, algorithm, way, tmp_path)
    x: Vector = down_model(way, np.zeros(9), SEED, 1)
    controls = np.zeros((4, 9))
    for t, cohort in enumerate(COHORTS, 1):
        c = controls.mean(axis=0)

        def step(i: int, w: Vector, rows: Any, c: Vector = c) -> Vector:
            gradient: Vector = problem.weights[i] * problem.objectives[i].batch_gradient(w, rows) - controls[i] + c
            return gradient

        sent = uploads(problem, way, cohort, t, x, step, minus=1.0)
        for i, chosen, change in sent:
            controls[i, chosen] -= change / (STEPS * ETA) + c[chosen]
        mean = mean_of([(i, chosen, x[chosen] + change) for i, chosen, change in sent], [1.0] * 4, way, x)
        x = down_model(way, x + ETA_G * (mean - x), SEED, t + 1)
        np.testing.assert_allclose(run.models[t - 1], x, rtol=0, atol=1e-12)
    np.testing.assert_allclose(run.client_states("control"), controls, rtol=0, atol=1e-12)
    np.testing.assert_allclose(run.states[LAST].control, controls.mean(axis=0), rtol=0, atol=1e-12)
    assert np.abs(controls).max() > 0.05


@pytest.mark.parametrize("links", LINKS)
def test_the_server_of_feddyn_keeps_the_mean_of_what_the_clients_keep(links: str, tmp_path: Path) -> None:
    algorithm = {"name": "feddyn", "weighting": "uniform", "alpha": 0.5}
    run = real(reproducible(), algorithm, LINKS[links], tmp_path, rounds=2 * LAST)
    held = run.client_states("dual")
    np.testing.assert_allclose(run.states[2 * LAST].mean_dual, np.mean(held, axis=0), rtol=0, atol=1e-13)
    assert np.abs(held).max() > 0.05


@pytest.mark.parametrize("name", ["fedavg", "fedprox", "scaffold", "feddyn"])
def test_with_all_coordinates_kept_nothing_changes(name: str, tmp_path: Path) -> None:
    # The plain SCAFFOLD sends the changes of control variates, too, so it may differ by rounding.
    algorithm = {"name": name, "weighting": "uniform"}
    plain = real(reproducible(), algorithm, Variant(), tmp_path)
    for support in ("top-k", "random", "shared-random", "public-top-k"):
        way = Variant(support=support, keep=1.0, down="top-k", down_keep=1.0)
        full = real(reproducible(), algorithm, way, tmp_path)
        np.testing.assert_allclose(full.models, plain.models, rtol=0, atol=1e-14)
        assert name == "scaffold" or full.model.tobytes() == plain.model.tobytes()


@pytest.mark.parametrize("name", ["fedavg", "fedprox", "scaffold", "feddyn"])
def test_a_model_in_fewer_bits_on_one_way_only_is_welcome(name: str, tmp_path: Path) -> None:
    algorithm = {"name": name, "weighting": "uniform"}
    exact = real(reproducible(), algorithm, Variant(), tmp_path).model
    for links in ({"uplink": {"dtype": "float32"}}, {"downlink": {"dtype": "float32"}}):
        run = real(reproducible(), algorithm, Variant(), tmp_path, **links)
        assert {model.dtype.name for model in run.models} == {"float64"}
        assert 1e-12 < np.abs(run.model - exact).max() < 1e-6


@pytest.mark.parametrize("name", ["fedavg", "fedprox", "scaffold", "feddyn"])
@pytest.mark.parametrize("support", [None, "random"])
def test_a_float32_model_stays_one(name: str, support: str | None, tmp_path: Path) -> None:
    way = Variant(support=support, keep=0.4, clip=10.0)
    objective = {"kind": "softmax", "l2": 0.1, "dtype": "float32"}
    algorithm = {"name": name, "weighting": "uniform"}
    run = real(reproducible(), algorithm, way, tmp_path, objective=objective)
    assert {model.dtype.name for model in run.models} == {"float32"}
    double = real(reproducible(), algorithm, way, tmp_path)
    np.testing.assert_allclose(run.model, double.model, rtol=0, atol=1e-5)


@pytest.mark.parametrize("algorithm", [{"correction": "option-i"}, {"local_steps": None, "local_epochs": 1}])
def test_scaffold_refuses_what_would_part_its_two_halves(algorithm: dict[str, Any], tmp_path: Path) -> None:
    with raises(SettingsError, source="settings"):
        real(reproducible(), {"name": "scaffold", **algorithm}, LINKS["top-k"], tmp_path)
