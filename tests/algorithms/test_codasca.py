"""CODASCA, CODA+, CODA and NPA: the numbers of the specification, a second implementation, faults."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.datasets import load_digits

from fenchel.algorithms.auc.coda_plus import CodaPlusSettings
from fenchel.algorithms.auc.codasca import Codasca, CodascaSettings
from fenchel.algorithms.auc.npa import NaiveParallelSettings
from fenchel.algorithms.auc.staged import Staged
from fenchel.algorithms.auc.stages import Stage, TheorySchedule
from fenchel.algorithms.client_half import ClientContext
from fenchel.algorithms.registry import client_half
from fenchel.common.errors import DataError, LostStateError, RunStoppedError, SettingsError
from fenchel.common.objectives.factory import build_objective
from fenchel.common.settings.objective import BinarySettings
from fenchel.common.settings.registry import algorithm_settings
from fenchel.testing import Faults
from tests.algorithms.auc_runs import Array, imbalance, kept, plain_signs, point, points, random_parts, scored, uniform
from tests.algorithms.codasca_oracle import Machines, Part, golden
from tests.algorithms.mlr import Run, train
from tests.messages import raises
from tests.slow import rest_slow

ONE_STAGE = {"stage_steps": 1_000_000}
EXACT = {"batch_size": None, "schedule": ONE_STAGE}
LINEAR = {"kind": "binary", "dtype": "float64"}
THEORY = {"kind": "theory"}


def codasca(**keys: Any) -> dict[str, Any]:
    return {"name": "codasca", **EXACT, **keys}


def coda_plus(**keys: Any) -> dict[str, Any]:
    return {"name": "coda-plus", **EXACT, **keys}


def npa(**keys: Any) -> dict[str, Any]:
    return {"name": "npa", **EXACT, **keys}


def starting_at(folder: Path, w: Array, **keys: Any) -> dict[str, Any]:
    """The section ``objective`` of a run that starts from given weights."""
    file = folder / "start.npz"
    np.savez(file, model=w)
    return {**LINEAR, "initial": {"file": str(file)}, **keys}


def run_golden(folder: Path, algorithm: dict[str, Any], rounds: int) -> Run:
    sections: dict[str, Any] = {"rounds": rounds, "objective": starting_at(folder, np.array([0.1, -0.2]))}
    return train(scored(golden()), folder, algorithm | {"gamma": 0.5}, **sections)


# The numbers of section 6.1


def test_coda_plus_gives_the_golden_vectors(tmp_path: Path) -> None:
    schedule = {"stage_steps": 4}
    run = run_golden(tmp_path, coda_plus(local_steps=2, step_size=0.1, schedule=schedule), 2)
    assert run.states[2].prior == 0.375
    first, output = points(run)
    mean = [0.127817138672, -0.084276123047, -0.004348144531, -0.002622070312, 0.002104492188]
    average = [0.133505021462, -0.064326246056, -0.002943140653, -0.002173843027, 0.001110026157]
    np.testing.assert_allclose(first, mean, rtol=0, atol=1e-12)
    np.testing.assert_allclose(output, average, rtol=0, atol=1e-12)
    last = run_golden(tmp_path, coda_plus(local_steps=2, step_size=0.1, output="last"), 2)
    ended = [0.151431605088, -0.001466488205, 0.002708657634, -0.003440593057, -0.005611737871]
    np.testing.assert_allclose(points(last)[1], ended, rtol=0, atol=1e-12)


@pytest.mark.parametrize("wire", ["paper", "compact"])
def test_codasca_gives_the_golden_vectors(wire: str, tmp_path: Path) -> None:
    algorithm = codasca(local_steps=2, step_size=0.1, wire=wire)
    run = run_golden(tmp_path, algorithm, 1)
    controls = [
        [-0.285534667969, 0.161433105469, -0.034741210938, 0.066005859375, -0.103232421875],
        [0.007363281250, -1.318671875000, 0.078222656250, -0.039785156250, 0.124277343750],
        [-0.139085693359, -0.578619384766, 0.021740722656, 0.013110351563, 0.010522460938],
    ]
    found = np.array([*kept(run, "control"), run.states[1].control])
    np.testing.assert_allclose(plain_signs(found), controls, rtol=0, atol=1e-12)
    run = run_golden(tmp_path, algorithm, 2)
    second = [0.151638311516, 0.002910962166, -0.000848591435, -0.001549740701, -0.000202299929]
    control = [-0.119105864221, -0.435935426062, -0.017497765481, -0.005361648059, -0.011533960581]
    np.testing.assert_allclose(points(run)[1], second, rtol=0, atol=1e-12)
    np.testing.assert_allclose(plain_signs(run.states[2].control), control, rtol=0, atol=1e-12)
    longer = [
        [0.141725708008, -0.026414184570, -0.006522216797, -0.003933105469, 0.003156738281],
        [0.174305463082, 0.079680761665, 0.007280822870, -0.000971950375, -0.007668991578],
    ]
    run = run_golden(tmp_path, algorithm | {"server_step_size": 1.5}, 2)
    np.testing.assert_allclose(points(run), longer, rtol=0, atol=1e-12)


def test_with_one_local_step_all_three_are_the_same_algorithm(tmp_path: Path) -> None:
    expected = [0.174618611145, 0.083109233093, 0.004721847534, 0.001482055664, -0.001362155151]
    for algorithm in (
        codasca(local_steps=1, step_size=0.1, server_step_size=2),
        coda_plus(local_steps=1, step_size=0.2, output="last"),
        npa(step_size=0.2, output="last"),
    ):
        run = run_golden(tmp_path, algorithm, 3)
        np.testing.assert_allclose(points(run)[2], expected, rtol=0, atol=1e-12, err_msg=algorithm["name"])


def test_the_halves_of_the_clients_give_the_golden_vectors() -> None:
    """Clients one by one: first gradients, local iterates of both rounds, for both algorithms."""
    start = np.array([0.1, -0.2, 0, 0, 0])
    naive = Halves(golden(), 0.375, **npa(step_size=0.1))
    found = [half.answer("gradient", 1, {"prior": 0.375, "point": start}) for half in naive.clients]
    gradients = [[-0.3046875, 0.1734375, -0.03125, 0.065625, -0.096875], [0.0125, -1.48125, 0.15625, -0.05625, 0.2125]]
    np.testing.assert_allclose(
        plain_signs(np.array([reply["gradient"] for reply in found])), gradients, rtol=0, atol=1e-12
    )
    first = [
        [0.157106933594, -0.232286621094, 0.006948242188, -0.013201171875, -0.020646484375],
        [0.098527343750, 0.063734375000, -0.015644531250, 0.007957031250, 0.024855468750],
    ]
    second = [
        [0.158562264273, 0.004777863443, -0.006356266713, 0.002326584291, 0.010032883101],
        [0.144714358759, 0.001044060888, 0.004659083843, -0.005426065693, -0.010437482958],
    ]
    keys: dict[str, Any] = {"local_steps": 2, "step_size": 0.1, "gamma": 0.5}
    for algorithm, extra in ((codasca(**keys, wire="paper"), {}), (coda_plus(**keys, output="last"), {"ends": False})):
        machines = Halves(golden(), 0.375, **algorithm)
        replies = machines.answers(start, begins=True, **extra)
        np.testing.assert_allclose(
            [start + reply["change"] for reply in replies], first, rtol=0, atol=1e-12, err_msg=algorithm["name"]
        )
        if not extra:
            control = np.mean([reply["control_change"] for reply in replies], axis=0)
            u = start + np.mean([reply["change"] for reply in replies], axis=0)
            replies = machines.answers(u, 2, control=control)
            np.testing.assert_allclose([u + reply["change"] for reply in replies], second, rtol=0, atol=1e-12)


# A second implementation


@settings(max_examples=10, deadline=None)
@given(
    window=st.integers(1, 4),
    eta_g=st.sampled_from([0.9, 1.0, 1.5]),
    wire=st.sampled_from(["paper", "compact"]),
    start=st.sampled_from(["carry", "zero", "gradient"]),
    weighting=st.sampled_from(["uniform", "samples"]),
    seed=st.integers(0, 5),
)
def test_codasca_is_the_algorithm_of_the_paper_over_several_stages(
    window: int,
    eta_g: float,
    wire: str,
    start: str,
    weighting: str,
    seed: int,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    parts = random_parts([7, 12, 9], 3, seed)
    sizes = np.array([part.y.size for part in parts])
    weights = sizes / sizes.sum() if weighting == "samples" else np.full(3, 1 / 3)
    machines = Machines(parts, weights, gamma=0.3)
    u = np.zeros(6)
    for stage in range(3):
        u = machines.codasca(u, 0.2 / 3**stage, eta_g, window, 2, start)
    algorithm = codasca(
        local_steps=window,
        step_size=0.2,
        gamma=0.3,
        server_step_size=eta_g,
        wire=wire,
        cv_init=start,
        weighting=weighting,
        schedule={"stage_steps": 2 * window},
    )
    run = train(scored(parts), tmp_path_factory.mktemp("run"), algorithm, rounds=6)
    assert run.states[6].prior == pytest.approx(machines.p, rel=1e-14)
    np.testing.assert_allclose(points(run), machines.rounds, rtol=0, atol=1e-12)
    np.testing.assert_allclose(plain_signs(kept(run, "control")), machines.c, rtol=0, atol=1e-11)
    assert imbalance(run) < 1e-15


@pytest.mark.parametrize("output", ["average", "last"])
@pytest.mark.parametrize("window", [1, 3])
def test_coda_plus_is_the_algorithm_of_the_paper_over_several_stages(output: str, window: int, tmp_path: Path) -> None:
    parts = random_parts([7, 12, 9], 3, seed=1)
    machines = uniform(parts, 0.3)
    u = np.zeros(6)
    outputs = []
    for stage in range(2):
        average, last = machines.coda_plus(u, 0.2 / 3**stage, window, 2)
        u = average if output == "average" else last
        outputs.append(u)
    steps = {"step_size": 0.2, "gamma": 0.3, "output": output}
    schedule = {"stage_steps": 2 * window}
    run = train(scored(parts), tmp_path, coda_plus(local_steps=window, **steps, schedule=schedule), rounds=4)
    np.testing.assert_allclose(points(run)[1::2], outputs, rtol=0, atol=1e-12)
    if window == 1:
        naive = train(scored(parts), tmp_path, npa(**steps, schedule=schedule), rounds=4)
        np.testing.assert_allclose(points(naive), points(run), rtol=0, atol=1e-13)


@pytest.mark.parametrize("name", ["coda-plus", "npa"])
def test_a_run_that_ends_within_a_stage_returns_the_average_so_far(name: str, tmp_path: Path) -> None:
    parts = random_parts([7, 12], 3, seed=2)
    window = 3 if name == "coda-plus" else 1
    average, _ = uniform(parts, 0.3).coda_plus(np.zeros(6), 0.2, window, 3)
    length = {"local_steps": 3} if name == "coda-plus" else {}
    run = train(scored(parts), tmp_path, {"name": name, **EXACT, **length, "step_size": 0.2, "gamma": 0.3}, rounds=3)
    with np.load(run.folder.model) as archive:
        np.testing.assert_allclose(archive["model"], average[:3], rtol=0, atol=1e-13)
    assert np.abs(run.model - average[:3]).max() > 1e-3


def test_coda_steps_on_the_proximal_term_exactly_and_renews_alpha(tmp_path: Path) -> None:
    parts, gamma, eta = random_parts([7, 12], 3, seed=3), 0.6, 0.2
    machines = uniform(parts, 0.0)
    centre = np.zeros(6)
    total, u = np.zeros(6), centre
    for _ in range(2):
        ends = []
        for k in range(2):
            own = u
            for _ in range(2):
                g_v, g_alpha = parts[k].gradients(own, machines.p)
                v = (own[:-1] - eta * g_v + eta * gamma * centre[:-1]) / (1 + eta * gamma)
                own = np.append(v, own[-1] + eta * g_alpha)
                total += own / 2
            ends.append(own)
        u = np.mean(ends, axis=0)
    average = total / 4
    scores = [part.x @ average[:3] for part in parts]
    shares = [np.mean(part.y > 0) for part in parts]
    up = np.mean([np.mean(h * (part.y > 0)) for h, part in zip(scores, parts, strict=True)]) / np.mean(shares)
    down = np.mean([np.mean(h * (part.y < 0)) for h, part in zip(scores, parts, strict=True)]) / (1 - np.mean(shares))
    own_values = [h[part.y < 0].mean() - h[part.y > 0].mean() for h, part in zip(scores, parts, strict=True)]
    assert abs(down - up - np.mean(own_values)) > 1e-3, "clients differ, and so do the two estimators"
    algorithm = {
        "name": "coda",
        **EXACT,
        "local_steps": 2,
        "step_size": eta,
        "gamma": gamma,
        "schedule": {"stage_steps": 4},
    }
    for estimator, alpha in {"mixture": down - up, "client-means": np.mean(own_values)}.items():
        run = train(scored(parts), tmp_path, algorithm | {"dual_estimator": estimator}, rounds=2)
        np.testing.assert_allclose(points(run)[1], np.append(average[:-1], alpha), rtol=0, atol=1e-13)


# Identities and equivalences of section 6.3


@pytest.mark.parametrize("start", ["carry", "zero", "gradient"])
def test_both_wires_give_the_same_trajectory(start: str, tmp_path: Path) -> None:
    problem = scored(random_parts([9, 14, 11], 4, seed=4))
    algorithm = codasca(local_steps=3, step_size=0.1, server_step_size=1.3, gamma=0.1, cv_init=start)
    algorithm |= {"schedule": {"stage_steps": 9}, "batch_size": 3}
    paper, compact = (
        train(problem, tmp_path, algorithm | {"wire": wire}, rounds=8, seed=5) for wire in ("paper", "compact")
    )
    np.testing.assert_allclose(points(compact), points(paper), rtol=0, atol=1e-13)
    np.testing.assert_allclose(kept(compact, "control"), kept(paper, "control"), rtol=0, atol=1e-13)
    assert np.abs(points(paper)[-1]).max() > 0.05


WINDOW: dict[str, Any] = {"local_steps": 4, "step_size": 0.1}


@pytest.mark.parametrize(
    ("sizes", "batch_size", "first", "second"),
    [
        ([15], 4, codasca(**WINDOW, wire="paper"), coda_plus(**WINDOW, output="last")),  # alone nobody drifts
        ([20, 30], 4, codasca(local_steps=1, step_size=0.05, server_step_size=2), npa(step_size=0.1, output="last")),
        ([12, 12, 12], None, codasca(**WINDOW), coda_plus(**WINDOW, output="last")),
    ],
    ids=["alone", "one local step", "clones"],
)
def test_it_is_its_relative_where_clients_do_not_drift(
    sizes: list[int], batch_size: int | None, first: dict[str, Any], second: dict[str, Any], tmp_path: Path
) -> None:
    parts = random_parts(sizes, 3, seed=5)
    parts = parts[:1] * 3 if len(sizes) == 3 else parts
    keys: dict[str, Any] = {"gamma": 0.1, "batch_size": batch_size}
    runs = [points(train(scored(parts), tmp_path, algorithm | keys, rounds=5, seed=6)) for algorithm in (first, second)]
    np.testing.assert_allclose(runs[0], runs[1], rtol=0, atol=1e-14)


def test_sums_of_gradients_keep_the_digits_that_differences_lose() -> None:
    """Section 6.3, item 12: short rounds with float32."""
    parts, window, eta = random_parts([40, 40], 6, seed=19), 4, 2.5e-4
    start = np.append(np.random.default_rng(0).uniform(0.5, 1.5, 6), np.zeros(3))
    algorithm = codasca(local_steps=window, step_size=eta, wire="paper")
    exact, rounded = (
        Halves(parts, 0.3, dtype=dtype, **algorithm).answers(start.astype(dtype), begins=True)
        for dtype in ("float64", "float32")
    )
    for wide, narrow in zip(exact, rounded, strict=True):
        size = np.linalg.norm(wide["control_change"])
        difference = -narrow["change"].astype(np.float64) / (window * eta)
        assert narrow["control_change"].dtype == np.float32
        assert np.linalg.norm(narrow["control_change"] - wide["control_change"]) < 2e-6 * size
        assert np.linalg.norm(difference - wide["control_change"]) > 1e-5 * size


def test_the_costs_are_those_of_the_specification(tmp_path: Path) -> None:
    problem, n, rounds = scored(random_parts([7, 12, 9], 3, seed=8)), 6, 4
    each = 3 * rounds * n
    schedule = {"stage_steps": 4}
    two: dict[str, Any] = {"local_steps": 2, "step_size": 0.1, "schedule": schedule}
    costs = {
        "compact": (codasca(**two), each, each),
        "compact, fresh": (codasca(**two, cv_init="gradient"), each + 2 * 3 * n, each + 2 * 3 * n),
        "paper": (codasca(**two, wire="paper"), 2 * each, 2 * each),
        "paper, fresh": (codasca(**two, wire="paper", cv_init="gradient"), 2 * each + 2 * 3 * n, 2 * each + 2 * 3 * n),
        "coda-plus": (coda_plus(**two), each + 2 * 3 * n, each),
        "coda-plus, last": (coda_plus(**two, output="last"), each, each),
        "npa": (npa(step_size=0.1, schedule=schedule), each, each),
    }
    for name, (algorithm, up, down) in costs.items():
        assert train(problem, tmp_path, algorithm, rounds=rounds).floats() == (up, down), name


# The exact linear problem of section 6.2


def digit_parts(seed: int = 0) -> tuple[list[Part], Part]:
    """Digits 0 to 4 against 5 to 9, five machines with one class of either (section 8); and the test set."""
    digits = load_digits()
    draw = np.random.default_rng(1000 + seed)
    x, order = digits.data / 16, draw.permutation(1797)
    test, chosen = order[:539], order[539:]
    mean, spread = x[chosen].mean(axis=0), x[chosen].std(axis=0)
    x = (x - mean) / (spread + 0.1)
    rows = []
    for c in range(5):
        negative = chosen[digits.target[chosen] == c]
        positive = chosen[digits.target[chosen] == c + 5][: int(0.1 / 0.9 * negative.size)]
        rows.append((negative, positive))
    negatives, positives = draw.permutation(5), draw.permutation(5)
    parts = []
    for k in range(5):
        own = np.concatenate([rows[negatives[k]][0], rows[positives[k]][1]])
        parts.append(Part(x[own], np.where(digits.target[own] >= 5, 1.0, -1.0)))
    return parts, Part(x[test], np.where(digits.target[test] >= 5, 1.0, -1.0))


def affine(part: Part, p: float, gamma: float, centre: Array) -> tuple[Array, Array]:
    """A_k and b_k of the affine G_k(u) = A_k u + b_k (section 6.2), by matrices; shapes (n, n) and (n,)."""
    d, plus = part.x.shape[1], part.y > 0
    above, below = (part.x[mask].sum(axis=0) / part.y.size for mask in (plus, ~plus))
    share, a = float(plus.mean()), np.zeros((d + 3, d + 3))
    weights = 2 * np.where(plus, 1 - p, p) / part.y.size
    a[:d, :d] = (part.x.T * weights) @ part.x
    a[:d, d], a[d, :d] = -2 * (1 - p) * above, -2 * (1 - p) * above
    a[:d, d + 1], a[d + 1, :d] = -2 * p * below, -2 * p * below
    a[:d, d + 2] = -2 * (1 - p) * above + 2 * p * below
    a[d + 2, :d] = 2 * (1 - p) * above - 2 * p * below
    a[d, d], a[d + 1, d + 1], a[d + 2, d + 2] = 2 * (1 - p) * share, 2 * p * (1 - share), 2 * p * (1 - p)
    a[:-1, :-1] += gamma * np.eye(d + 2)
    b = np.append(2 * p * below - 2 * (1 - p) * above, np.zeros(3))
    b[:-1] -= gamma * centre[:-1]
    return a, b


def saddle_of(machines: Machines, centre: Array | None = None) -> Array:
    """u* of the stage that began at the centre (0), shape (n,)."""
    centre = np.zeros(machines.c.shape[1]) if centre is None else centre
    pairs = [affine(part, machines.p, machines.gamma, centre) for part in machines.parts]
    a, b = (np.tensordot(machines.weights, np.array([pair[i] for pair in pairs]), 1) for i in (0, 1))
    result: Array = np.linalg.solve(a, -b)
    return result


class Digits:
    """The instance: machines, the first point and the saddle."""

    def __init__(self) -> None:
        self.parts, self.test = digit_parts()
        self.machines = uniform(self.parts, 0.02)
        self.start = np.append(0.01 * np.random.default_rng(0).standard_normal(64), np.zeros(3))
        self.operators = [affine(part, self.machines.p, 0.02, self.start) for part in self.parts]
        self.saddle = saddle_of(self.machines, self.start)

    def averaging_limit(self, eta: float, window: int) -> Array:
        total, right = np.zeros((67, 67)), np.zeros(67)
        for a, b in self.operators:
            m = sum(np.linalg.matrix_power(np.eye(67) - eta * a, j) for j in range(window))
            total += m @ a
            right -= m @ b
        result: Array = np.linalg.solve(total, right)
        return result


@pytest.fixture(scope="module")
def digits() -> Digits:
    return Digits()


class Halves:
    """The client halves of a federation without a server: rounds from given points, with given states."""

    def __init__(
        self, parts: Sequence[Part], prior: float, seed: int = 0, dtype: str = "float64", **algorithm: Any
    ) -> None:
        self.settings: Any = algorithm_settings(algorithm["name"])(**algorithm)
        self.prior = prior
        self.clients = []
        for k, shard in enumerate(scored(parts).shards):
            objective = build_objective(BinarySettings.model_validate(LINEAR | {"dtype": dtype}), shard)
            half: Any = client_half(algorithm["name"])(
                ClientContext(client=f"client-{k}", seed=seed, settings=self.settings, objective=objective, shard=shard)
            )
            half.state = half.initial_state()
            self.clients.append(half)

    def answers(self, u: Array, t: int = 1, **values: Any) -> list[dict[str, Any]]:
        """Ask all for a round of local steps."""
        common = {
            "prior": self.prior,
            "point": u,
            "steps": self.settings.local_steps,
            "step_size": self.settings.step_size,
            "begins": False,
        }
        return [half.answer("train", t, common | values) for half in self.clients]

    def replies(self, u: Array, t: int = 1, **values: Any) -> dict[str, Array]:
        """Ask all; return the mean of each value."""
        answers = self.answers(u, t, **values)
        return {name: np.mean([answer[name] for answer in answers], axis=0) for name in answers[0]}


def halves(digits: Digits, window: int, eta: float, name: str = "codasca", **keys: Any) -> Halves:
    wire = {"wire": "paper"} if name == "codasca" else {"output": "last"}
    algorithm = {"name": name, **EXACT, **wire, "local_steps": window, "step_size": eta, "gamma": 0.02, **keys}
    found = Halves(digits.parts, digits.machines.p, **algorithm)
    for half in found.clients:
        half.state.centre = digits.start.copy()
    return found


def test_the_instance_is_that_of_the_specification(digits: Digits) -> None:
    counts = [(part.y.size, int((part.y > 0).sum())) for part in digits.parts]
    assert counts == [(142, 15), (136, 13), (132, 13), (137, 14), (148, 13)]
    assert digits.machines.p == pytest.approx(0.0979469011, abs=5e-11)
    assert np.linalg.norm(digits.start - digits.saddle) == pytest.approx(1.0524620, abs=5e-8)
    directions = [a @ digits.start + b for a, b in digits.operators]
    assert np.linalg.norm(np.mean(directions, axis=0)) == pytest.approx(0.3016447, abs=5e-8)
    scores = digits.test.x @ digits.saddle[:64]
    up, down = scores[digits.test.y > 0], scores[digits.test.y < 0]
    assert np.mean(up[:, None] > down) == pytest.approx(0.9428867, abs=5e-8)


@pytest.mark.parametrize(("window", "eta", "moved"), [(8, 0.05, 0.0095), (64, 0.05, 0.154), (64, 0.5, 0.434)])
def test_control_variates_that_begin_at_zero_drive_it_off_the_saddle(
    window: int, eta: float, moved: float, digits: Digits
) -> None:
    u = digits.saddle
    change = halves(digits, window, eta).replies(u, control=np.zeros(67))["change"]
    assert np.linalg.norm(change) == pytest.approx(moved, rel=0.006)


@pytest.mark.parametrize(
    ("eta", "window", "bias"), [(1e-3, 2, 2.6e-4), (1e-3, 64, 1.6e-2), (1e-2, 8, 1.8e-2), (5e-2, 8, 9.0e-2)]
)
def test_coda_plus_stands_still_away_from_the_saddle(eta: float, window: int, bias: float, digits: Digits) -> None:
    limit = digits.averaging_limit(eta, window)
    assert np.linalg.norm(limit - digits.saddle) == pytest.approx(bias, rel=0.03)
    change = halves(digits, window, eta, "coda-plus").replies(limit, ends=False)["change"]
    np.testing.assert_allclose(change, 0, atol=1e-14)


def test_codasca_reaches_the_saddle_in_the_rounds_of_the_specification(digits: Digits, tmp_path: Path) -> None:
    run = train(
        scored(digits.parts),
        tmp_path,
        codasca(local_steps=16, step_size=0.35, gamma=0.02),
        rounds=127,
        objective=starting_at(tmp_path, digits.start[:64]),
    )
    gaps = [float(np.linalg.norm(u - digits.saddle)) for u in points(run)]
    rounds = [next(t for t, gap in enumerate(gaps, 1) if gap <= goal) for goal in (1e-2, 1e-4, 1e-6, 1e-8)]
    assert rounds == [25, 53, 88, 126]


@pytest.mark.slow
@pytest.mark.parametrize(("window", "eta", "rounds"), [(1, 1.4, 1000), (8, 0.5, 400)])
def test_codasca_reaches_the_saddle_whatever_the_length_of_its_rounds(
    window: int, eta: float, rounds: int, digits: Digits
) -> None:
    found = halves(digits, window, eta)
    u, c = digits.start, np.zeros(67)
    for t in range(1, rounds + 1):
        reply = found.replies(u, t, control=c)
        u, c = u + reply["change"], c + reply["control_change"]
    assert np.linalg.norm(u - digits.saddle) < 1e-12


def noise_floor(digits: Digits, name: str, window: int) -> float:
    """Mean squared distance to the saddle of rounds 101 to 300 at eta I = 0.5 with batches of 16."""
    found = halves(digits, window, 0.5 / window, name, batch_size=16)
    u, c, squares = digits.start, np.zeros(67), []
    extra: dict[str, Any] = {"ends": False} if name == "coda-plus" else {}
    for t in range(1, 301):
        values = extra or {"control": c}
        reply = found.replies(u, t, **values)
        u = u + reply["change"]
        c = c + reply.get("control_change", 0.0)
        squares.append(float(np.sum((u - digits.saddle) ** 2)))
    return float(np.mean(squares[100:]))


@pytest.mark.slow
def test_longer_rounds_lower_the_noise_of_codasca_and_not_of_coda_plus(digits: Digits) -> None:
    corrected = [noise_floor(digits, "codasca", window) for window in (2, 8)]
    averaged = [noise_floor(digits, "coda-plus", window) for window in (2, 8)]
    assert 3 < corrected[0] / corrected[1] < 6.5
    assert corrected[1] == pytest.approx(1.4e-3, rel=0.5)
    assert averaged[1] > 0.7 * averaged[0]


# Schedules of section 2.6

WORKED = {"kind": "theory", "smoothness": 1, "primal_smoothness": 1, "polyak": 0.1}


def test_the_schedules_of_the_theorems_have_the_worked_numbers() -> None:
    schedule = TheorySchedule(**WORKED)
    p = 0.1
    assert schedule.rate == pytest.approx(0.00662252, rel=1e-6)
    assert schedule.longest_step(p) == pytest.approx(0.0508475, rel=1e-6)
    assert schedule.growth == pytest.approx(0.0109662735, abs=5e-11)
    assert schedule.longest_round(p) == pytest.approx(0.0045, rel=1e-12)
    assert math.log(10) / schedule.growth == pytest.approx(209.97, abs=5e-3)
    averaged = CodaPlusSettings(schedule=schedule)
    first = averaged.stage(1, p, 4)
    assert first.step_size == schedule.longest_step(p)
    assert first.local_steps == round(1 / math.sqrt(4 * first.step_size))
    assert first.local_steps * first.rounds == math.ceil(23162.96 / first.local_steps) * first.local_steps
    assert averaged.stage(101, p, 4).step_size == pytest.approx(first.step_size * math.exp(-0.662252), rel=1e-5)
    assert NaiveParallelSettings(schedule=schedule).stage(1, p, 4).rounds == 23163
    controlled = CodascaSettings(schedule=schedule)
    assert controlled.stage(1, p, 4).rounds == 1_234_568
    assert controlled.server_step(16) == 4
    assert controlled.proximal_weight == averaged.proximal_weight == 2


@given(number=st.integers(1, 400), window=st.floats(1, 200), clients=st.integers(1, 50))
def test_in_theory_a_round_of_codasca_goes_as_far_in_every_stage(number: int, window: float, clients: int) -> None:
    chosen = CodascaSettings(schedule={**WORKED, "window": window})
    first, later = chosen.stage(1, 0.1, clients), chosen.stage(number, 0.1, clients)
    assert later.rounds == first.rounds
    assert later.local_steps >= first.local_steps
    for stage in (first, later):
        length = stage.step_size * stage.local_steps * chosen.server_step(clients)
        assert length == pytest.approx(0.0045, rel=1e-12)


@given(window=st.integers(1, 40), steps=st.integers(40, 300), number=st.integers(1, 9))
def test_in_practice_a_stage_ends_with_the_first_round_that_completes_its_steps(
    window: int, steps: int, number: int
) -> None:
    chosen = CodascaSettings(local_steps=window, step_size=0.9, schedule={"stage_steps": steps})
    stages = [chosen.stage(s, 0.1, 3) for s in range(1, number + 1)]
    done = sum(stage.rounds for stage in stages) * window
    assert number * steps <= done < number * steps + window
    assert stages[-1].step_size == pytest.approx(0.9 / 3 ** (number - 1))


def test_step_sizes_fall_and_centres_move_at_the_borders_of_stages(tmp_path: Path) -> None:
    algorithm = codasca(local_steps=4, step_size=0.1, schedule={"stage_steps": 6})
    run = train(scored(random_parts([7, 12], 3, seed=9)), tmp_path, algorithm, rounds=7)
    assert [run.states[t].stage for t in range(1, 8)] == [1, 1, 2, 3, 3, 4, 5]
    before = [np.zeros(6), *points(run)]
    for t, start in enumerate([0, 0, 2, 3, 3, 5, 6], 1):
        np.testing.assert_array_equal(run.states[t].centre, before[start])
    steps = {t: run.states[t].moved / 4 for t in range(1, 8)}
    assert list(steps.values()) == pytest.approx([0.1, 0.1, 0.1 / 3, 0.1 / 9, 0.1 / 9, 0.1 / 27, 0.1 / 81])
    for client in kept(run, "centre"):
        np.testing.assert_array_equal(client, before[6])


def test_a_random_round_ends_its_stage(tmp_path: Path) -> None:
    algorithm = codasca(local_steps=2, step_size=0.1, output="random", schedule={"stage_steps": 12})
    run = train(scored(random_parts([7, 12], 3, seed=9)), tmp_path, algorithm, rounds=60)
    stages = [run.states[t].stage for t in range(1, 61)]
    lengths = np.bincount(stages)[1:-1]
    assert lengths.min() >= 1
    assert lengths.max() <= 6
    assert len(set(lengths.tolist())) > 2
    assert imbalance(run) < 1e-15


# Class prior, batches and practices


def test_stratified_batches_have_their_positives_and_the_prior_knows(tmp_path: Path) -> None:
    parts = random_parts([40, 60], 3, seed=11)
    parts[0].y[:] = -1.0
    parts[0].y[7] = 1.0
    wanted = [1, round(parts[1].rate * 8)]
    algorithm: dict[str, Any] = {"name": "npa", "step_size": 0.1, "batch_size": 8, "batches": "stratified"}
    run = train(scored(parts), tmp_path, algorithm, rounds=2)
    assert run.states[1].prior == pytest.approx(np.mean(wanted) / 8)
    for half, count in zip(Halves(parts, 0.3, **algorithm).clients, wanted, strict=True):
        for batch in half.batches(20):
            assert batch.size == 8
            assert int(half.objective.positive[batch].sum()) == count
    drawn = list(Halves(parts, 0.3, **algorithm).clients[1].batches(400))
    assert np.unique(np.concatenate(drawn)).size == 60, "every sample gets its turn"
    assert all(np.unique(batch).size == 8 for batch in drawn), "no sample twice where there are enough"


def test_clients_without_positive_samples_do_no_harm(tmp_path: Path) -> None:
    parts = random_parts([12, 15, 9], 3, seed=12)
    parts[1].y[:] = -1.0
    machines = uniform(parts, 0.1)
    expected = machines.codasca(np.zeros(6), 0.1, 1.0, 3, 5)
    run = train(scored(parts), tmp_path, codasca(local_steps=3, step_size=0.1, gamma=0.1), rounds=5)
    np.testing.assert_allclose(points(run)[-1], expected, rtol=0, atol=1e-12)
    coda = {"name": "coda", **EXACT, "local_steps": 3, "step_size": 0.1}
    for estimator in ("mixture", "client-means"):
        algorithm = coda | {"dual_estimator": estimator, "schedule": {"stage_steps": 3}}
        run = train(scored(parts), tmp_path, algorithm, rounds=3)
        assert np.isfinite(points(run)).all()
    for part in parts:
        part.y[:] = -1.0
    with raises(DataError):
        train(scored(parts), tmp_path, codasca(step_size=0.1), rounds=1)


@pytest.mark.parametrize(
    "keys",
    [
        {"name": "codasca", "batches": "stratified", "batch_size": 1},
        {"name": "codasca", "local_steps": 64, "schedule": {"stage_steps": 32, "kind": "practice"}},
        {"name": "codasca", "cv_init": "gradient", "batches": "stratified"},
        {"name": "codasca", "local_steps": 8, "schedule": THEORY},
        {"name": "coda", "local_steps": 8, "schedule": THEORY},
        {"name": "npa", "schedule": {**THEORY, "window": 2}},
    ],
)
def test_settings_that_contradict_each_other_are_refused(keys: dict[str, Any], tmp_path: Path) -> None:
    with raises(SettingsError, source="settings"):
        scored(golden()).settings(tmp_path, keys)


@pytest.mark.parametrize(
    "participation",
    [{"sampler": {"kind": "fixed", "size": 2}}, {"on_lost_state": "continue"}],
    ids=["fixed", "continue"],
)
def test_settings_that_leave_clients_out_are_refused_before_anything_starts(
    participation: dict[str, Any], tmp_path: Path
) -> None:
    problem = scored(random_parts([7, 12, 9], 3, seed=1))
    for needs_all, works in (
        (codasca(), codasca(wire="paper")),
        (coda_plus(), coda_plus(output="last")),
        ({**coda_plus(), "name": "coda"}, npa()),
    ):
        with raises(SettingsError, source="settings"):
            problem.settings(tmp_path, needs_all, participation=participation)
        problem.settings(tmp_path, works, participation=participation)


@pytest.mark.parametrize(
    ("algorithm", "sections"),
    [(codasca(), {"objective": {"kind": "logistic"}}), (npa(), {"objective": {"kind": "softmax"}})],
)
def test_runs_that_cannot_be_are_refused(algorithm: dict[str, Any], sections: dict[str, Any], tmp_path: Path) -> None:
    with raises(SettingsError, key="objective.kind"):
        train(scored(random_parts([7, 12, 9], 3, seed=1)), tmp_path, algorithm, **sections)


FOUR = scored(random_parts([9, 14, 11, 7], 4, seed=16))
STOCHASTIC: dict[str, Any] = {
    "local_steps": 3,
    "step_size": 0.1,
    "batch_size": 3,
    "gamma": 0.1,
    "schedule": {"stage_steps": 9},
}
GONE, LEFT = 1, [0, 2, 3]
"""Whose data is lost for good before the fourth round, and whose is not."""


def losing(monkeypatch: pytest.MonkeyPatch) -> None:
    parted = Staged.part_with_lost

    async def part_with_lost(self: Staged) -> bool:
        gone = self.fleet.members[f"client-{GONE:03d}"]
        if self.fleet.round >= 4 and gone.lost is None:  # a resumed server may not know yet
            gone.mark_lost("its disk broke")
        return await parted(self)

    monkeypatch.setattr(Staged, "part_with_lost", part_with_lost)


def test_without_a_client_that_is_lost_the_compact_wire_stops(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sum of the other clients' c^k would be taken for the sum of all."""
    communicate = Codasca.communicate

    async def loses_one(self: Codasca, stage: Stage, *, begins: bool, ends: bool) -> None:
        if self.fleet.round == 3:
            self.fleet.members["client-001"].lost = "its disk broke"
        await communicate(self, stage, begins=begins, ends=ends)

    monkeypatch.setattr(Codasca, "communicate", loses_one)
    with raises(LostStateError, round=3, phase="train"):
        train(scored(random_parts([7, 12, 9], 3, seed=1)), tmp_path, codasca(local_steps=2), rounds=5)


def the_rest(weighting: str = "uniform", gamma: float = 0.0) -> tuple[list[Part], Machines]:
    """Four machines, and the oracle of those that are left."""
    parts = random_parts([30, 25, 40, 20], 2, seed=31)
    parts[GONE].x[:] += 3.0
    left = [parts[k] for k in LEFT]
    sizes = np.array([part.y.size if weighting == "samples" else 1 for part in left], float)
    return parts, Machines(left, sizes / sizes.sum(), gamma)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("start", "weighting"), rest_slow([("carry", "uniform"), ("zero", "samples"), ("gradient", "samples")])
)
def test_after_a_loss_codasca_finds_the_saddle_of_the_clients_that_are_left(
    start: str, weighting: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Exact gradients and gamma = 0, so the operator of those that are left must go to 0, and no other does."""
    parts, machines = the_rest(weighting)
    losing(monkeypatch)
    algorithm = codasca(
        local_steps=8,
        step_size=0.05,
        gamma=0.0,
        cv_init=start,
        wire="paper",
        weighting=weighting,
        schedule={"stage_steps": 1_000_000 if start == "zero" else 800, "decay": 1},
    )
    goes_on = {"on_lost_state": "continue"}
    run = train(scored(parts), tmp_path, algorithm, rounds=250, participation=goes_on)
    state, u = run.states[250], points(run)[-1]
    assert state.prior == state.share == pytest.approx(machines.p, rel=1e-14)
    np.testing.assert_allclose(state.weights[LEFT], machines.weights, rtol=1e-14)
    assert state.weights[GONE] == 0
    directions = [np.append(*part.gradients(u, machines.p)) for part in machines.parts]
    assert np.linalg.norm(machines.weights @ np.array(directions)) < 1e-9
    np.testing.assert_allclose(u, saddle_of(machines), rtol=0, atol=1e-7)
    everybody = saddle_of(uniform(parts, 0.0))
    assert np.abs(u - everybody).max() > 0.05, "the lost client's data would have made a difference"
    assert "the area under the ROC curve of the remaining 3 clients" in caplog.text
    told = [call["client"] for call in run.calls.to_pylist() if call["phase"] == "forget_control"]
    assert told == [f"client-{k:03d}" for k in LEFT]


@pytest.mark.parametrize("name", rest_slow(["coda-plus", "npa"]))
def test_after_a_loss_the_relatives_have_the_weights_and_the_prior_of_those_that_are_left(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where they stand still is the saddle of those that are left, with one local step a round."""
    parts, machines = the_rest()
    losing(monkeypatch)
    algorithm: dict[str, Any] = {"name": name, **EXACT, "step_size": 0.2, "gamma": 0.0, "output": "last"}
    if name != "npa":
        algorithm["local_steps"] = 1
    run = train(scored(parts), tmp_path, algorithm, rounds=300, participation={"on_lost_state": "continue"})
    state = run.states[300]
    np.testing.assert_allclose(state.weights, np.insert(machines.weights, GONE, 0.0), rtol=1e-14)
    assert state.prior == state.share == pytest.approx(machines.p, rel=1e-14)
    np.testing.assert_allclose(points(run)[-1], saddle_of(machines), rtol=0, atol=1e-7)


def test_servers_that_are_killed_after_a_loss_come_to_the_same_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = scored(the_rest()[0])
    losing(monkeypatch)
    algorithm = {"name": "codasca", **STOCHASTIC, "cv_init": "gradient", "wire": "paper"}
    sections: dict[str, Any] = {"rounds": 9, "participation": {"on_lost_state": "continue"}}
    calm = train(problem, tmp_path, algorithm, **sections)
    faults = Faults(random.Random("gradient"), breaks=2, kills=3, frames=30, lag=3)
    run = train(problem, tmp_path, algorithm, faults=faults, **sections)
    assert run.federation is not None
    assert run.federation.killed == 3
    assert point(run.states[9]).tobytes() == point(calm.states[9]).tobytes()
    assert kept(run, "control")[LEFT].tobytes() == kept(calm, "control")[LEFT].tobytes()
    assert imbalance(run) < 1e-15


@pytest.mark.parametrize("start", ["carry", "zero", "gradient"])
def test_in_float32_c_stays_the_sum_of_what_the_clients_keep(start: str, tmp_path: Path) -> None:
    """Rounded sums of rounded changes would leave it, by a little more in each round."""
    run = train(
        FOUR,
        tmp_path,
        {"name": "codasca", **STOCHASTIC, "cv_init": start, "wire": "paper"},
        rounds=15,
        objective={**LINEAR, "dtype": "float32"},
        participation={"sampler": {"kind": "fixed", "size": 2}},
    )
    assert imbalance(run) < 1e-14
    assert run.states[15].model.dtype == np.float32


# Schedules that leave the range of numbers


def test_a_schedule_without_a_kind_is_one_of_practice(tmp_path: Path) -> None:
    for schedule in ({"stage_steps": 64}, {"stage_steps": 64, "kind": "practice"}):
        found = scored(golden()).settings(tmp_path, {"name": "codasca", "schedule": schedule})
        assert getattr(found.algorithm, "schedule").model_dump() == {  # noqa: B009
            "kind": "practice",
            "stage_steps": 64,
            "decay": 3.0,
        }
    with raises(SettingsError, key="algorithm.schedule.smoothness", source="settings"):
        scored(golden()).settings(tmp_path, {"name": "codasca", "schedule": {"smoothness": 2}})


FAST: dict[str, Any] = {**THEORY, "polyak": 100.0}


@pytest.mark.parametrize(
    ("algorithm", "rounds"),
    [
        (npa(schedule={"stage_steps": 1}), 660),
        (npa(schedule={"stage_steps": 1}), 90),
        (codasca(local_steps=4, schedule={"stage_steps": 4}), 90),
        (codasca(schedule=FAST, step_size=1e4, prior=0.3), 100),
        (coda_plus(schedule={**FAST, "window": 2e8}), 10),
    ],
)
def test_a_run_that_would_reach_a_stage_that_cannot_be_done_is_refused_before_it_starts(
    algorithm: dict[str, Any], rounds: int, tmp_path: Path
) -> None:
    with raises(SettingsError, source="settings"):
        scored(golden()).settings(tmp_path, algorithm, rounds=rounds)
    scored(golden()).settings(tmp_path, algorithm, rounds=1)


def test_the_last_stage_that_is_looked_at_is_the_last_that_is_reached(tmp_path: Path) -> None:
    """In stage 79 the step size, 0.1 / 3^78, is too small for float32; stages have 2 or 3 rounds."""
    algorithm = codasca(local_steps=4, schedule={"stage_steps": 10})
    stages = [CodascaSettings.model_validate(algorithm).stage(s, 0.5, 1) for s in range(1, 79)]
    last = sum(stage.rounds for stage in stages)
    scored(golden()).settings(tmp_path, algorithm, rounds=last)
    with raises(SettingsError, source="settings"):
        scored(golden()).settings(tmp_path, algorithm, rounds=last + 1)


def test_stages_that_only_chance_makes_so_many_stop_the_run_and_say_why(tmp_path: Path) -> None:
    algorithm = codasca(local_steps=1, output="random", schedule={"stage_steps": 2, "decay": 1e9})
    with raises(RunStoppedError, round=10):
        train(scored(golden()), tmp_path, algorithm, rounds=10)


def test_fedavg_trains_the_same_scorer_by_cross_entropy(tmp_path: Path) -> None:
    problem = scored(random_parts([12, 20], 3, seed=14))
    algorithm = {"name": "fedavg", "local_steps": 3, "step_size": 0.3, "batch_size": 5}
    run = train(problem, tmp_path, algorithm, rounds=5)
    logistic = train(problem, tmp_path, algorithm, rounds=5, objective={"kind": "logistic"})
    np.testing.assert_allclose(run.model, logistic.model, rtol=0, atol=1e-14)


@pytest.mark.parametrize("start", ["carry", "zero", "gradient"])
def test_with_some_clients_a_round_it_is_the_rule_of_scaffold(start: str, tmp_path: Path) -> None:
    """Section 7.4, written without any machinery; absent clients learn of new stages, too."""
    parts = random_parts([9, 14, 11, 7], 3, seed=17)
    cohorts = [(0, 1), (2, 3), (0, 2), (1, 3), (0, 3), (1, 2)]
    machines, eta, eta_g, gamma = uniform(parts, 0.2), 0.1, 1.2, 0.2
    u, controls = np.zeros(6), np.zeros((4, 6))
    for t, cohort in enumerate(cohorts):
        if t % 3 == 0:
            centre = u
            if start == "zero":
                controls = np.zeros((4, 6))
            if start == "gradient":
                controls = np.array([np.append(*part.gradients(u, machines.p)) for part in parts])
        c = controls.mean(axis=0)
        ends, new = [], controls.copy()
        for k in cohort:
            own, total = u, np.zeros(6)
            for _ in range(2):
                own, g = machines.step(k, own, centre, eta, c - controls[k])
                total += g
            new[k] = total / 2
            ends.append(own)
        controls = new
        u = u + eta_g * (np.mean(ends, axis=0) - u)
    algorithm = codasca(
        local_steps=2,
        step_size=eta,
        gamma=gamma,
        server_step_size=eta_g,
        cv_init=start,
        wire="paper",
        schedule={"stage_steps": 6, "decay": 1},
    )
    run = train(scored(parts), tmp_path, algorithm, cohorts=cohorts, rounds=6)
    np.testing.assert_allclose(points(run)[-1], u, rtol=0, atol=1e-13)
    np.testing.assert_allclose(plain_signs(kept(run, "control")), controls, rtol=0, atol=1e-13)
    assert imbalance(run) < 1e-15
