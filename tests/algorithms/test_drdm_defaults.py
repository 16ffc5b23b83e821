"""DRDM with all defaults: mu and gamma follow from what the clients report, and runs end at the robust optimum."""

from __future__ import annotations

import logging
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from fenchel.algorithms.robust.drdm import DRDMSettings
from fenchel.common.data.shard import Shard
from fenchel.common.settings.run import RunSettings, validate
from fenchel.deploy.cli.inspect import check
from fenchel.server.preflight import check_run, open_data
from fenchel.testing import Faults, undisturbed
from tests.algorithms.drdm_oracle import excess
from tests.algorithms.feddcd_oracle import Quadratics
from tests.algorithms.mlr import Problem, Run, reproducible, train
from tests.slow import rest_slow

DEFAULTS = {"name": "drdm"}


class Regression(Problem):
    """Clients whose squared losses are given quadratics."""

    def settings(self, folder: Path, algorithm: Mapping[str, Any], **sections: Any) -> RunSettings:
        basis = {
            "name": "regression",
            "rounds": 2,
            "clients": self.clients,
            "data": {"name": "own", "task": "regression"},
            "objective": {"kind": "squared"},
            "algorithm": dict(algorithm),
            "evaluation": {"server": False, "clients": False},
        }
        return validate(basis | sections)

    def in_a_file(self, folder: Path, algorithm: Mapping[str, Any], **sections: Any) -> RunSettings:
        """Settings of the same run, whose server has the samples, too."""
        file = folder / "problem.npz"
        holders = np.repeat(np.arange(self.clients), [shard.samples for shard in self.shards])
        X, y = (np.concatenate([getattr(shard, name) for shard in self.shards]) for name in ("features", "labels"))
        np.savez(file, X=X, y=y, client=holders)
        data = {"file": str(file), "test_fraction": 0, "task": "regression", "partition": {"kind": "column"}}
        return self.settings(folder, algorithm, data=data, **sections)


def samples_of(problem: Quadratics) -> Regression:
    """Return d samples for each client, with X^T X / d = A_i and y = X m_i."""
    dimension = problem.centers.shape[1]
    shards = []
    for curvature, center in zip(problem.curvatures, problem.centers, strict=True):
        features = np.sqrt(dimension) * np.linalg.cholesky(curvature).T
        shards.append(Shard(features, features @ center, 0, dimension, np.arange(dimension)))
    return Regression(tuple(shards), l2=0.0)


def three(factor: float = 1.0, scale: float = 1.0) -> Quadratics:
    """Three clients with the sample x = scale, and targets 0, 1.58 and 1.58 times the factor."""
    targets = factor * np.array([[0.0], [1.58], [1.58]])
    return Quadratics(np.full((3, 1, 1), scale**2), targets / scale)


def five(seed: int, scale: float = 1.0) -> Quadratics:
    """Five clients in three dimensions, with a largest curvature of 3.3 before scaling."""
    chance = np.random.default_rng(seed)
    roots = chance.normal(size=(5, 3, 3))
    curvatures = roots @ np.swapaxes(roots, 1, 2) / 3 + 0.3 * np.eye(3)
    curvatures *= 3.3 / np.linalg.eigvalsh(curvatures).max()
    return Quadratics(curvatures * scale**2, 3 * chance.normal(size=(5, 3)) / scale)


def worst(problem: Quadratics, run: Run) -> float:
    """The largest loss of the last twenty models, in units of the robust value."""
    return max(excess(problem, w) for w in run.models[-20:])


@pytest.mark.slow
@pytest.mark.parametrize("factor", rest_slow([1.0, 30.0, 1000.0]))
@pytest.mark.parametrize("scale", rest_slow([0.3, 1.0, 3.0]))
def test_three_clients_that_disagree_end_at_the_robust_optimum(factor: float, scale: float, tmp_path: Path) -> None:
    problem = three(factor, scale)
    assert worst(problem, train(samples_of(problem), tmp_path, DEFAULTS, rounds=200)) < 1.01


@pytest.mark.slow
@pytest.mark.parametrize("seed", rest_slow(range(4)))
@pytest.mark.parametrize("scale", rest_slow([0.3, 1.0, 1.7]))
def test_clients_with_unequal_curvatures_end_at_the_robust_optimum(seed: int, scale: float, tmp_path: Path) -> None:
    problem = five(seed, scale)
    assert worst(problem, train(samples_of(problem), tmp_path, DEFAULTS, rounds=200, seed=seed)) < 1.02


@pytest.mark.slow
@pytest.mark.parametrize(("scale", "step_size"), [(0.1, 10.0), (10.0, 1e-3)])
def test_steps_that_fit_the_scale_of_the_data_end_at_the_robust_optimum(
    scale: float, step_size: float, tmp_path: Path
) -> None:
    """The smoothness is 0.01 or 100 times 3.3, and nothing but the step size is chosen for it."""
    problem = five(0, scale)
    run = train(samples_of(problem), tmp_path, DEFAULTS | {"step_size": step_size}, rounds=200)
    assert worst(problem, run) < 1.02


@pytest.mark.slow
def test_drifts_that_count_by_scaled_gradients_are_as_stable(tmp_path: Path) -> None:
    problem = three()
    scaled = DEFAULTS | {"correction": "lambda-scaled", "sampling": "uniform"}
    assert worst(problem, train(samples_of(problem), tmp_path, scaled, rounds=200)) < 1.01


@pytest.mark.parametrize(("smoothness", "mu"), [(0.01, 0.19), (1.0, 1.0), (3.3, 1.65), (12.0, 5.0), (100.0, 5.0)])
def test_mu_is_half_the_smoothness_unless_local_steps_are_short_or_would_diverge(smoothness: float, mu: float) -> None:
    assert DRDMSettings().fitting_regularization(smoothness) == pytest.approx(mu, rel=1e-12)


def test_a_run_without_regularization_is_one_with_that_of_the_steepest_client(tmp_path: Path) -> None:
    problem = five(0)
    by_default = train(samples_of(problem), tmp_path, DEFAULTS, rounds=5)
    steepest = float(np.linalg.eigvalsh(problem.curvatures).max())
    explicit = DEFAULTS | {"regularization": DRDMSettings().fitting_regularization(steepest)}
    given = train(samples_of(problem), tmp_path, explicit, rounds=5)
    np.testing.assert_allclose(by_default.models, given.models, rtol=1e-9, atol=0)
    phases = [call["phase"] for call in by_default.calls.to_pylist()]
    assert (phases.count("smoothness"), phases.count("regularize")) == (5, 5)
    assert "smoothness" not in [call["phase"] for call in given.calls.to_pylist()]


def test_broken_connections_and_killed_clients_keep_the_same_mu(tmp_path: Path) -> None:
    problem = samples_of(five(0))
    calm = train(problem, tmp_path, DEFAULTS, rounds=8)
    faults = Faults(random.Random(1), breaks=2, kills=3, frames=40, lag=3)
    rough = train(problem, tmp_path, DEFAULTS, rounds=8, faults=faults)
    assert rough.model.tobytes() == calm.model.tobytes()


@pytest.mark.parametrize(
    ("algorithm", "objective"),
    [({}, {"kind": "hinge", "l2": 0.1}), ({"correction": "none"}, {"kind": "logistic", "l2": 0.1})],
)
def test_without_a_smoothness_or_a_drift_mu_is_a_tenth(
    algorithm: dict[str, Any], objective: dict[str, Any], tmp_path: Path
) -> None:
    problem = Problem(
        tuple(Shard(shard.features, shard.labels % 2, 2, 3, shard.samples_held) for shard in reproducible().shards),
        l2=0.1,
    )
    by_default = train(problem, tmp_path, DEFAULTS | algorithm, rounds=3, objective=objective)
    tenth = train(problem, tmp_path, DEFAULTS | algorithm | {"regularization": 0.1}, rounds=3, objective=objective)
    assert by_default.model.tobytes() == tenth.model.tobytes()
    assert "smoothness" not in [call["phase"] for call in by_default.calls.to_pylist()]


def test_a_client_that_is_too_steep_for_the_local_steps_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    curvatures = np.array([1.0, 30.0, 1.0]).reshape(3, 1, 1)
    with caplog.at_level(logging.WARNING, "fenchel.server"):
        train(samples_of(Quadratics(curvatures, three().centers)), tmp_path, DEFAULTS, rounds=1)
    (named,) = [logged.args for logged in caplog.records if logged.funcName == "_fit_regularization"]
    assert isinstance(named, tuple)
    assert named[0] == "client-001"
    assert named[1] == pytest.approx(30.0)


# An explicit mu far below the smoothness


@pytest.mark.parametrize(
    ("algorithm", "warned"),
    [
        ({"regularization": 0.1}, True),
        ({"regularization": 0.4}, False),
        ({}, False),
        ({"regularization": 0.1, "correction": "uniform"}, False),
        ({"regularization": 0.1, "dual_step_size": 0}, False),
        ({"regularization": 0, "correction": "none"}, False),
    ],
)
def test_check_warns_of_a_regularization_far_below_the_smoothness(
    algorithm: dict[str, Any], warned: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = samples_of(five(0)).in_a_file(tmp_path, DEFAULTS | algorithm)
    assert bool(check_run(settings, open_data(settings), 5)) == warned
    file = tmp_path / "settings.yaml"
    file.write_text(yaml.safe_dump(settings.model_dump(mode="json", exclude_unset=True)))
    check(file)
    assert ("warning" in capsys.readouterr().err) == warned


def test_the_server_logs_that_warning_before_the_run(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "fenchel.server"):
        settings = samples_of(three()).in_a_file(tmp_path, DEFAULTS | {"regularization": 0.05}, rounds=1)
        undisturbed(settings, tmp_path)
    assert [logged.module for logged in caplog.records] == ["coordinator"]


def test_the_regularization_that_the_warning_names_is_not_warned_of(tmp_path: Path) -> None:
    """It is below a tenth of the smoothness where local steps are long."""
    problem = samples_of(five(0, scale=6.0))  # a smoothness of 119 for the steepest client
    long = DEFAULTS | {"step_size": 0.3}
    (warning,) = _warnings(problem, long | {"regularization": 0.1}, tmp_path)
    assert "use 1.7" in warning
    assert _warnings(problem, long | {"regularization": 1.7}, tmp_path) == ()


def _warnings(problem: Regression, algorithm: dict[str, Any], folder: Path) -> tuple[str, ...]:
    settings = problem.in_a_file(folder, algorithm)
    return check_run(settings, open_data(settings), problem.clients)
