"""A run whose objective grows where it should fall says so once, long before its numbers are absurd."""

from __future__ import annotations

import logging
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fenchel.algorithms.fedavg import FedAvg
from fenchel.common.errors import DataError
from fenchel.common.settings.run import RunSettings, validate
from fenchel.common.storage.run_folder import RunFolder
from fenchel.common.storage.tables import read
from fenchel.deploy.launch.in_process import run_in_process
from fenchel.server.checkpointer import Checkpointer
from fenchel.server.coordinator import open_resumed
from fenchel.server.telemetry.objective_growth import ObjectiveGrowth
from fenchel.testing import Federation
from tests.messages import raises


def rounds_warned_of(caplog: pytest.LogCaptureFixture) -> list[int]:
    """The rounds that the log warns of."""
    rounds = []
    for logged in caplog.records:
        if logged.module == "objective_growth":
            assert isinstance(logged.args, tuple)
            assert isinstance(logged.args[0], int)
            rounds.append(logged.args[0])
    return rounds


def diverging(parent: Path, algorithm: str) -> RunSettings:
    """Return settings of a run whose steps are too long."""
    rng = np.random.default_rng(0)
    features = rng.normal(size=(60, 3))
    np.savez(parent / "data.npz", X=features, y=features @ np.ones(3) + rng.normal(size=60))
    return validate(
        {
            "rounds": 12,
            "clients": 3,
            "data": {"file": str(parent / "data.npz"), "test_fraction": 0, "task": "regression"},
            "objective": {"kind": "squared"},
            "algorithm": {"name": algorithm, "step_size": 2.5, "local_steps": 2},
        }
    )


@pytest.mark.parametrize("algorithm", ["fedavg", "feddyn", "scaffold", "drdm"])
async def test_whatever_the_algorithm_a_run_that_diverges_warns_once(
    algorithm: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = diverging(tmp_path, algorithm)
    folder = RunFolder.create(tmp_path, "run")
    with caplog.at_level(logging.WARNING, "fenchel.server"):
        await run_in_process(settings, folder)
    (warned,) = rounds_warned_of(caplog)
    objectives = read(folder.metrics)["objective"].to_pylist()
    assert objectives[warned - 1] > 1e3 * objectives[0]
    assert max(objectives[: warned - 1]) <= 1e3 * objectives[0]


@pytest.mark.parametrize(
    ("objectives", "warned"),
    [
        pytest.param((2.0, 0.1, 1999.0, 2001.0, 1e9, math.inf), [4], id="since the first evaluated model"),
        pytest.param((2.0, math.inf), [2], id="infinite at once"),
        pytest.param((0.0, 1e-30, 1e-12, 1e-6, 0.9), [], id="noise at the optimum"),
        pytest.param((0.0, 1e-6, 1.0, 1.1), [4], id="from the optimum"),
        pytest.param((-5.0, 5.0, 4999.0, 5001.0), [4], id="from below zero, by its size"),
        pytest.param((math.nan, 2.0, math.nan, 3.0), [], id="not known"),
    ],
)
def test_growth_is_that_since_the_first_evaluated_model(
    objectives: tuple[float, ...], warned: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    """Of the objective, or where there is none, of the loss of the test set."""
    for known in ("objective", "test_loss"):
        caplog.clear()
        growth = ObjectiveGrowth()
        with caplog.at_level(logging.WARNING, "fenchel.server"):
            for t, value in enumerate(objectives, 1):
                growth.evaluated(t, {"objective": math.nan, known: value})
        assert rounds_warned_of(caplog) == warned


def test_with_classes_a_first_model_far_worse_than_the_zero_model_is_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rng = np.random.default_rng(0)
    features = rng.normal(size=(60, 3)) * [1.0, 1e4, 1.0]
    np.savez(tmp_path / "data.npz", X=features, y=features[:, 0] > 0)
    settings = {
        "rounds": 3,
        "clients": 3,
        "data": {"file": str(tmp_path / "data.npz"), "test_fraction": 0},
        "objective": {"kind": "logistic"},
        "algorithm": {"name": "fedavg"},
    }
    with caplog.at_level(logging.WARNING, "fenchel.server"):
        Federation(validate(settings), RunFolder.create(tmp_path, "run")).run()
    assert rounds_warned_of(caplog) == [1]
    assert "data.scale" in caplog.text


def test_a_resumed_run_compares_with_its_first_model_and_does_not_warn_again(caplog: pytest.LogCaptureFixture) -> None:
    nan = math.nan
    early, late = ObjectiveGrowth(), ObjectiveGrowth()
    early.resume([nan, 2.0, 500.0], [nan, nan, nan])
    late.resume([2.0, 5e4], [nan, nan])
    with caplog.at_level(logging.WARNING, "fenchel.server"):
        late.evaluated(3, {"objective": 5e5})
        assert rounds_warned_of(caplog) == []
        early.evaluated(4, {"objective": 2500.0})
    assert rounds_warned_of(caplog) == [4]


@pytest.mark.parametrize("stop", [2, 8])
def test_a_run_that_stops_and_goes_on_warns_in_the_round_of_one_that_does_not_stop(
    stop: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    settings = diverging(tmp_path, "fedavg")
    with caplog.at_level(logging.WARNING, "fenchel.server"):
        Federation(settings, RunFolder.create(tmp_path, "whole")).run()
    (expected,) = rounds_warned_of(caplog)
    assert 2 < expected < 8
    caplog.clear()
    save, go = Checkpointer.save, FedAvg.round

    async def saving_always(self: Checkpointer, *given: Any, wait: bool, again: bool = False) -> None:
        await save(self, *given, wait=True, again=again)

    async def stopping(self: FedAvg, t: int) -> None:
        if t == stop:
            raise DataError("stopped, for a test")
        await go(self, t)

    monkeypatch.setattr(Checkpointer, "save", saving_always)
    folder = RunFolder.create(tmp_path, "stopped")
    federation = Federation(settings, folder)
    with caplog.at_level(logging.WARNING, "fenchel.server"):
        with monkeypatch.context() as patch:
            patch.setattr(FedAvg, "round", stopping)
            with raises(DataError):
                federation.run()
        assert open_resumed(folder).round == stop - 1
        federation.workers.clear()
        federation.run(resume=True)
    assert rounds_warned_of(caplog) == [expected]
