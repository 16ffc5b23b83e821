"""The run without random numbers of docs/specifications/feddcd.md, section 6: what concerns a client's solver."""

from __future__ import annotations

from copy import copy

import numpy as np
import pytest

from fenchel.common.arrays import Vector
from fenchel.common.objectives.linear import LinearObjective
from fenchel.common.objectives.losses import Softmax
from fenchel.common.optim import Tilted
from tests.unit.optim.problems import EXACT, run, shard_of

CLASSES, FEATURES, CLIENTS = 3, 3, 4
ORIGIN: Vector = np.zeros(CLASSES * FEATURES)


def features_of(i: int) -> list[list[float]]:
    return [[((7 * i + 5 * j + 3 * k * k + i * j * k) % 11) / 5 - 1 for k in range(FEATURES)] for j in range(4 + i)]


@pytest.fixture(scope="module")
def clients() -> list[LinearObjective]:
    return [
        LinearObjective(
            Softmax(),
            shard_of(np.array(features_of(i)), [(i + j % 2) % CLASSES for j in range(4 + i)], CLASSES),
            l2=0.1,
        )
        for i in range(CLIENTS)
    ]


def total(clients: list[LinearObjective], w: Vector) -> float:
    return sum(client.value(w) for client in clients)


@pytest.mark.parametrize("solver", EXACT)
def test_conjugates_at_zero_sum_up_to_the_dual_value(clients: list[LinearObjective], solver: str) -> None:
    """G(0) = sum_i f_i*(0) = - sum_i min f_i."""
    minima = [run(Tilted(client, ORIGIN), solver, gradient=1e-8).w for client in clients]
    lowest = sum(client.value(w) for client, w in zip(clients, minima, strict=True))
    assert -lowest == pytest.approx(-2.6367843526, abs=5e-11)


def test_the_first_round_of_feddcd(clients: list[LinearObjective]) -> None:
    average = np.mean([run(Tilted(clients[i], ORIGIN), "newton", gradient=1e-12).w for i in (0, 1)], axis=0)
    assert total(clients, average) == pytest.approx(3.9798780068, abs=5e-11)


def test_the_optimum_by_duals_that_agree(clients: list[LinearObjective]) -> None:
    """FedDCD with all clients ends where they agree: F*, and w* as the specification has them."""
    duals: list[Vector] = [ORIGIN] * CLIENTS
    models: list[Vector] = [ORIGIN] * CLIENTS
    for _ in range(150):
        models = [
            run(Tilted(client, y), "newton-cg", w, gradient=1e-11).w
            for client, y, w in zip(clients, duals, models, strict=True)
        ]
        mean = np.mean(models, axis=0)
        duals = [y - 0.1 * (w - mean) for y, w in zip(duals, models, strict=True)]
    assert total(clients, mean) == pytest.approx(3.723066979916, abs=1e-11)
    np.testing.assert_allclose(mean[:FEATURES], [0.67390466, -0.28688123, -0.31487257], atol=1e-7)
    np.testing.assert_allclose(sum(duals), ORIGIN, atol=1e-12)


def test_five_plain_steps_are_the_first_round_of_fedavg_and_fedprox(clients: list[LinearObjective]) -> None:
    solver = "{kind: gradient, step_size: 0.2}"
    average = np.mean([run(Tilted(clients[i], ORIGIN), solver, steps=5).w for i in (0, 1)], axis=0)
    assert total(clients, average) == pytest.approx(4.1789567704, abs=5e-11)
    pulled = [copy(clients[i]) for i in (0, 1)]
    for client in pulled:
        client.l2 += 0.5  # the proximal term of FedProx at the origin
    tied = np.mean([run(Tilted(client, ORIGIN), solver, steps=5).w for client in pulled], axis=0)
    assert total(clients, tied) == pytest.approx(4.2127542721, abs=5e-11)
    epochs = [
        run(Tilted(clients[i], ORIGIN), "{kind: sgd, batch_size: null, step_size: 0.2}", epochs=5).w for i in (0, 1)
    ]
    np.testing.assert_allclose(np.mean(epochs, axis=0), average, atol=1e-15)
