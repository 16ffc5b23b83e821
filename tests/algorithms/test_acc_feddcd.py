"""FedDCD and AccFedDCD: networks, clients that are told to begin again, and the guard."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fenchel.algorithms.client_half import ClientContext
from fenchel.algorithms.feddcd.acc_feddcd import Acceleration, AccFedDCD, AccFedDCDClient, AccFedDCDSettings
from fenchel.common.arrays import Dense, Indices, Vector
from fenchel.common.objectives.factory import build_objective
from fenchel.deploy.launch.names import client_names
from fenchel.fleet.cohort import Cohort
from tests.algorithms.feddcd_oracle import (
    Momentum,
    Quadratics,
    accelerated_round,
    feddcd_round,
    idle_rounds,
    membership,
)
from tests.algorithms.feddcd_quadratics import NEWTON, problem_of, train_quadratics
from tests.algorithms.mlr import SETS, reproducible, train
from tests.slow import rest_slow

SGD = {"kind": "sgd", "step_size": 0.05, "batch_size": None, "stop": {"steps": 3}}
"""Three full gradients: no random numbers."""

NETWORK: dict[str, Any] = {
    "objective": {"kind": "mlp", "hidden": 4, "l2": 1e-3, "dtype": "float64"},
    "participation": {"sampler": {"kind": "fixed", "size": 2}},
    "rounds": 9,
}
PAIRS: dict[str, Any] = {"rounds": 240, "participation": {"sampler": {"kind": "fixed", "size": 2}}}
SECOND = ((2, 3), (0, 2), (1, 3), (0, 1))


def unequal(seed: int) -> Quadratics:
    """Ten clients whose curvatures, and whose centres, differ by a factor of up to 1000, and of up to 100."""
    chance = np.random.default_rng(seed)
    curvatures = []
    for _ in range(10):
        basis = np.linalg.qr(chance.normal(size=(4, 4)))[0]
        eigenvalues = 10 ** chance.uniform(-1.5, 1.5) * np.geomspace(1, 30, 4)
        curvatures.append(basis * eigenvalues @ basis.T)
    symmetric = (np.array(curvatures) + np.swapaxes(curvatures, 1, 2)) / 2
    return Quadratics(symmetric, chance.normal(size=(10, 4)) * 10 ** chance.uniform(-1, 1, size=(10, 1)))


def accelerated(**settings: Any) -> dict[str, Any]:
    return {"name": "acc-feddcd", "weighting": "uniform", "solver": SGD, **settings}


class TestNetwork:
    """The variant for models that are not convex: local solves start from the average."""

    @pytest.mark.parametrize("method", rest_slow(["feddcd", "one cohort", "two cohorts"]))
    def test_it_is_what_its_definition_says(self, method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        pytest.importorskip("torch")

        def second_sample(self: AccFedDCD) -> Cohort:
            return Cohort(self.fleet, tuple(client_names(4)[i] for i in SECOND[(self.fleet.round - 1) % 4]))

        monkeypatch.setattr(AccFedDCD, "second_sample", second_sample)
        step, conditioning, plain, two = 0.3, 0.2, method == "feddcd", method == "two cohorts"
        algorithm = accelerated(dual_step_size=step, conditioning=conditioning, cohorts=2 if two else 1)
        if plain:
            algorithm = {"name": "feddcd", "weighting": "uniform", "solver": SGD, "dual_step_size": step}
        run = train(reproducible(), tmp_path, algorithm, cohorts=SETS, **NETWORK)

        objectives = [build_objective(run.settings.objective, shard) for shard in reproducible().shards]
        model = objectives[0].initial(run.settings.seed)

        def minimisers(v: Dense) -> Dense:
            """Three steps on f_i - <., v_i> from the last average, for every client."""
            w: Dense = np.tile(model, (4, 1))
            for _ in range(3):
                w -= 0.05 * (np.stack([f.gradient(own) for f, own in zip(objectives, w, strict=True)]) - v)
            return w

        y: Dense = np.zeros((4, model.size))
        z = y
        momentum, scales = Momentum(1 / 3, conditioning), np.full(4, step)
        for t in range(9):
            first = membership(SETS[t % 4], 4)
            other = membership(SECOND[t % 4], 4) if two else None
            if plain:
                y, model = feddcd_round(minimisers(y), y, first, scales)
            else:
                y, z, model = accelerated_round(minimisers, y, z, first, other, scales, momentum)
            np.testing.assert_allclose(run.models[t], model, rtol=0, atol=1e-12)
        duals = np.stack(run.client_states("dual"))
        sets = (SETS, SECOND) if two else (SETS,)
        for i in range(4 * (not plain)):
            last = max(t for t in range(9) for of in sets if i in of[t % 4])
            duals[i], held = idle_rounds(duals[i], run.client_states("momentum")[i], 8 - last, momentum)
            np.testing.assert_allclose(held, z[i], rtol=0, atol=1e-12)
        np.testing.assert_allclose(duals, y, rtol=0, atol=1e-12)
        assert np.abs(y).max() > 1e-3
        assert np.abs(y.sum(axis=0)).max() < 1e-13
        assert two or run.floats() == (9 * 2 * 24, 2 * 9 * 2 * 24), "the average travels down twice"

    @pytest.mark.parametrize(
        "settings",
        [
            {"conditioning": 0.3, "smoothness": 1.0},
            {"dual_step_size": 0.1, "conditioning": 0.3, "monitor": 1},
            {"conditioning": 1.5},
        ],
    )
    def test_settings_that_exclude_each_other(self, settings: dict[str, Any]) -> None:
        with pytest.raises(ValueError):
            AccFedDCDSettings.model_validate(accelerated(**settings))


def test_a_conditioning_of_ones_own_replaces_the_clients_bounds(tmp_path: Path) -> None:
    # Which for softmax with l2 = 0.1 and beta = 0.64 is 0.1 / 0.64.
    models: list[Vector] = []
    for settings in ({"smoothness": 0.6401061976}, {"conditioning": 0.1 / 0.6401061976}, {"conditioning": 0.5}):
        (parent := tmp_path / str(len(models))).mkdir()
        algorithm = accelerated(**settings, solver={"kind": "newton-cg", "stop": {"gradient": 1e-12}})
        models.append(train(reproducible(), parent, algorithm, cohorts=SETS, rounds=6).model)
    np.testing.assert_allclose(models[0], models[1], rtol=0, atol=1e-12)
    assert np.abs(models[0] - models[2]).max() > 1e-3


NONE: Indices = np.empty(0, np.int64)
OLD, NEW = Momentum(0.3, 1 / 12), Momentum(0.2, 1 / 20)


def scalars(momentum: Momentum) -> dict[str, float]:
    found = Acceleration.of(momentum.r, momentum.conditioning)
    return {"a": found.a, "b": found.b, "theta": found.theta}


def client_of(quadratics: Quadratics, i: int = 0) -> AccFedDCDClient:
    """A client by itself: what the runtime does with its state is no matter here."""
    problem = problem_of(quadratics, strong_convexity=1.0, smoothness=12.0)
    settings = AccFedDCDSettings.model_validate(accelerated(solver=NEWTON))
    half = AccFedDCDClient(
        ClientContext(
            client="client", seed=0, settings=settings, objective=problem.objectives[i], shard=problem.shards[i]
        )
    )
    half.state = half.initial_state()
    return half


class TestBegin:
    """A fleet that grows has other weights and scalars, and the acceleration begins anew."""

    @given(
        active=st.integers(0, 3), away=st.integers(0, 9), later=st.integers(0, 5), restart=st.none() | st.integers(0, 9)
    )
    def test_a_client_catches_up_by_the_scalars_that_held_before(
        self, active: int, away: int, later: int, restart: int | None
    ) -> None:
        quadratics = Quadratics.random(clients=1, dimension=3, seed=4)
        half = client_of(quadratics)
        half.begin(1.0, **scalars(OLD), committed=0, restarts=NONE)
        y: Vector = np.zeros(3)
        z = y
        centers = np.random.default_rng(0).standard_normal((active + 1, 3))

        def rounds_with_it(count: int, first: int, momentum: Momentum, weight: float) -> None:
            nonlocal y, z
            for t in range(first, first + count):
                half.minimize(t, NONE, 0.25)
                half.shift_duals(centers[t - first])
                v, u = momentum.begin(y, z)
                apart = quadratics.minimisers(v[None] / weight)[0] - centers[t - first]
                y, z = v - weight * apart, u - momentum.theta * weight * apart

        rounds_with_it(active, 0, OLD, 1.0)
        # Then it is away, and somewhere in between the guard begins anew.
        committed = active + away
        restarts = NONE if restart is None else np.array([active + restart])
        restarts = restarts[restarts <= committed]
        for t in range(active, committed + 1):
            z = y if t in restarts else z
            if t < committed:
                y, z = OLD.begin(y, z)
        half.begin(1.5, **scalars(NEW), committed=committed, restarts=restarts)
        z = y
        np.testing.assert_allclose(half.state.dual, y, rtol=0, atol=1e-12)
        np.testing.assert_array_equal(half.state.momentum, half.state.dual)
        rounds_with_it(1, committed, NEW, 1.5)
        for _ in range(later):
            y, z = NEW.begin(y, z)
        half._catch_up(committed + 1 + later, restarts)
        np.testing.assert_allclose(half.state.dual, y, rtol=0, atol=1e-11)
        np.testing.assert_allclose(half.state.momentum, z, rtol=0, atol=1e-11)

    def test_a_newcomer_starts_at_zero_after_the_rounds_that_lie_behind(self) -> None:
        quadratics = Quadratics.random(clients=1, dimension=3, seed=4)
        half, first = client_of(quadratics), client_of(quadratics)
        half.begin(1.0, **scalars(NEW), committed=17, restarts=np.array([3, 17]))
        first.begin(1.0, **scalars(NEW), committed=0, restarts=NONE)
        assert half.state.committed == 17
        for client, t in ((half, 17), (first, 0)):
            client.minimize(t, np.array([3, 17]) if t else NONE, 0.25)
            client.shift_duals(np.ones(3))
        np.testing.assert_array_equal(half.state.dual, first.state.dual)
        np.testing.assert_array_equal(half.state.momentum, first.state.momentum)

    def test_what_was_solved_with_the_old_weight_is_solved_again(self) -> None:
        quadratics = Quadratics.random(clients=1, dimension=3, seed=4)
        half = client_of(quadratics)
        half.begin(1.0, **scalars(OLD), committed=0, restarts=NONE)
        half.minimize(0, NONE, 0.25)
        half.shift_duals(np.ones(3))
        half.minimize(1, NONE, 0.25)  # in a round that is not committed: nobody else answered
        half.begin(2.0, **scalars(NEW), committed=1, restarts=NONE)
        reply = half.minimize(1, NONE, 0.25)
        expected = quadratics.minimisers(half.state.dual[None] / 2.0)[0]
        np.testing.assert_allclose(np.asarray(reply["minimizer"]), expected, rtol=0, atol=1e-12)


class TestGuard:
    """It acts where solves are too inexact, and only there."""

    @pytest.mark.slow  # make test-all
    @pytest.mark.parametrize("seed", [0, 3])
    def test_it_does_nothing_where_solves_are_exact_however_unequal_the_clients(
        self, seed: int, tmp_path: Path
    ) -> None:
        run = train_quadratics(problem_of(unequal(seed)), tmp_path, accelerated(solver=NEWTON), **PAIRS)
        last = run.states[PAIRS["rounds"]]
        assert last.restarts.size == 0
        assert last.accuracy == 0.25
        assert max(state.figures["solve_error"] for state in run.states.values()) < 1e-12 * max(
            state.figures["spread"] for state in run.states.values()
        )
