"""FedPDM: the identities of the specification, a witness without any machinery, and what is refused."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fenchel.algorithms.client_half import ClientContext
from fenchel.algorithms.fedavg import LocalTraining
from fenchel.algorithms.fedpdm import FedPDM, FedPDMClient, FedPDMSettings
from fenchel.common.arrays import Dense, Indices, Vector
from fenchel.common.compression.uplink import ClientUplink
from fenchel.common.data.shard import Shard
from fenchel.common.errors import SettingsError
from fenchel.common.objectives.linear import LinearObjective
from fenchel.common.objectives.metrics import Metrics
from fenchel.common.objectives.objective import Objective
from fenchel.common.settings.uplink import Uplink, UplinkSparsifier
from fenchel.common.wire.values import SparseVector
from fenchel.fleet.cohort import Reduced
from fenchel.fleet.uplink import ReceivedVector, ServerUplink
from tests.algorithms.feddcd_oracle import Quadratics
from tests.algorithms.feddcd_quadratics import Quadratic, problem_of, train_quadratics
from tests.algorithms.fedpdm_oracle import Trace, Variant, simulated, soft
from tests.algorithms.fedpdm_runs import COHORTS, EVERYBODY, SEED, Solve, real, watched
from tests.algorithms.latecomers import federation
from tests.algorithms.mlr import Problem, Run, reproducible, train
from tests.messages import raises
from tests.payload_sizes import payload_bits
from tests.reservations import InRoom, roomy
from tests.slow import rest_slow

LAST = len(COHORTS)
START = np.array([0.3, -0.1, 0.0, 0.2, 0.05, -0.4, 0.0, 0.15, -0.2])
SUPPORTS = ("top-k", "random", "shared-random", "public-top-k")
AGGREGATORS = ("sampled", "stale", "hybrid")


@pytest.fixture
def _from_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs begin at a model that is not zero."""

    def initial(self: LinearObjective, seed: int) -> Vector:
        return START.astype(self.dtype)

    monkeypatch.setattr(LinearObjective, "initial", initial)


@pytest.fixture
def solves() -> Iterator[list[Solve]]:
    """Every local solve of the runs that follow."""
    with watched() as seen:
        yield seen


def distance(run: Run, trace: Trace) -> float:
    """The largest difference between a run and what it should be: models, duals, mirrors, on both sides."""
    pairs: list[tuple[Any, Any]] = [(run.models, trace.models), (run.client_states("dual"), trace.duals)]
    end = run.states[max(run.states)]
    algorithm = cast(FedPDMSettings, run.settings.algorithm)
    if algorithm.aggregator == "hybrid":
        pairs.append((end.mean_dual, trace.duals.mean(axis=0)))
    if algorithm.aggregator == "stale":
        pairs.append((end.mean_upload, trace.held.mean(axis=0)))
    if algorithm.aggregator == "stale" or algorithm.error_feedback == "ef21":
        pairs.append((run.client_states("mirrored"), trace.held))
    for client, replica in end.replicas.items():
        pairs.append((replica, trace.held[int(client.removeprefix("client-"))]))
    return max(float(np.abs(np.array(one) - np.array(other)).max()) for one, other in pairs)


# Oracle 1: one round in closed form


class Scripted(Objective):
    """Answers with given gradients, one after the other, wherever it is asked."""

    def __init__(self, gradients: Dense) -> None:
        super().__init__(dimension=gradients.shape[1], samples=1)
        self.left = list(gradients)

    def loss(self, w: Vector) -> float:
        return 0.0

    def batch_gradient(self, w: Vector, rows: Indices) -> Vector:
        gradient: Vector = self.left.pop(0).copy()
        return gradient

    def evaluate(self, w: Vector, shard: Shard | None = None) -> Metrics:
        return Metrics(0.0, None, 1)


def solved(gradients: Dense, x0: Vector, dual: Vector, **algorithm: Any) -> tuple[Vector, FedPDMClient, Scripted]:
    """One answer of the client half: what it sends, and itself afterwards."""
    chosen = FedPDMSettings(local_steps=len(gradients), batch_size=None, **algorithm)
    objective = Scripted(gradients)
    half = FedPDMClient(
        ClientContext(client="client-000", seed=SEED, settings=chosen, objective=objective, shard=cast(Shard, None))
    )
    half.state = half.initial_state()
    half.state.dual = dual.copy()
    reply = half.answer("solve", 1, {"model": x0})
    assert reply["steps"] == len(gradients) - len(objective.left)
    return cast(Vector, reply["upload"]), half, objective


@settings(max_examples=60)
@given(product=st.floats(0.05, 1.9), eta=st.floats(1e-3, 10.0), steps=st.integers(1, 30), seed=st.integers(0, 2**32))
def test_a_round_is_its_closed_form(product: float, eta: float, steps: int, seed: int) -> None:
    rho, draw, d = product / eta, np.random.default_rng(seed), 5
    gradients, x0, dual = draw.standard_normal((steps, d)), draw.standard_normal(d), draw.standard_normal(d)
    a = 1 - rho * eta
    weights = rho * eta / (1 - a**steps) * a ** np.arange(steps - 1, -1, -1.0)
    assert weights.sum() == pytest.approx(1, rel=1e-9)
    assert a < 0 or (weights >= 0).all()
    mean = weights @ gradients
    given = {"penalty": rho, "step_size": eta}
    y, half, _ = solved(gradients, x0, dual, aggregator="sampled", **given)
    x, other, _ = solved(gradients, x0, dual, aggregator="hybrid", **given)
    new, far = half.state.dual, 1 / rho
    close: Any = {"rtol": 1e-12, "atol": 1e-12 * max(1, far)}
    np.testing.assert_allclose(x, x0 + (1 - a**steps) * (dual - mean) / rho, **close)
    np.testing.assert_allclose(new / rho, (a**steps * dual + (1 - a**steps) * mean) / rho, **close)
    np.testing.assert_allclose(y, x0 + ((1 - 2 * a**steps) * dual - 2 * (1 - a**steps) * mean) / rho, **close)
    np.testing.assert_allclose(new / rho, (dual + rho * (x0 - y)) / (2 * rho), **close)
    np.testing.assert_allclose(x, (y + x0 + dual / rho) / 2, **close)
    np.testing.assert_allclose(other.state.dual / rho, new / rho, **close)


def test_local_steps_end_after_the_step_whose_direction_was_short_enough() -> None:
    gradients = np.array([[3.0], [0.5], [0.4], [9.0]])
    # g of each step, lambda = 0, rho = 0.1, eta = 1: 3; 0.5 - 0.3 = 0.2, squared 0.04
    for tolerance, steps in ((0.05, 2), (9.0, 1), (1e-6, 4)):
        upload, _, objective = solved(
            gradients, np.zeros(1), np.zeros(1), penalty=0.1, step_size=1.0, aggregator="hybrid", tolerance=tolerance
        )
        assert 4 - len(objective.left) == steps
        if steps == 2:
            np.testing.assert_allclose(upload, [-3.0 - 0.2], rtol=1e-14)  # that step is taken


# The witness


def combinations() -> list[Any]:
    """All that is allowed of aggregator, dual, support, fill and error feedback, each with a way down."""
    found = []
    ways_down = itertools.cycle([None, "top-k", "shared-random"])
    for aggregator, public, support in itertools.product(AGGREGATORS, (False, True), (None, *SUPPORTS)):
        if aggregator == "hybrid" and not public:
            continue
        for hold in (False, True) if support else (False,):
            for ef21 in (False, True) if support and aggregator != "hybrid" and not public else (False,):
                variant = Variant(
                    aggregator=aggregator,
                    public=public,
                    support=support,
                    keep=0.35,
                    hold=hold,
                    ef21=ef21,
                    down=next(ways_down),
                    down_keep=0.6,
                    gamma=0.02,
                    beta=0.05,
                    batch_size=2,
                    decays=True,
                )
                dual = "public" if public else "private"
                words = [aggregator, dual, support or "dense", "hold" if hold else "zero", "ef21" if ef21 else ""]
                found.append(pytest.param(variant, id=" ".join(word for word in words if word)))
    return found


@pytest.mark.usefixtures("_from_start")
@pytest.mark.parametrize("variant", rest_slow(combinations(), 12))
def test_it_is_the_algorithm_of_the_paper_in_every_combination(variant: Variant, tmp_path: Path) -> None:
    problem = reproducible()
    trace = simulated(problem, variant, COHORTS, SEED, start=START)
    assert distance(real(problem, variant, tmp_path), trace) < 1e-12
    assert np.abs(trace.models[-1] - START).max() > 0.02


VARIANTS = {
    "noise": Variant(noise=0.1, public=True),
    "noise, private dual": Variant(noise=0.1),
    "noise, hybrid": Variant(noise=0.1, aggregator="hybrid"),
    "noise, stale": Variant(noise=0.1, aggregator="stale", public=True),
    "noise on top-k": Variant(noise=0.1, public=True, support="top-k", keep=0.5),
    "noise on random, hybrid": Variant(noise=0.1, aggregator="hybrid", support="random", keep=0.5, hold=True),
    "clip": Variant(clip=0.05, public=True),
    "clip, hybrid": Variant(clip=0.05, aggregator="hybrid"),
    "clip and noise, stale": Variant(clip=0.05, noise=0.02, aggregator="stale", support="shared-random", keep=0.4),
    "clip and noise, public top-k": Variant(
        clip=0.05, noise=0.02, public=True, support="public-top-k", keep=0.5, hold=True
    ),
    "tolerance": Variant(steps=40, tolerance=0.02),
    "epoch": Variant(batch_size=2, batches="epoch", steps=2),
    "independent": Variant(batch_size=3, batches="independent", steps=5),
    "one entry": Variant(support="top-k", keep=1e-9, down="top-k", down_keep=1e-9),
    "large step": Variant(step_size=1.9, steps=4, batch_size=2),
}


@pytest.mark.usefixtures("_from_start")
@pytest.mark.parametrize("name", VARIANTS)
def test_it_is_the_algorithm_of_the_paper_with(name: str, tmp_path: Path, solves: list[Solve]) -> None:
    problem, variant = reproducible(), replace(VARIANTS[name], gamma=0.02)
    trace = simulated(problem, variant, COHORTS, SEED, start=START)
    assert distance(real(problem, variant, tmp_path), trace) < 1e-12
    steps = {(t, f"client-00{i}"): q for t, of in enumerate(trace.steps, 1) for i, q in of.items()}
    assert {(solve.round, solve.client): solve.steps for solve in solves} == steps
    if name == "tolerance":
        assert len(set(steps.values())) > 3, "the rule ends some solves early"


@pytest.mark.usefixtures("_from_start")
@pytest.mark.parametrize(
    ("aggregator", "ef21"),
    [("sampled", False), ("stale", False), ("hybrid", False), ("sampled", True), ("stale", True)],
)
def test_both_sides_compute_from_the_float32_values_on_the_wire(aggregator: str, ef21: bool, tmp_path: Path) -> None:
    variant = Variant(
        aggregator=aggregator, public=not ef21, support="top-k", keep=0.5, float32=True, gamma=0.02, ef21=ef21
    )
    problem, cohorts = reproducible(), COHORTS * 3
    run = real(problem, variant, tmp_path, cohorts, rounds=len(cohorts))
    trace = simulated(problem, variant, cohorts, SEED, start=START)
    assert distance(run, trace) < 1e-12
    exact = simulated(problem, replace(variant, float32=False), cohorts, SEED, start=START)
    assert np.abs(trace.models[-1] - exact.models[-1]).max() > 1e-10, "rounding shows"


@pytest.mark.parametrize("aggregator", AGGREGATORS)
@pytest.mark.parametrize("support", [None, "random"], ids=["dense", "random"])
def test_a_float32_model_stays_one(aggregator: str, support: str | None, tmp_path: Path, solves: list[Solve]) -> None:
    variant = Variant(aggregator=aggregator, support=support, keep=0.5, gamma=0.02, hold=True)
    objective = {"kind": "softmax", "l2": 0.1, "dtype": "float32", "regularizer": {"kind": "l1", "weight": 0.02}}
    run = real(reproducible(), variant, tmp_path, objective=objective)
    assert {model.dtype.name for model in run.models} == {"float32"}
    assert {solve.model.dtype.name for solve in solves} == {"float32"}
    assert {solve.after.dtype.name for solve in solves} == {"float32"}
    trace = simulated(reproducible(), variant, COHORTS, SEED)
    np.testing.assert_allclose(run.model, trace.models[-1], rtol=0, atol=1e-5)


def test_in_the_first_round_everybody_takes_part_if_asked_for(tmp_path: Path) -> None:
    problem, variant = reproducible(), Variant()
    algorithm = variant.algorithm() | {"first_round": "all"}
    run = train(problem, tmp_path, algorithm, cohorts=COHORTS, rounds=LAST, seed=SEED)
    trace = simulated(problem, variant, (EVERYBODY, *COHORTS[1:]), SEED)
    assert distance(run, trace) < 1e-12


def test_left_to_itself_it_is_hybrid_without_noise_and_sampled_with_a_public_dual_with_it(tmp_path: Path) -> None:
    problem = reproducible()
    plain = {"name": "fedpdm", "local_steps": 3, "batch_size": None, "step_size": 0.2}
    for noise, variant in (
        (None, Variant(aggregator="hybrid")),
        (0.1, Variant(aggregator="sampled", public=True, noise=0.1)),
    ):
        run = train(problem, tmp_path, plain, cohorts=COHORTS, rounds=LAST, seed=SEED, uplink={"noise": noise})
        expected = simulated(problem, variant, COHORTS, SEED).models[-1]
        np.testing.assert_allclose(run.model, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("support", SUPPORTS)
def test_a_coordinate_that_nobody_sends_is_zero_or_as_it_was_also_after_the_prox(support: str, tmp_path: Path) -> None:
    # fill is left out: zero for top-k, hold for the others.
    problem, gamma = reproducible(), 0.01
    algorithm = Variant(penalty=0.5).algorithm()
    objective = {"kind": "softmax", "l2": 0.1, "regularizer": {"kind": "l1", "weight": gamma}}
    run = train(
        problem,
        tmp_path,
        algorithm,
        cohorts=[(0,), (1,)],
        rounds=8,
        objective=objective,
        seed=SEED,
        uplink={"sparsify": {"support": support, "keep": 0.34}},
    )
    moved = kept = 0
    for before, after in itertools.pairwise(run.models):
        moved += int((before != after).sum())
        kept += int(((before == after) & (before != 0)).sum())
        assert (np.count_nonzero(after) if support == "top-k" else (before != after).sum()) <= 3
    assert moved > 3
    assert (kept == 0) if support == "top-k" else (kept > 3)


# Oracle 2


@pytest.mark.parametrize(("aggregator", "support"), list(zip((*AGGREGATORS, "sampled"), SUPPORTS, strict=True)))
def test_with_all_coordinates_kept_it_is_the_dense_algorithm_bit_for_bit(
    aggregator: str, support: str, tmp_path: Path
) -> None:
    problem = reproducible()
    dense = Variant(aggregator=aggregator, gamma=0.02, batch_size=2)
    sparse = replace(dense, support=support, keep=1.0, down="top-k", down_keep=1.0)
    one, other = real(problem, dense, tmp_path), real(problem, sparse, tmp_path)
    assert [model.tobytes() for model in one.models] == [model.tobytes() for model in other.models]
    assert np.array_equal(one.client_states("dual"), other.client_states("dual"))


# Oracle 3


@pytest.mark.parametrize("batch_size", [None, 2], ids=["full", "mini-batches"])
@pytest.mark.parametrize("aggregator", rest_slow(AGGREGATORS))
def test_with_everybody_it_is_feddyn_and_fedpd(aggregator: str, batch_size: int | None, tmp_path: Path) -> None:
    problem, rounds, rho = reproducible(), 25, 0.8
    variant = Variant(penalty=rho, aggregator=aggregator, batch_size=batch_size)
    run = real(problem, variant, tmp_path, [EVERYBODY] * rounds)
    local = {"local_steps": 3, "batch_size": batch_size, "step_size": 0.2, "weighting": "uniform"}
    for name, penalty in (("feddyn", {"alpha": rho}), ("fedpd", {"proximal_step": 1 / rho})):
        other = train(problem, tmp_path, {"name": name, **local, **penalty}, rounds=rounds, seed=SEED)
        np.testing.assert_allclose(run.models, other.models, rtol=0, atol=1e-12)


def test_feddyn_with_a_prox_at_the_server_is_the_hybrid_aggregator_whoever_takes_part(tmp_path: Path) -> None:
    problem = reproducible()
    variant = Variant(penalty=0.8, aggregator="hybrid", gamma=0.02, batch_size=2)
    run = real(problem, variant, tmp_path)
    algorithm = {"name": "feddyn", "alpha": 0.8, "regularizer_step": "server-prox", "weighting": "uniform"}
    algorithm |= {"local_steps": 3, "batch_size": 2, "step_size": 0.2}
    objective = {"kind": "softmax", "l2": 0.1, "regularizer": {"kind": "l1", "weight": 0.02}}
    other = train(problem, tmp_path, algorithm, cohorts=COHORTS, rounds=LAST, seed=SEED, objective=objective)
    np.testing.assert_allclose(run.models, other.models, rtol=0, atol=1e-12)


# Oracle 4


@pytest.mark.parametrize("aggregator", ["sampled", "stale"])
def test_without_noise_a_public_dual_is_the_private_one(aggregator: str, tmp_path: Path) -> None:
    variant = Variant(aggregator=aggregator, batch_size=2, gamma=0.02)
    private, public = (real(reproducible(), replace(variant, public=public), tmp_path) for public in (False, True))
    np.testing.assert_allclose(public.models, private.models, rtol=0, atol=1e-14)
    np.testing.assert_allclose(public.client_states("dual"), private.client_states("dual"), rtol=0, atol=1e-14)


def test_with_everybody_all_aggregators_coincide(tmp_path: Path) -> None:
    variant = Variant(batch_size=2, gamma=0.02)
    runs = [
        real(reproducible(), replace(variant, aggregator=aggregator), tmp_path, [EVERYBODY] * 12)
        for aggregator in AGGREGATORS
    ]
    for run in runs[1:]:
        np.testing.assert_allclose(run.models, runs[0].models, rtol=0, atol=1e-14)


# Oracles 5 to 7: golden numbers


@pytest.mark.parametrize("aggregator", rest_slow(AGGREGATORS))
def test_the_golden_example(aggregator: str, tmp_path: Path, solves: list[Solve]) -> None:
    rho = 2.0
    problem = problem_of(Quadratics(np.ones((2, 1, 1)), np.array([[1.0], [3.0]])))
    algorithm = {"name": "fedpdm", "penalty": rho, "step_size": 0.25, "local_steps": 1, "batch_size": None}
    objective = {
        "kind": "own",
        "name": "tests.algorithms.feddcd_quadratics:Quadratic",
        "regularizer": {"kind": "l1", "weight": 0.5},
    }
    run = train_quadratics(problem, tmp_path, algorithm | {"aggregator": aggregator}, objective=objective, rounds=200)
    expected: dict[str, list[list[float]]] = {
        "x": [[0.25, 0.75], [0.6875, 0.9375], [1.0, 1.125]],
        "lambda": [[-0.5, -1.5], [-0.375, -1.875], [-0.125, -1.875]],
        "y": [[0.5, 1.5], [0.875, 1.875], [1.0625, 2.0625]],
    }
    assert [float(model[0]) for model in run.models[:3]] == [0.75, 1.125, 1.3125]
    for t in range(3):
        now = [solve for solve in solves if solve.round == t + 1]
        local = [(solve.model + (solve.before - solve.after) / rho)[0] for solve in now]
        duals = [solve.after[0] for solve in now]
        assert local == expected["x"][t]
        assert duals == expected["lambda"][t]
        assert [x - dual / rho for x, dual in zip(local, duals, strict=True)] == expected["y"][t]
        uploads = [cast(Vector, solve.upload)[0] for solve in now]
        if aggregator == "hybrid":
            assert uploads == expected["x"][t]
        elif aggregator == "sampled":
            assert uploads == expected["y"][t]
        else:  # what changed
            before_ = expected["y"][t - 1] if t else [0.0, 0.0]
            assert uploads == [new - old for new, old in zip(expected["y"][t], before_, strict=True)]
    np.testing.assert_allclose(run.model, [1.5], rtol=1e-12)
    np.testing.assert_allclose(run.client_states("dual"), [[0.5], [-1.5]], rtol=1e-12)


def aggregated(vectors: Sequence[Vector], uplink: Uplink, around: Vector) -> ReceivedVector:
    """Return the sums and means that the server makes of these vectors, one of each client."""
    clients = [f"client-{i}" for i in range(len(vectors))]
    folded = Reduced(clients, None, 1 << 20)
    room = InRoom(folded, roomy(clients, 1 << 20))
    for i, vector in enumerate(vectors):
        sent = ClientUplink(uplink, SEED, clients[i]).send(vector, 1, around=around)
        room.add(clients[i], {"upload": sent.wire})
    return ServerUplink(uplink, SEED).received(folded, "upload", around, 1)


@pytest.mark.parametrize(
    ("k", "mean", "coverage"),
    [(1, [3, -4, 0], [1, 1, 0]), (2, [3, -2.5, 2], [1, 2, 1]), (3, [1.6, -2.5, 1.25], [2, 2, 2])],
)
def test_the_golden_aggregation(k: int, mean: list[float], coverage: list[float]) -> None:
    vectors = [np.array([3, -1, 0.5]), np.array([0.2, -4, 2])]
    uplink = Uplink(sparsify=UplinkSparsifier(support="top-k", keep=k / 3))
    sums = aggregated(vectors, uplink, np.array([7.0, 7.0, 7.0]))
    assert sums.mean().tolist() == mean
    assert sums.coverage.tolist() == coverage
    held = uplink.model_copy(update={"sparsify": UplinkSparsifier(support="top-k", keep=k / 3, fill="hold")})
    wanted = [m if w else 7.0 for m, w in zip(mean, coverage, strict=True)]
    assert aggregated(vectors, held, np.array([7.0, 7.0, 7.0])).mean().tolist() == wanted


@pytest.mark.parametrize("support", SUPPORTS)
def test_a_zero_that_was_sent_counts(support: str) -> None:
    # All of them are sent, and some are zero: the mean is over both clients.
    uplink = Uplink(sparsify=UplinkSparsifier.model_validate({"support": support, "keep": 1.0}))
    sums = aggregated([np.array([4.0, 0, 0]), np.array([0, -2.0, 0])], uplink, np.full(3, 9.0))
    assert sums.mean().tolist() == [2, -1, 0]
    assert sums.coverage.tolist() == [2, 2, 2]


# Oracle 10


@dataclass(frozen=True)
class Settled:
    """Quadratics, and where FedPDM stays on them."""

    quadratics: Quadratics
    model: Vector  # x*
    duals: Dense  # the gradients of f_i there, shape (N, d)


def settled(gamma: float) -> Settled:
    random = np.random.default_rng(5)
    roots = random.standard_normal((4, 3, 3)) / 2
    curvatures = np.eye(3) / 2 + roots @ roots.transpose(0, 2, 1)
    centers = random.standard_normal((4, 3))
    mean = curvatures.mean(axis=0)
    pull = np.mean([a @ c for a, c in zip(curvatures, centers, strict=True)], axis=0)
    x, step = np.linalg.solve(mean, pull), 0.3
    for _ in range(2000):
        x = soft(x - step * (mean @ x - pull), step * gamma)
    duals = np.array([a @ (x - c) for a, c in zip(curvatures, centers, strict=True)])
    return Settled(Quadratics(curvatures, centers), x, duals)


def from_solution(
    there: Settled, variant: Variant, parent: Path, cohorts: Sequence[Sequence[int]], patch: pytest.MonkeyPatch
) -> Run:
    """A run that begins at the solution: the model, and all that both sides keep."""
    rho = variant.penalty
    client_state, server_state = FedPDMClient.initial_state, FedPDM.initial_state

    def of_client(self: FedPDMClient) -> Any:
        state = client_state(self)
        i = int(self.client.removeprefix("client-"))
        state.dual = there.duals[i].copy()
        if state.mirrored.size:
            state.mirrored = there.model - there.duals[i] / rho
        return state

    def of_server(self: FedPDM, model: Vector) -> FedPDM.State:
        state = server_state(self, model)
        state.mean_dual = there.duals.mean(axis=0)
        state.mean_upload = there.model - there.duals.mean(axis=0) / rho
        return state

    with patch.context() as patched:
        patched.setattr(Quadratic, "initial", lambda self, seed: there.model.copy())
        patched.setattr(FedPDMClient, "initial_state", of_client)
        patched.setattr(FedPDM, "initial_state", of_server)
        objective = {
            "kind": "own",
            "name": "tests.algorithms.feddcd_quadratics:Quadratic",
            "regularizer": variant.sections()["regularizer"],
        }
        return train_quadratics(
            problem_of(there.quadratics),
            parent,
            variant.algorithm(),
            cohorts=cohorts,
            rounds=len(cohorts),
            objective=objective,
        )


@pytest.mark.parametrize(
    ("aggregator", "cohorts"),
    [
        ("sampled", [EVERYBODY] * 5),
        ("stale", [EVERYBODY] * 5),
        ("hybrid", [EVERYBODY] * 5),
        ("stale", COHORTS),
        ("hybrid", COHORTS),
    ],
)
def test_it_stays_at_a_solution(
    aggregator: str, cohorts: Sequence[Sequence[int]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = settled(gamma=0.3)
    assert 0 < np.count_nonzero(there.model) < 3
    variant = Variant(penalty=1.5, step_size=0.3, aggregator=aggregator, gamma=0.3)
    run = from_solution(there, variant, tmp_path, cohorts, monkeypatch)
    np.testing.assert_allclose(run.models, [there.model] * len(cohorts), rtol=0, atol=1e-13)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_sampling_shakes_a_solution_as_much_as_predicted(
    size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # h = 0, so that x0 is u; every possible cohort once, so that the mean over them is the expectation.
    there, rho, clients = settled(gamma=0.0), 1.5, 4
    variant = Variant(penalty=rho, step_size=0.3)
    shaken = [
        from_solution(there, variant, tmp_path, [cohort], monkeypatch).model
        for cohort in itertools.combinations(range(clients), size)
    ]
    centre = there.model - there.duals.mean(axis=0) / rho
    variance = np.mean([float(np.sum((u - centre) ** 2)) for u in shaken])
    spread = float(np.mean(np.sum((there.duals - there.duals.mean(axis=0)) ** 2, axis=1)))
    expected = (clients - size) / (size * (clients - 1)) * spread / rho**2
    assert variance == pytest.approx(expected, rel=1e-10)
    assert variance > 1e-2


# Oracle 11


@pytest.mark.parametrize(("factor", "is_zero"), [(1.001, True), (0.999, False)])
def test_a_strong_penalty_leaves_the_zero_model_exactly_zero(factor: float, is_zero: bool, tmp_path: Path) -> None:
    # One full step from 0 with lambda = 0: gbar_i is the gradient at 0, and 1 - a^Q is rho eta.
    problem, rho, eta = reproducible(), 1.0, 0.2
    steepest = float(np.abs(np.mean([f.gradient(np.zeros(9)) for f in problem.objectives], axis=0)).max())
    gamma = factor * 2 * rho * eta * steepest
    variant = Variant(penalty=rho, step_size=eta, steps=1, gamma=gamma)
    run = real(problem, variant, tmp_path, [EVERYBODY])
    assert (not run.model.any()) == is_zero


# Oracle 13


def test_clipped_gradients_bound_the_dual_and_the_upload(
    tmp_path: Path, solves: list[Solve], monkeypatch: pytest.MonkeyPatch
) -> None:
    bound, rho = 0.1, 0.7
    bare = Problem(reproducible().shards, l2=0.0)
    variant = Variant(penalty=rho, step_size=1.2, steps=4, batch_size=2)

    def reached() -> tuple[float, float]:
        solves.clear()
        real(bare, variant, tmp_path, COHORTS * 4)
        duals = [float(np.linalg.norm(solve.after)) for solve in solves]
        moves = [float(np.linalg.norm(cast(Vector, solve.upload) - solve.model)) for solve in solves]
        return max(duals) / bound, max(moves) / (3 * bound / rho)

    free = reached()
    assert min(free) > 1.5, "without clipping neither holds"
    monkeypatch.setattr(LocalTraining, "clip", bound)
    dual, move = reached()
    assert 0.5 < dual <= 1 + 1e-12
    assert 0.4 < move <= 1 + 1e-12


# Oracle 19


def test_the_way_up_costs_what_the_paper_counts(tmp_path: Path, solves: list[Solve]) -> None:
    # d = 7850 and 30 clients, as on MNIST.
    clients, features = 30, 785
    shards = tuple(
        Shard(
            np.random.default_rng(i).random((2, features)),
            np.array([i % 10, (i + 1) % 10]),
            classes=10,
            total_features=features,
            samples_held=np.arange(2),
        )
        for i in range(clients)
    )
    problem = Problem(shards, l2=0.0)
    # Differences of indices take a byte at least, and where they take more than a bit for each entry, a bitmap is sent.
    for support, least_bits, most_bits in (("top-k", 8 * 785, 7850), ("shared-random", 0, 0), ("random", 64, 64)):
        solves.clear()
        variant = Variant(support=support, keep=0.1, steps=1, float32=True, aggregator="hybrid")
        run = real(problem, variant, tmp_path, [range(clients)])
        uploads = [solve.upload for solve in solves]
        values = [up.values if isinstance(up, SparseVector) else up for up in uploads]
        assert sum(8 * each.nbytes for each in values) == 753_600
        bits = [payload_bits(upload) for upload in uploads]
        assert 32 * 785 + least_bits <= min(bits) <= max(bits) <= 32 * 785 + most_bits
        sent = run.calls["bytes_up"].to_pylist()
        seed_bits = 64 if support == "random" else 0  # travel in the head of the message
        for size in sent:
            assert min(bits) - seed_bits <= 8 * size < max(bits) + 128  # two paddings to eight bytes


# Oracle 20


# Late joiners

LOCAL = {"name": "fedpdm", "local_steps": 3, "batch_size": 2, "step_size": 0.2}
PAIRS = {"sampler": {"kind": "fixed", "size": 2}}
TOP = {"sparsify": {"support": "top-k", "keep": 0.5}}
LOW = {"downlink": {"dtype": "float32"}}


@pytest.mark.usefixtures("_from_start")
@pytest.mark.parametrize("comes", [0, 4])
@pytest.mark.parametrize(
    "own",
    [{"aggregator": "hybrid"}, {"aggregator": "stale"}, {"aggregator": "stale", "error_feedback": "ef21"}],
    ids=["hybrid", "stale", "ef21"],
)
def test_a_newcomer_disturbs_no_mean_over_all_clients(own: dict[str, Any], comes: int, tmp_path: Path) -> None:
    problem = reproducible()
    shards = dict(zip(["a", "b", "d", "c"], problem.shards, strict=True))
    run = federation(tmp_path, shards, {"c": comes}, LOCAL | own, rounds=16, participation=PAIRS, uplink=TOP, seed=SEED)
    run.run()
    last = run.states[16]
    if own["aggregator"] == "hybrid":
        np.testing.assert_allclose(last.mean_dual, run.client_states("dual").mean(axis=0), rtol=0, atol=1e-14)
        assert np.abs(last.mean_dual).max() > 1e-3
    else:
        mirrored = run.client_states("mirrored")
        np.testing.assert_allclose(last.mean_upload, mirrored.mean(axis=0), rtol=0, atol=1e-14)
        assert np.abs(mirrored - START).max() > 1e-2


def test_the_replica_of_a_newcomer_begins_where_its_own_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Numbers of which two thirds and one third do not always make the whole, to the bit.
    start = np.random.default_rng(0).standard_normal(9)
    monkeypatch.setattr(LinearObjective, "initial", lambda self, seed: start.copy())
    shards = dict(zip("abc", reproducible().shards, strict=False))
    own = {"aggregator": "sampled", "error_feedback": "ef21"}
    run = federation(tmp_path, shards, {"c": 4}, LOCAL | own, rounds=12, participation=PAIRS, uplink=TOP, seed=SEED)
    run.run()
    replicas = run.states[12].replicas
    assert sorted(replicas) == list("abc")
    for client, mirrored in zip("abc", run.client_states("mirrored"), strict=True):
        assert replicas[client].tobytes() == mirrored.tobytes()


# Refusals


@pytest.mark.parametrize(
    ("algorithm", "sections"),
    [
        ({"penalty": 10.0, "step_size": 0.2}, {}),
        ({"aggregator": "hybrid", "dual": "private"}, {}),
        ({"aggregator": "sampled", "error_feedback": "ef21"}, {}),
        ({"aggregator": "stale", "error_feedback": "ef21"}, {"uplink": {**TOP, "noise": 0.1}}),
        ({"aggregator": "stale", "error_feedback": "ef21"}, {"uplink": {**TOP, "clip": 0.1}}),
        ({"aggregator": "hybrid", "error_feedback": "ef21"}, {"uplink": TOP}),
        ({"error_feedback": "ef21"}, {"uplink": TOP}),
        ({"aggregator": "stale", "error_feedback": "ef21", "dual": "public"}, {"uplink": TOP}),
        ({"tolerance": -1.0}, {}),
        ({}, {"uplink": {"sparsify": {"support": "top-k", "keep": 0.0}}}),
        ({}, {"uplink": {"sparsify": {"support": "top-k", "keep": 1.1}}}),
        ({}, {"downlink": {"sparsify": {"support": "random", "keep": 0.5}}}),
        ({}, {"objective": {"kind": "softmax", "regularizer": {"kind": "mcp", "weight": 0.1, "theta": 1.0}}}),
    ],
)
def test_settings_that_do_not_fit_are_refused(
    algorithm: Mapping[str, Any], sections: Mapping[str, Any], tmp_path: Path
) -> None:
    with raises(SettingsError, source="settings"):
        reproducible().settings(tmp_path, {"name": "fedpdm", **algorithm}, **sections)


@pytest.mark.parametrize(
    ("name", "section"), [("mb-sgd", {"uplink": TOP}), ("fedpd", {"uplink": {"noise": 0.1}}), ("feddcd", LOW)]
)
def test_an_algorithm_that_sends_other_vectors_takes_no_uplink(
    name: str, section: dict[str, Any], tmp_path: Path
) -> None:
    with raises(SettingsError, source="settings"):
        reproducible().settings(tmp_path, {"name": name}, **section)


def test_the_figures_of_a_round_are_what_they_say(tmp_path: Path) -> None:
    variant = replace(VARIANTS["tolerance"], support="random", keep=0.35, gamma=0.02)
    run = real(reproducible(), variant, tmp_path)
    trace = simulated(reproducible(), variant, COHORTS, SEED)
    rows = pq.read_table(run.folder.metrics).to_pylist()
    assert [row["nonzeros"] for row in rows] == [np.count_nonzero(model) for model in run.models]
    assert [row["local_steps"] for row in rows] == pytest.approx(
        [np.mean(list(steps.values())) for steps in trace.steps]
    )
    assert rows[2]["coverage"] == pytest.approx(3 / 9), "one client sends three of nine"
    assert 3 / 9 < rows[1]["coverage"] <= 1
