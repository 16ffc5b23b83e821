"""Whatever breaks, and whenever: the final model is that of an undisturbed run, bit for bit."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

from fenchel.common.settings.run import RunSettings
from fenchel.common.storage.run_folder import RunFolder
from fenchel.testing import Faults, Federation, undisturbed
from tests.algorithms.balance import NAME
from tests.conftest import MakeSettings

CLIENTS = 4
SHORT, LONG = 5, 140_000  # a message of one frame, and one of two
ROUNDS = {SHORT: 8, LONG: 3}


def imbalance(model: np.ndarray) -> float:
    """Return how far the clients' duals are from adding up to zero."""
    rows = model.reshape(1 + 2 * CLIENTS, -1)
    return float(np.abs(rows[1 : 1 + CLIENTS].sum(axis=0)).max())


def settings_of(make_settings: MakeSettings, length: int, *, fold: bool = False) -> RunSettings:
    return make_settings(
        rounds=ROUNDS[length],
        clients=CLIENTS,
        algorithm={"name": NAME, "length": length, "fold": fold},
        network={"reply_buffer_bytes": 1},
        participation={"sampler": {"kind": "fixed", "size": 2}},
        evaluation={"every": 3, "server": False},
    )


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory, make_settings: MakeSettings) -> dict[int, np.ndarray]:
    """Final models of undisturbed runs, by the length of a message."""
    return {
        length: undisturbed(settings_of(make_settings, length), tmp_path_factory.mktemp("calm")) for length in ROUNDS
    }


@pytest.mark.parametrize("length", [SHORT, LONG])
def test_an_undisturbed_run_keeps_the_balance(calm: dict[int, np.ndarray], length: int) -> None:
    assert imbalance(calm[length]) < 1e-12
    assert np.abs(calm[length]).max() > 0.1


@pytest.mark.parametrize(
    ("length", "seed"),
    [
        *((SHORT, seed) for seed in range(4)),
        *((LONG, seed) for seed in range(2)),
        *(pytest.param(SHORT, seed, marks=pytest.mark.slow) for seed in range(4, 10)),
        *(pytest.param(LONG, seed, marks=pytest.mark.slow) for seed in range(2, 4)),
    ],
)
@pytest.mark.parametrize(
    ("breaks", "kills"), [(3, 0), (0, 2), (3, 2)], ids=["broken streams", "killed servers", "both"]
)
def test_faults_at_random_moments_do_not_change_a_bit(
    length: int,
    seed: int,
    breaks: int,
    kills: int,
    calm: dict[int, np.ndarray],
    make_settings: MakeSettings,
    tmp_path: Path,
) -> None:
    settings = settings_of(make_settings, length, fold=bool(seed % 2))
    faults = Faults(random.Random(f"{seed} {breaks} {kills} {length}"), breaks, kills, frames=25)
    federation = Federation(settings, RunFolder.create(tmp_path, "disturbed"), faults)
    model = federation.run()
    assert federation.killed == kills
    assert federation.broken >= breaks
    assert model.tobytes() == calm[length].tobytes()
