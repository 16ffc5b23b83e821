"""Robust aggregation: each rule's definition, and a client that does what it can to ruin the model."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from fenchel.common.arrays import Vector
from fenchel.common.errors import SettingsError
from tests.algorithms.mlr import BATCHES, Problem, locally, reproducible, train
from tests.messages import raises
from tests.slow import rest_slow

RULES = ("median", "trimmed-mean", "krum", "multi-krum")


def by_definition(rule: str, f: int, models: list[Vector]) -> list[float]:
    columns = list(zip(*models, strict=True))
    if rule == "median":
        return [median(column) for column in columns]
    if rule == "trimmed-mean":
        kept = [sorted(column)[f : len(models) - f] for column in columns]
        return [sum(column) / len(column) for column in kept]
    scores = []
    for one in models:
        distances = sorted(float(np.sum((one - other) ** 2)) for other in models if other is not one)
        scores.append(sum(distances[: len(models) - f - 2]))
    best = sorted(range(len(models)), key=lambda i: scores[i])[: 1 if rule == "krum" else len(models) - f]
    return [sum(models[i][j] for i in best) / len(best) for j in range(len(models[0]))]


def of_five() -> Problem:
    """Five clients, the last with the samples of the first in another order."""
    problem = reproducible()
    first = problem.shards[0]
    again = replace(first, features=first.features[::-1].copy(), labels=first.labels[::-1].copy())
    return replace(problem, shards=(*problem.shards, again))


@pytest.mark.parametrize("rule", RULES)
def test_rounds_are_those_of_the_definition(rule: str, tmp_path: Path) -> None:
    problem = of_five()
    run = train(problem, tmp_path, {"name": "robust-aggregation", "rule": rule, **BATCHES}, rounds=3, seed=3)
    x = np.zeros(9)
    for t in (1, 2, 3):
        x = np.array(by_definition(rule, 1, [locally(problem, i, t, x)[0] for i in range(5)]))
    np.testing.assert_allclose(run.model, x, rtol=0, atol=1e-12)


@pytest.mark.parametrize("rule", rest_slow(RULES))
def test_one_client_that_sends_anything_does_not_move_it_far(rule: str, tmp_path: Path) -> None:
    """All have the same samples, but one has other labels, a thousand times over: a real client with poisoned data."""
    shard = reproducible().shards[3]
    honest = Problem((shard,) * 5, l2=0.1)
    wrong = replace(shard, features=shard.features * 1000, labels=(shard.labels + 1) % shard.classes)
    poisoned = replace(honest, shards=(*honest.shards[:4], wrong))
    steps: dict[str, Any] = {"local_steps": 5, "batch_size": None, "step_size": 0.2}
    run = train(poisoned, tmp_path, {"name": "robust-aggregation", "rule": rule, **steps}, rounds=150)
    assert honest.gap(run.model) < 1e-3
    averaged = train(poisoned, tmp_path, {"name": "fedavg", **steps}, rounds=5)
    assert honest.gap(averaged.model) > 10


@pytest.mark.parametrize(
    ("algorithm", "sections"),
    [
        ({"rule": "trimmed-mean", "faulty": 2}, {}),
        ({"rule": "krum"}, {}),
        ({"rule": "median"}, {"participation": {"sampler": {"kind": "fixed", "size": 2}}}),
        ({"rule": "median"}, {"uplink": {"sparsify": {"support": "top-k", "keep": 0.5}}}),
    ],
)
def test_what_the_faulty_could_decide_is_refused(
    algorithm: dict[str, Any], sections: dict[str, Any], tmp_path: Path
) -> None:
    with raises(SettingsError, source="settings"):
        reproducible().settings(tmp_path, {"name": "robust-aggregation", **algorithm}, **sections)


@pytest.mark.parametrize("sampler", [{"kind": "fraction", "fraction": 0.4}, {"kind": "cyclic", "groups": 2}])
def test_samplers_of_too_small_cohorts_are_refused(sampler: dict[str, Any], tmp_path: Path) -> None:
    with raises(SettingsError, key="participation.sampler"):
        train(of_five(), tmp_path, {"name": "robust-aggregation", "rule": "median"}, participation={"sampler": sampler})


@pytest.mark.parametrize("rule", ["median", "trimmed-mean"])
def test_a_cohort_that_is_too_small_does_not_move_the_model(rule: str, tmp_path: Path) -> None:
    algorithm = {"name": "robust-aggregation", "rule": rule, **BATCHES}
    sampler = {"kind": "bernoulli", "probability": 0.5}
    run = train(of_five(), tmp_path, algorithm, rounds=12, participation={"sampler": sampler})
    moved = [bool(np.any(after != before)) for before, after in pairwise([np.zeros(9), *run.models])]
    asked = pq.read_table(run.folder.metrics)["asked"].to_pylist()
    assert moved == [clients >= 3 for clients in asked]
    assert set(moved) == {True, False}
