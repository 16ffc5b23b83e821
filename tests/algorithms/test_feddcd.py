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
from fenchel.fleet.cohort import Cohort, Reduced
from tests.algorithms.mlr import SETS, Problem, reproducible, train
from tests.messages import raises
from tests.slow import rest_slow

EXACT = {"kind": "newton-cg", "stop": {"gradient": 1e-13}}
MLP = {"kind": "mlp", "hidden": 4, "l2": 1e-3, "dtype": "float64"}
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

    def of(self, name: str) -> dict[int, Dense]:
        """y_i (``dual``), z_i (``momentum``) or w_i (``minimizer``, as each client last computed it)."""
        return {
            t: np.stack([getattr(states[client], name) for client in sorted(states)]) for t, states in self.seen.items()
        }


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


METHODS = {
    "feddcd": feddcd(),
    "eta 1.9": feddcd(step_size=1.9),
    "one cohort": accelerated(),
    "two cohorts": accelerated(cohorts=2),
}
KNOWN = {
    "feddcd": (
        [3.9798780068, 3.9617738857, 3.8034614609, 3.7855820154],
        [-2.9793554284, -3.1850068086, -3.3571072784, -3.4874190933],
        [0.1745582965],
    ),
    "eta 1.9": (
        [3.9798780068, 3.9617738857, 3.7630318763, 3.7872880215],
        [-3.1284860116, -3.4032033227, -3.5473958831, -3.6608485988],
        [0.4028652682],
    ),
    "one cohort": (
        [3.9798780068, 3.9617738857, 3.7866928995, 3.7800632563],
        [-2.9793554284, -3.2249511631, -3.4201523999, -3.5639601054],
        [0.2443449371, 0.7453392185],
    ),
    "two cohorts": (
        [3.9798780068, 3.9642954425, 3.8280531216, 3.8164928116],
        [-2.9793554284, -3.1735174845, -3.3561653573, -3.5039180967],
        [0.2155819560, 0.6882671265],
    ),
}
"""Of the reproducible run: F and G after each round; sums of squares of y, and of z, after the last."""


@pytest.mark.usefixtures("second_sets")
@pytest.mark.parametrize("name", METHODS)
def test_the_reproducible_run_gives_the_numbers_of_the_specification(
    name: str, witness: Witness, tmp_path: Path
) -> None:
    problem, (values, duals, squares) = reproducible(), KNOWN[name]
    run = train(problem, tmp_path, METHODS[name] | {"monitor": 1}, cohorts=SETS, participation=PAIRS)
    assert [problem.value(model) for model in run.models] == pytest.approx(values, abs=2e-10, rel=0)
    for t, dual in enumerate(duals, 1):
        figures = run.states[t].figures
        assert -4 * figures["dual_objective"] == pytest.approx(dual, abs=2e-10)
        assert 4 * figures["minimised_objective"] == pytest.approx(problem.value(run.models[t - 1]), abs=1e-12)
        assert figures["gap"] >= problem.gap(run.models[t - 1]) - 1e-12
        assert conjugates(problem, witness.of("dual")[t]) == pytest.approx(dual, abs=1e-9)
    for vector, square in zip(("dual", "momentum"), squares, strict=False):
        assert float(np.sum(witness.of(vector)[4] ** 2)) == pytest.approx(square, abs=1e-9)


@pytest.mark.usefixtures("second_sets")
@pytest.mark.parametrize("algorithm", METHODS.values(), ids=METHODS)
@pytest.mark.parametrize("weighting", rest_slow(["uniform", "samples"]))
def test_what_holds_in_every_round(algorithm: dict[str, Any], weighting: str, witness: Witness, tmp_path: Path) -> None:
    problem, rounds = reproducible(weighted=weighting == "samples"), 16
    algorithm = {**algorithm, "weighting": weighting, "monitor": 1}
    run = train(problem, tmp_path, algorithm, cohorts=SETS, rounds=rounds, participation=PAIRS)
    plain = algorithm["name"] == "feddcd"
    before: Dense = np.zeros((4, 9))
    chance, duals = np.random.default_rng(0), witness.of("dual")
    for t in range(1, rounds + 1):
        y = duals[t]
        assert np.abs(y.sum(axis=0)).max() < 1e-12
        # Softmax does not see what all classes have in common, and the ridge pulls it to 0.
        assert np.abs(y.reshape(4, 3, 3).sum(axis=1)).max() < 1e-11
        cohort = SETS[(t - 1) % 4]
        if plain:
            idle = [i for i in range(4) if i not in cohort]
            assert y[idle].tobytes() == before[idle].tobytes()
        else:
            assert np.abs(witness.of("momentum")[t].sum(axis=0)).max() < 1e-12
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


@pytest.mark.parametrize("algorithm", rest_slow([feddcd(), accelerated()]), ids=["feddcd", "acc-feddcd"])
def test_in_the_end_everybody_agrees(algorithm: dict[str, Any], witness: Witness, tmp_path: Path) -> None:
    problem, last = reproducible(), 100
    run = train(problem, tmp_path, algorithm | {"monitor": last}, cohorts=SETS, rounds=last, participation=PAIRS)
    gap = problem.value(run.model) - problem.value(problem.optimum)
    assert gap == pytest.approx(1.17e-11, rel=0.05) if algorithm["name"] == "feddcd" else gap < 1e-8
    slopes = [f.gradient(problem.optimum) for f in problem.objectives]
    np.testing.assert_allclose(witness.of("dual")[last], slopes, rtol=0, atol=1e-4)
    np.testing.assert_allclose(witness.of("minimizer")[last], np.tile(problem.optimum, (4, 1)), rtol=0, atol=1e-4)


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


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.parametrize(
    ("algorithm", "sections", "key"),
    [
        (accelerated(), {"sampler": {"kind": "fixed", "size": 1}}, "participation.sampler"),
        (accelerated(), {"sampler": {"kind": "bernoulli", "probability": 0.2}}, "participation.sampler"),
        # Pairs would meet unequally.
        (
            accelerated(),
            {"sampler": {"kind": "weighted", "size": 3, "replacement": True}},
            "participation.sampler.kind",
        ),
        ({"name": "feddcd"}, {"objective": {"kind": "softmax", "l2": 0.0}}, "objective.l2"),
        ({"name": "acc-feddcd"}, {"objective": {"kind": "softmax", "l2": 0.0}}, "objective.l2"),
        ({"name": "feddcd"}, {"objective": MLP}, "objective.l2"),
        ({"name": "acc-feddcd", "dual_step_size": 0.1}, {"objective": MLP}, "objective.l2"),
        ({"name": "acc-feddcd", "conditioning": 0.3}, {"objective": MLP}, "objective.l2"),
        ({"name": "acc-feddcd"}, {"objective": MLP}, "objective.l2"),
    ],
)
def test_what_a_method_cannot_work_with_is_refused(
    algorithm: dict[str, Any], sections: dict[str, Any], key: str, tmp_path: Path
) -> None:
    if sections.get("objective") is MLP:
        pytest.importorskip("torch")
    participation = {name: sections[name] for name in sections if name == "sampler"} or PAIRS
    objective = sections.get("objective", {"kind": "softmax", "l2": 0.1})
    with raises(SettingsError, key=key):
        train(reproducible(), tmp_path, algorithm, objective=objective, participation=participation)


def test_the_first_solve_is_more_accurate_than_was_asked(tmp_path: Path) -> None:
    problem, solver = reproducible(), {"kind": "gradient", "stop": {"accuracy": 0.99}}
    exact = [minimize(f.value, np.zeros(9), jac=f.gradient, tol=1e-12).x for f in problem.objectives]
    run = train(problem, tmp_path, {"name": "feddcd", "weighting": "uniform", "solver": solver}, rounds=1)
    bound = np.mean([0.1 * np.linalg.norm(w) for w in exact])  # of delta = 0.01, from a start at zero
    assert np.linalg.norm(run.model - np.mean(exact, axis=0)) <= bound


class TestGuard:
    """Acceleration needs accurate solves; it begins anew where they were not."""

    @pytest.mark.parametrize(
        ("spreads", "restarts"),
        [
            ([1.0] * 10 + [200.0], [11]),
            ([1.0] * 10 + [50.0], []),
            ([1.0] * 9 + [1e9], []),  # there is nothing to compare with yet
            ([1.0] * 10 + [200.0] * 10, [11]),  # after which it begins to watch anew
            ([0.0] * 10 + [1e-300] * 10, []),  # agreement to the last bit, and its end
            # Agreement up to rounding; then the minimisers move apart again.
            ([1.0] * 10 + [1e-9] + [0.0] * 15 + [1e-9] * 9 + [2e-7], [36]),
            ([0.0] * 12 + [1e-12, 1e-11, 1e-10, 1e-9], [15]),
            # Agreement up to rounding, whose errors come and go.
            ([1.0] * 10 + [0.0] * 20 + [2e-15, 0.0, 0.0, 1e-15] * 10 + [3e-15] * 20, []),
            ([0.0] * 40, []),
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

    @pytest.mark.slow  # make test-all
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

    @pytest.mark.slow
    @pytest.mark.parametrize(
        ("l2", "solver", "size", "gap"),
        [
            (0.1, EXACT, 2, 1e-14),
            (0.01, {"kind": "gradient", "stop": {"accuracy": 0.9}}, 3, 1e-4),  # taken as 1/4
        ],
        ids=["exact", "a quarter"],
    )
    def test_it_leaves_a_run_that_converges_alone(
        self, l2: float, solver: dict[str, Any], size: int, gap: float, tmp_path: Path
    ) -> None:
        problem, some = replace(reproducible(), l2=l2), {"sampler": {"kind": "fixed", "size": size}}
        algorithm = {"name": "acc-feddcd", "weighting": "uniform", "solver": solver}
        run = train(problem, tmp_path, algorithm, rounds=150, participation=some)
        assert run.states[150].restarts.size == 0
        assert problem.gap(run.model) < gap


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
