"""A client that misses its deadline is left out of the round, and its state with it."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from fenchel.common.arrays import Vector
from fenchel.common.errors import TooFewRepliesError
from fenchel.common.randomness import generator
from fenchel.common.settings.run import RunSettings
from fenchel.common.storage.run_folder import RunFolder
from fenchel.testing import Federation, undisturbed
from tests.algorithms.balance import NAME, BalanceClient
from tests.conftest import MakeSettings
from tests.messages import raises
from tests.observing import Calling

NAMES = ("client-000", "client-001", "client-002")
SLOW, ROUNDS, LENGTH = NAMES[1], 4, 3


def simulated(seed: int, cohorts: Mapping[int, Sequence[str]]) -> Vector:
    """Return the final model of the algorithm, written without any machinery."""
    dual = {name: np.zeros(LENGTH) for name in NAMES}
    memory = {name: np.ones(LENGTH) for name in NAMES}
    trace = np.zeros(LENGTH)
    for t, cohort in cohorts.items():
        proposal = {
            name: 0.9 * dual[name] + generator(seed, name, t, "pull").standard_normal(LENGTH) / t for name in cohort
        }
        mean = np.sum([proposal[name] - dual[name] for name in cohort], axis=0) / len(cohort)
        for name in cohort:
            dual[name] = proposal[name] - mean
        memory = {name: 0.7 * each + mean for name, each in memory.items()}
        trace = 0.5 * trace + mean
    return np.concatenate([trace, *dual.values(), *memory.values()])


@pytest.fixture
def settings(make_settings: MakeSettings) -> RunSettings:
    return make_settings(
        rounds=ROUNDS,
        algorithm={"name": NAME, "length": LENGTH},
        participation={"deadline": 1.0},
        evaluation={"server": False, "clients": False},
    )


def test_the_machinery_computes_what_the_algorithm_says(settings: RunSettings, tmp_path: Path) -> None:
    expected = simulated(settings.seed, dict.fromkeys(range(1, ROUNDS + 1), NAMES))
    np.testing.assert_allclose(undisturbed(settings, tmp_path), expected, rtol=0, atol=1e-14)


def test_what_a_client_did_too_late_is_undone(
    settings: RunSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    release = threading.Event()

    def on_row(row: Mapping[str, float]) -> None:
        if row["round"] == 2:
            release.set()

    monkeypatch.setattr(BalanceClient, "held_up", {(SLOW, 2): release})
    folder = RunFolder.create(tmp_path, "late")
    with ThreadPoolExecutor(len(NAMES)) as executor:
        federation = Federation(settings, folder, observer=Calling(round_ended=on_row), executor=executor)
        model = federation.run()
    cohorts: dict[int, Sequence[str]] = dict.fromkeys(range(1, ROUNDS + 1), NAMES)
    cohorts[2] = (NAMES[0], NAMES[2])
    np.testing.assert_allclose(model, simulated(settings.seed, cohorts), rtol=0, atol=1e-14)


def test_a_round_with_too_few_replies_stops_the_run_and_says_so(
    settings: RunSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    release = threading.Event()
    monkeypatch.setattr(BalanceClient, "held_up", {(SLOW, 1): release})
    participation = settings.participation.model_copy(update={"min_replies": 3, "deadline": 0.2, "on_shortage": "stop"})
    strict = settings.model_copy(update={"participation": participation})
    folder = RunFolder.create(tmp_path, "strict")
    with ThreadPoolExecutor(len(NAMES)) as executor:
        federation = Federation(strict, folder, executor=executor)
        try:
            with raises(TooFewRepliesError, round=1, phase="propose"):
                federation.run()
        finally:
            release.set()
    monkeypatch.undo()
    resumed = Federation(settings, folder).run(resume=True)
    expected = simulated(settings.seed, dict.fromkeys(range(1, ROUNDS + 1), NAMES))
    np.testing.assert_allclose(resumed, expected, rtol=0, atol=1e-14)
