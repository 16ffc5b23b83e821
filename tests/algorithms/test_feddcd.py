"""FedDCD and AccFedDCD: the numbers of the specification, the invariants, and the traffic."""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from scipy.optimize import minimize

from fenchel.algorithms.feddcd.acc_feddcd import AccFedDCD, AccFedDCDClient
from fenchel.algorithms.feddcd.feddcd import FedDCD, FedDCDClient
from fenchel.common.arrays import Dense, Vector
from fenchel.common.data.shard import Shard
from fenchel.common.errors import SettingsError
from fenchel.common.objectives.factory import build_objective
from fenchel.common.objectives.objective import Objective
from fenchel.common.settings.objective import LinearSettings
from fenchel.server.fleet.cohort import Cohort, Reduced
from tests.algorithms.mlr import SETS, Problem, reproducible, train
from tests.messages import raises

EXACT = {"kind": "newton-cg", "stop": {"gradient": 1e-13}}
PAIRS = {"sampler": {"kind": "fixed", "size": 2}}  # says tau = 2; who takes part is given
NAMES = tuple(f"client-00{i}" for i in range(4))


def feddcd(**settings: Any) -> dict[str, Any]:
    return {"name": "feddcd", "weighting": "uniform", "solver": EXACT, **settings}


def accelerated(**settings: Any) -> dict[str, Any]:
    # The oracle numbers have beta by section 1.6: the largest of the clients' bounds.
    return {"name": "acc-feddcd", "weighting": "uniform", "solver": EXACT, "smoothness": 0.6401061976, **settings}


def conjugates(problem: Problem, duals: Iterable[Vector]) -> float:
    """G(y) = sum_i max_w <y_i, w> - f_i(w)."""
    total = 0.0
    for objective, dual in zip(problem.objectives, duals, strict=True):

        def value(w: Vector, f: Objective = objective, y: Vector = dual) -> float:
            return f.value(w) - float(y @ w)

        def gradient(w: Vector, f: Objective = objective, y: Vector = dual) -> Vector:
            return np.asarray(f.gradient(w) - y)

        start = np.zeros(dual.size)
        total -= minimize(value, start, jac=gradient, method="BFGS", options={"gtol": 1e-9}).fun
    return total


@dataclass
class Witness:
    """What the clients hold after each round that is certified: arrays of shape (N, d), by round."""

    seen: dict[int, dict[str, Any]] = field(default_factory=lambda: defaultdict(dict))

    def _of(self, name: str) -> dict[int, Dense]:
        return {
            t: np.stack([getattr(states[client], name) for client in sorted(states)]) for t, states in self.seen.items()
        }

    @property
    def duals(self) -> dict[int, Dense]:
        """y_i."""
        return self._of("dual")

    @property
    def momenta(self) -> dict[int, Dense]:
        """z_i."""
        return self._of("momentum")

    @property
    def minimizers(self) -> dict[int, Dense]:
        """w_i, as each client last computed it."""
        return self._of("minimizer")


@pytest.fixture
def witness(monkeypatch: pytest.MonkeyPatch) -> Witness:
    """Looks at every client whenever all of them are certified, when they have caught up."""
    found = Witness()
    for half in (FedDCDClient, AccFedDCDClient):
        original: Any = half.certify

        def certify(self: Any, original: Any = original, **values: Any) -> Any:
            reply = original(self, **values)
            found.seen[self.round][self.client] = replace(self.state)
            return reply

        functools.update_wrapper(certify, original)
        monkeypatch.setattr(half, "certify", certify)
    return found


@pytest.fixture
def second_sets(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second cohort of a round is the first one of the next."""

    def second_sample(self: AccFedDCD) -> Cohort:
        return Cohort(self.fleet, tuple(NAMES[i] for i in SETS[self.fleet.round % len(SETS)]))

    monkeypatch.setattr(AccFedDCD, "second_sample", second_sample)


@pytest.mark.usefixtures("second_sets")
@pytest.mark.parametrize(
    ("algorithm", "values", "dual", "squares", "floats"),
    [
        (feddcd(), [3.9798780068, 3.9617738857, 3.8034614609, 3.7855820154], -3.4874190933, 0.1745582965, (72, 72)),
        (
            feddcd(step_size=1.9),
            [3.9798780068, 3.9617738857, 3.7630318763, 3.7872880215],
            -3.6608485988,
            0.4028652682,
            (72, 72),
        ),
        (
            accelerated(),
            [3.9798780068, 3.9617738857, 3.7866928995, 3.7800632563],
            -3.5639601054,
            0.2443449371,
            (72, 72),
        ),
        (
            accelerated(cohorts=2),
            [3.9798780068, 3.9642954425, 3.8280531216, 3.8164928116],
            -3.5039180967,
            0.2155819560,
            (144, 144),
        ),
    ],
    ids=["feddcd", "eta 1.9", "one cohort", "two cohorts"],
)
def test_the_reproducible_run_gives_the_numbers_of_the_specification(
    algorithm: dict[str, Any], values: list[float], dual: float, squares: float, floats: tuple[int, int], tmp_path: Path
) -> None:
    problem = reproducible()
    run = train(problem, tmp_path, algorithm, cohorts=SETS, participation=PAIRS)
    assert [problem.value(model) for model in run.models] == pytest.approx(values, abs=2e-10, rel=0)
    assert run.floats() == floats
    duals = run.client_states("dual")
    if algorithm["name"] == "feddcd":  # the others' idle clients catch up only when they are asked
        assert conjugates(problem, duals) == pytest.approx(dual, abs=1e-9)
        assert sum(float(y @ y) for y in duals) == pytest.approx(squares, abs=1e-9)


@pytest.mark.usefixtures("second_sets")
@pytest.mark.parametrize(
    ("algorithm", "values", "squares"),
    [
        (feddcd(), [-2.9793554284, -3.1850068086, -3.3571072784, -3.4874190933], [0.1745582965]),
        (feddcd(step_size=1.9), [-3.1284860116, -3.4032033227, -3.5473958831, -3.6608485988], [0.4028652682]),
        (accelerated(), [-2.9793554284, -3.2249511631, -3.4201523999, -3.5639601054], [0.2443449371, 0.7453392185]),
        (
            accelerated(cohorts=2),
            [-2.9793554284, -3.1735174845, -3.3561653573, -3.5039180967],
            [0.2155819560, 0.6882671265],
        ),
    ],
    ids=["feddcd", "eta 1.9", "one cohort", "two cohorts"],
)
def test_so_does_the_dual_objective_of_every_round(
    algorithm: dict[str, Any], values: list[float], squares: list[float], witness: Witness, tmp_path: Path
) -> None:
    problem = reproducible()
    run = train(problem, tmp_path, algorithm | {"monitor": 1}, cohorts=SETS, participation=PAIRS)
    for t, value in enumerate(values, 1):
        figures = run.states[t].figures
        assert -4 * figures["dual_objective"] == pytest.approx(value, abs=2e-10)
        assert 4 * figures["minimised_objective"] == pytest.approx(problem.value(run.models[t - 1]), abs=1e-12)
        assert figures["gap"] >= problem.gap(run.models[t - 1]) - 1e-12
        assert conjugates(problem, witness.duals[t]) == pytest.approx(value, abs=1e-9)
    assert float(np.sum(witness.duals[4] ** 2)) == pytest.approx(squares[0], abs=1e-9)
    if len(squares) == 2:
        assert float(np.sum(witness.momenta[4] ** 2)) == pytest.approx(squares[1], abs=1e-9)


@pytest.mark.usefixtures("second_sets")
@pytest.mark.parametrize(
    "algorithm",
    [feddcd(), feddcd(step_size=1.9), accelerated(), accelerated(cohorts=2)],
    ids=["feddcd", "eta 1.9", "one cohort", "two cohorts"],
)
@pytest.mark.parametrize("weighting", ["uniform", "samples"])
def test_what_holds_in_every_round(algorithm: dict[str, Any], weighting: str, witness: Witness, tmp_path: Path) -> None:
    problem, rounds = reproducible(weighted=weighting == "samples"), 40
    algorithm = {**algorithm, "weighting": weighting, "monitor": 1}
    run = train(problem, tmp_path, algorithm, cohorts=SETS, rounds=rounds, participation=PAIRS)
    plain = algorithm["name"] == "feddcd"
    before: Dense = np.zeros((4, 9))
    chance = np.random.default_rng(0)
    for t in range(1, rounds + 1):
        y = witness.duals[t]
        assert np.abs(y.sum(axis=0)).max() < 1e-12
        # Softmax does not see what all classes have in common, and the ridge pulls it to 0.
        assert np.abs(y.reshape(4, 3, 3).sum(axis=1)).max() < 1e-11
        cohort = SETS[(t - 1) % 4]
        if plain:
            idle = [i for i in range(4) if i not in cohort]
            assert y[idle].tobytes() == before[idle].tobytes()
        else:
            assert np.abs(witness.momenta[t].sum(axis=0)).max() < 1e-12
        bound = -4 * run.states[t].figures["dual_objective"]
        own = 4 * run.states[t].figures["minimised_objective"]
        assert own == pytest.approx(problem.value(run.models[t - 1]), abs=1e-12)
        for w in (run.models[t - 1], problem.optimum, chance.standard_normal(9)):
            assert problem.value(w) + bound >= -1e-11
        if plain and t > 1:
            # Theorem T0: the dual falls by at least what the spread promises.
            eta = algorithm.get("step_size", 1.0)
            fall = 4 * (run.states[t].figures["dual_objective"] - run.states[t - 1].figures["dual_objective"])
            assert fall >= eta * (1 - eta / 2) * run.states[t].figures["spread"] - 1e-12
        before = y


@pytest.mark.parametrize("algorithm", [feddcd(step_size=1.9), accelerated()], ids=["feddcd", "acc-feddcd"])
def test_in_the_end_everybody_agrees(algorithm: dict[str, Any], witness: Witness, tmp_path: Path) -> None:
    problem = reproducible()
    run = train(problem, tmp_path, algorithm | {"monitor": 150}, cohorts=SETS, rounds=150, participation=PAIRS)
    slopes = [f.gradient(problem.optimum) for f in problem.objectives]
    assert problem.value(run.model) - problem.value(problem.optimum) < 1e-12
    np.testing.assert_allclose(run.model, problem.optimum, rtol=0, atol=1e-6)
    np.testing.assert_allclose(witness.duals[150], slopes, rtol=0, atol=1e-6)
    for f, y, w in zip(problem.objectives, run.client_states("dual"), witness.minimizers[150], strict=True):
        np.testing.assert_allclose(w, problem.optimum, rtol=0, atol=1e-5)
        np.testing.assert_allclose(f.gradient(w), y, rtol=0, atol=1e-6)


def test_a_feature_that_a_client_lacks_shows_its_dual(tmp_path: Path) -> None:
    # The loss of client 0 does not see feature 1: there w_i = y_i / rho.
    problem = reproducible()
    shards = list(problem.shards)
    features = np.array(shards[0].features)
    features[:, 1] = 0
    shards[0] = replace(shards[0], features=features)
    problem = Problem(tuple(shards), l2=0.1)
    rounds = [*SETS, (0, 3)]
    run = train(problem, tmp_path, feddcd(), cohorts=rounds, rounds=5)
    w, y, center = run.client_states("minimizer")[0], run.client_states("dual")[0], run.model
    solved_at = (y + 0.1 * (w - center)).reshape(3, 3)  # y before the last step
    np.testing.assert_allclose(w.reshape(3, 3)[:, 1], solved_at[:, 1] / 0.1, rtol=0, atol=1e-11)
    assert np.abs(solved_at[:, 1]).max() > 0.001


@pytest.mark.usefixtures("second_sets")
@pytest.mark.parametrize(
    ("algorithm", "asked", "told"),
    [(feddcd(), 2, 2), (accelerated(), 2, 2), (accelerated(cohorts=2), 4, None)],
    ids=["feddcd", "one cohort", "two cohorts"],
)
def test_a_round_costs_a_model_up_and_a_model_down_for_each_active_client(
    algorithm: dict[str, Any], asked: int, told: int | None, tmp_path: Path
) -> None:
    run = train(reproducible(), tmp_path, algorithm, cohorts=SETS, rounds=8, participation=PAIRS)
    table, size = run.calls.to_pylist(), 9 * 8
    for t in range(1, 9):
        calls = [call for call in table if call["round"] == t]
        solved = [call for call in calls if call["phase"] == "minimize"]
        moved = [call for call in calls if call["phase"].startswith("shift_dual")]
        assert len(calls) == len(solved) + len(moved)
        assert {call["bytes_up"] for call in solved} == {size}
        assert {call["bytes_up"] for call in moved} == {0}
        assert len(solved) == asked
        assert sum(call["bytes_down"] for call in moved) == asked * size
        assert told is None or [call["bytes_down"] for call in moved] == [size] * told
        active = {NAMES[i] for i in (*SETS[(t - 1) % 4], *(SETS[t % 4] if asked == 4 else ()))}
        assert {call["client"] for call in calls} == active, "nothing travels to those who are idle"


def test_weighted_by_samples_the_sum_of_the_clients_is_the_pooled_problem(tmp_path: Path) -> None:
    problem = reproducible(weighted=True)
    run = train(problem, tmp_path, accelerated(weighting="samples"), cohorts=SETS, rounds=150, participation=PAIRS)
    pooled = Shard(
        np.concatenate([shard.features for shard in problem.shards]),
        np.concatenate([shard.labels for shard in problem.shards]),
        classes=3,
        total_features=3,
        samples_held=np.arange(22),
    )
    whole = build_objective(LinearSettings(kind="softmax", l2=0.1), pooled)
    assert np.linalg.norm(whole.gradient(run.model)) < 1e-6
    unweighted = reproducible()
    assert np.linalg.norm(unweighted.gradient(run.model)) > 0.01, "which is another problem than the sum of means"


def test_rounding_of_the_messages_is_carried_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    objective = {"kind": "softmax", "l2": 0.1, "dtype": "float32"}

    def drift(name: str, algorithm: dict[str, Any]) -> float:
        (parent := tmp_path / name).mkdir()
        run = train(reproducible(), parent, algorithm, objective=objective, rounds=100, participation=PAIRS)
        assert run.model.dtype == np.float32
        return float(np.abs(np.sum(run.client_states("dual"), axis=0)).max())

    solver = {"kind": "newton-cg"}
    carried = drift("carried", {"name": "feddcd", "solver": solver, "step_size": 1.9})
    original = FedDCD.average

    def forgetful(self: FedDCD, solved: Reduced) -> Vector:
        self.state.rounding = np.zeros_like(self.state.rounding)
        return original(self, solved)

    monkeypatch.setattr(FedDCD, "average", forgetful)
    forgotten = drift("forgotten", {"name": "feddcd", "solver": solver, "step_size": 1.9})
    # One rounding of an average of size 1 or so, times eta and the weight of two clients.
    assert carried < 1.9 * 0.2 * 2**-24 * 2
    assert forgotten > 5 * carried


def test_each_of_two_cohorts_has_its_own_rounding_to_carry(tmp_path: Path) -> None:
    rounds = 100
    algorithm = {"name": "acc-feddcd", "cohorts": 2, "solver": {"kind": "newton-cg"}, "monitor": rounds}
    run = train(
        reproducible(),
        tmp_path,
        algorithm,
        objective={"kind": "softmax", "l2": 0.1, "dtype": "float32"},
        rounds=rounds,
        participation=PAIRS,
    )
    # The certificate of the last round brings everybody to the same moment, so that sums mean something.
    y, z = (np.abs(np.sum(run.client_states(name), axis=0)).max() for name in ("dual", "momentum"))
    one_rounding = 0.2 * 2**-24 * 2  # of an average of size 1 or so, times the weight of two clients
    theta = 2.5
    assert y < one_rounding
    assert z < theta * one_rounding


def test_repeated_for_long_it_reaches_the_optimum(tmp_path: Path) -> None:
    problem = reproducible()
    run = train(problem, tmp_path, feddcd(), cohorts=SETS, rounds=100)
    assert problem.value(run.model) - problem.value(problem.optimum) == pytest.approx(1.17e-11, rel=0.05)


@pytest.mark.parametrize("sampler", [{"kind": "fixed", "size": 1}, {"kind": "bernoulli", "probability": 0.2}])
def test_acceleration_wants_two_clients_a_round(sampler: dict[str, Any], tmp_path: Path) -> None:
    with raises(SettingsError, key="participation.sampler"):
        train(reproducible(), tmp_path, accelerated(), participation={"sampler": sampler})


def test_acceleration_refuses_cohorts_whose_pairs_meet_unequally(tmp_path: Path) -> None:
    sampler = {"kind": "weighted", "size": 3, "replacement": True}
    with raises(SettingsError, key="participation.sampler.kind"):
        train(reproducible(), tmp_path, accelerated(), participation={"sampler": sampler})


@pytest.mark.parametrize("name", ["feddcd", "acc-feddcd"])
def test_an_objective_without_ridge_is_refused(name: str, tmp_path: Path) -> None:
    with raises(SettingsError, key="objective.l2"):
        train(reproducible(), tmp_path, {"name": name}, objective={"kind": "softmax", "l2": 0.0})


def test_the_first_solve_is_as_accurate_as_asked(tmp_path: Path) -> None:
    problem, errors = reproducible(), []
    exact = np.mean([minimize(f.value, np.zeros(9), jac=f.gradient, tol=1e-12).x for f in problem.objectives], axis=0)
    for accuracy in (0.5, 1e-6, 1e-16):
        (parent := tmp_path / str(accuracy)).mkdir()
        algorithm = {"name": "feddcd", "weighting": "uniform", "first_accuracy": accuracy}
        run = train(problem, parent, algorithm, rounds=1)
        errors.append(float(np.linalg.norm(run.model - exact)))
    assert errors[0] > 10 * errors[1] > 100 * errors[2]


class TestGuard:
    """Acceleration needs accurate solves; it begins anew where they were not."""

    def test_it_leaves_a_run_that_converged_alone(self, tmp_path: Path) -> None:
        problem = reproducible()
        run = train(problem, tmp_path, accelerated(), rounds=150, participation=PAIRS)
        assert problem.gap(run.model) < 1e-14
        assert run.states[150].restarts.size == 0
        assert run.states[150].figures["spread"] == 0

    @pytest.mark.parametrize(
        ("spreads", "restarts"),
        [
            ([1.0] * 10 + [200.0], [11]),
            ([1.0] * 10 + [50.0], []),
            ([1.0] * 9 + [1e9], []),  # there is nothing to compare with yet
            ([1.0] * 10 + [200.0] * 10, [11]),  # after which it begins to watch anew
            ([0.0] * 10 + [1e-300] * 10, []),  # agreement to the last bit, and its end
        ],
    )
    def test_it_compares_the_mean_of_ten_rounds_with_the_lowest(
        self, spreads: list[float], restarts: list[int]
    ) -> None:
        half: Any = SimpleNamespace(
            state=AccFedDCD.State(np.zeros(1)), settings=SimpleNamespace(restart=True), fleet=SimpleNamespace(round=0)
        )
        half._watch_anew = partial(AccFedDCD._watch_anew, half)
        for t, spread in enumerate(spreads, 1):
            half.state.committed, half.state.figures = t, {"spread": spread, "solve_error": spread}
            AccFedDCD._guard(half)
        assert half.state.restarts.tolist() == restarts
        assert half.state.figures["restarts"] == len(restarts)
        assert half.state.accuracy == 0.25 / 4 ** len(restarts)

    def test_it_slows_a_run_that_diverges(self, tmp_path: Path) -> None:
        # A number of steps cannot be made more accurate, so this run cannot be saved.
        problem = replace(reproducible(), l2=0.01)
        solver = {"kind": "gradient", "stop": {"steps": 2}}
        gaps = {}
        for restart in (True, False):
            (parent := tmp_path / str(restart)).mkdir()
            algorithm = {"name": "acc-feddcd", "weighting": "uniform", "solver": solver, "restart": restart}
            three = {"sampler": {"kind": "fixed", "size": 3}}
            run = train(problem, parent, algorithm, rounds=250, participation=three)
            gaps[restart] = problem.gap(run.model)
            assert (run.states[250].restarts.size > 1) == restart
            assert run.states[250].accuracy == 0.25 / 4 ** run.states[250].restarts.size
        assert gaps[False] > 100
        assert gaps[True] < 0.1 * gaps[False]

    def test_a_run_with_the_accuracy_of_the_settings_needs_none(self, tmp_path: Path) -> None:
        problem = replace(reproducible(), l2=0.01)
        algorithm = {
            "name": "acc-feddcd",
            "weighting": "uniform",
            "solver": {"kind": "gradient", "stop": {"accuracy": 0.9}},  # taken as 1/4
        }
        three = {"sampler": {"kind": "fixed", "size": 3}}
        run = train(problem, tmp_path, algorithm, rounds=150, participation=three)
        assert run.states[150].restarts.size == 0
        assert problem.gap(run.model) < 1e-4


NETWORK: dict[str, Any] = {
    "objective": {"kind": "mlp", "hidden": 4, "l2": 1e-3, "dtype": "float64"},
    "participation": PAIRS,
    "rounds": 30,
}


class TestNetwork:
    """The variant for models that are not convex."""

    def test_local_solves_start_from_the_average_and_the_duals_sum_to_zero(self, tmp_path: Path) -> None:
        pytest.importorskip("torch")
        algorithm = {
            "name": "feddcd",
            "dual_step_size": 0.1,
            "weighting": "uniform",
            "solver": {"kind": "sgd", "step_size": 0.1, "batch_size": 4, "stop": {"epochs": 5}},
        }
        run = train(reproducible(), tmp_path, algorithm, cohorts=SETS, **NETWORK)
        duals = run.client_states("dual")
        assert np.abs(np.sum(duals, axis=0)).max() < 1e-12
        assert min(float(np.linalg.norm(y)) for y in duals) > 1e-3
        # d = 24: up once, and down twice, the average to start from and the new one.
        assert run.floats() == (30 * 2 * 24, 2 * 30 * 2 * 24)
        objectives = [build_objective(run.settings.objective, shard) for shard in reproducible().shards]
        losses = [sum(f.value(w) for f in objectives) / 4 for w in run.models]
        assert losses[-1] < 0.8 * losses[0]

    def test_its_duals_are_what_their_definition_says(self, tmp_path: Path) -> None:
        pytest.importorskip("torch")
        solver = {"kind": "sgd", "step_size": 0.05, "batch_size": None, "stop": {"steps": 3}}
        algorithm = {"name": "feddcd", "dual_step_size": 0.3, "weighting": "uniform", "solver": solver}
        run = train(reproducible(), tmp_path, algorithm, cohorts=SETS, **(NETWORK | {"rounds": 6}))
        objectives = [build_objective(run.settings.objective, shard) for shard in reproducible().shards]
        model = objectives[0].initial(run.settings.seed)
        duals = np.zeros((4, model.size))
        for t in range(6):
            found = {}
            for i in SETS[t % 4]:
                w = model.copy()
                for _ in range(3):
                    w -= 0.05 * (objectives[i].gradient(w) - duals[i])
                found[i] = w
            model = np.mean(list(found.values()), axis=0)
            for i, w in found.items():
                duals[i] -= 0.3 * (w - model)
        np.testing.assert_allclose(run.model, model, rtol=0, atol=1e-12)
        np.testing.assert_allclose(run.client_states("dual"), duals, rtol=0, atol=1e-12)

    def test_without_dual_step_it_is_refused(self, tmp_path: Path) -> None:
        pytest.importorskip("torch")
        with pytest.raises(Exception, match="algorithm.dual_step_size"):
            train(reproducible(), tmp_path, {"name": "feddcd"}, **NETWORK)


@pytest.mark.parametrize("name", ["feddcd", "fedavg", "fedpdm"])
def test_the_objective_that_counts_clients_alike_is_known_of_every_method(name: str, tmp_path: Path) -> None:
    problem = reproducible()
    algorithm: dict[str, Any] = {"name": name}
    if name == "feddcd":
        algorithm |= {"weighting": "uniform", "monitor": 1}
    run = train(problem, tmp_path, algorithm, rounds=3, evaluation={"server": False, "clients": True})
    last = pq.read_table(run.folder.metrics).to_pylist()[-1]
    assert last["uniform_objective"] == pytest.approx(problem.value(run.model) / 4, rel=1e-12)
    assert abs(last["uniform_objective"] - last["objective"]) > 1e-4, "shards have different sizes"
    if name == "feddcd":
        assert last["minimised_objective"] == pytest.approx(last["uniform_objective"], rel=1e-12)
