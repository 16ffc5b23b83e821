"""DRDM, DRFA and SCAFF-PD once more, in plain NumPy, written from docs/specifications/drdm.md.

In the form that the paper prints (states g_i and c, section 2.2), while the code under test keeps h_i and H; all
clients take their steps at once, and nothing is shared with the code under test.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

from fenchel.common.arrays import Dense, Vector
from tests.algorithms.feddcd_oracle import Quadratics

Floats: TypeAlias = NDArray[np.float64]
Gradients: TypeAlias = Callable[[int, int, Dense], Dense]
"""From the round, the local step and the local models of all clients, shape (N, d), to their gradients, same shape."""
Losses: TypeAlias = Callable[[int, Vector], Vector]
"""From the round and a model to the losses that all clients would report, shape (N,)."""

Q1 = Quadratics(np.array([1.0, 1, 1, 1, 2]).reshape(5, 1, 1), np.array([0.0, 0.2, -0.2, 0.1, 3.0]).reshape(5, 1))
"""The scalar problem of section 7.1."""
Q1_AVERAGE = 6.1 / 6
Q1_ROBUST = (3 - 0.2 / np.sqrt(2)) / (1 + 1 / np.sqrt(2))
Q1_VALUE = 1.756913
Q1_WEIGHTS = np.array([0, 0, 2 - np.sqrt(2), 0, np.sqrt(2) - 1])


def pinned() -> Quadratics:
    """Q2, the pinned problem of section 7.1."""
    g = np.random.default_rng(1)
    roots = [g.normal(size=(4, 4)) for _ in range(6)]
    curvatures = np.stack([m @ m.T / 4 + 0.3 * np.eye(4) for m in roots])
    return Quadratics(curvatures, g.normal(size=(6, 4)))


def losses_of(problem: Quadratics, w: Vector) -> Floats:
    """f_i(w), shape (N,)."""
    apart = w - problem.centers
    result: Floats = 0.5 * np.einsum("ij,ijk,ik->i", apart, problem.curvatures, apart)
    return result


def slopes_of(problem: Quadratics, models: Dense) -> Dense:
    """The gradient of each f_i at its own model, shape (N, d)."""
    result: Dense = np.einsum("ijk,ik->ij", problem.curvatures, models - problem.centers)
    return result


def weighted_minimiser(problem: Quadratics, weights: Vector) -> Floats:
    """argmin_w sum_i weights_i f_i(w), shape (d,)."""
    curvature = np.einsum("i,ijk->jk", weights, problem.curvatures)
    pull = np.einsum("i,ijk,ik->j", weights, problem.curvatures, problem.centers)
    result: Floats = np.linalg.solve(curvature, pull)
    return result


def robust_value(problem: Quadratics) -> float:
    """min_w max_i f_i(w), by a general solver: the least level that all losses are below."""
    clients, dimension = problem.centers.shape
    centre: Floats = problem.centers.mean(axis=0)
    unit = losses_of(problem, centre).max()  # the solver wants numbers near 1

    def level(x: Floats) -> float:
        return float(x[-1])

    def level_slope(x: Floats) -> Floats:
        slope: Floats = np.eye(dimension + 1)[-1]
        return slope

    def room(x: Floats) -> Floats:
        gaps: Floats = x[-1] - losses_of(problem, x[:-1]) / unit
        return gaps

    def room_slopes(x: Floats) -> Floats:
        return np.hstack([-slopes_of(problem, np.tile(x[:-1], (clients, 1))) / unit, np.ones((clients, 1))])

    constraint: Any = {"type": "ineq", "fun": room, "jac": room_slopes}
    found = minimize(
        level,
        np.append(centre, 1.0),
        jac=level_slope,
        constraints=constraint,
        method="SLSQP",
        options={"maxiter": 500, "ftol": 1e-12},
    )
    assert found.success
    return float(found.fun * unit)


def excess(problem: Quadratics, model: Vector) -> float:
    """The largest loss in units of the robust value."""
    return float(losses_of(problem, model).max() / robust_value(problem))


def simplex(x: Floats) -> Floats:
    """The nearest point of the simplex, by dropping what comes out negative (Michelot 1986)."""
    kept = np.ones(x.size, bool)
    while True:
        point = np.where(kept, x - (x[kept].sum() - 1) / kept.sum(), 0.0)
        if (point >= 0).all():
            return point
        kept &= point > 0


@dataclass(frozen=True)
class Draw:
    """What one round drew."""

    times: NDArray[np.int64]  # n_i, shape (N,)
    step: int  # k'
    asked: NDArray[np.bool_]  # whether each client is in U, shape (N,)


Draws: TypeAlias = Callable[[int, Floats], Draw]
"""From the round and lambda to what is drawn."""


@dataclass
class Chance:
    """Draws of one's own (section 2.5)."""

    clients: int
    m: int
    tau: int
    sampling: str = "with"  # replacement; or uniform
    seed: int = 0

    def __post_init__(self) -> None:
        self.random = np.random.default_rng(self.seed)

    def __call__(self, t: int, weights: Floats) -> Draw:
        clients, m, random = self.clients, self.m, self.random
        if self.sampling == "uniform":
            cohort = random.permutation(clients)[:m]
        else:
            cohort = random.choice(clients, m, p=weights / weights.sum())
        asked = np.zeros(clients, bool)
        asked[random.permutation(clients)[:m]] = True
        times = np.bincount(cohort, minlength=clients)
        return Draw(times, int(random.integers(1, self.tau + 1)), asked)


@dataclass(frozen=True)
class Constants:
    """Of a run; the names are those of the specification."""

    eta: float
    tau: int
    mu: float
    gamma: float
    correction: str = "uniform"  # or printed: uniform, with the parenthesis where the paper has it
    estimator: str = "plain"
    omega_min: float = 1e-3
    radius: float = np.inf  # of the ball W


@dataclass
class Trace:
    """A run, round by round. Losses and sums are over all N clients."""

    models: list[Floats] = field(default_factory=list)  # wbar after each round, shape (d,)
    snapshots: list[Floats] = field(default_factory=list)  # its wsnap, shape (d,)
    weights: list[Floats] = field(default_factory=list)  # lambda before the first round and after each, shape (N,)
    g: Floats = field(default_factory=lambda: np.zeros((0, 0)))  # the clients' states at the end, shape (N, d)

    @property
    def model(self) -> Floats:
        """The last model."""
        return self.models[-1]

    @property
    def lam(self) -> Floats:
        """The last weights."""
        return self.weights[-1]


@dataclass(frozen=True)
class Start:
    """Where a run begins, if not at zero."""

    w: Floats  # the model
    lam: Floats  # the weights
    b: Floats  # the losses that the control variate remembers
    g: Floats  # the clients' states, whose mean c is


def drdm(
    clients: int,
    dimension: int,
    gradients: Gradients,
    losses: Losses,
    draws: Draws,
    own: Constants,
    rounds: int,
    start: Start | None = None,
) -> Trace:
    """Run Algorithms 1 to 3; mu must be positive, unless the correction is ``none`` (DRFA)."""

    def inside(models: Floats) -> Floats:
        if own.radius == np.inf:
            return models
        norms = np.linalg.norm(models, axis=-1, keepdims=True)
        return np.where(norms > own.radius, models * own.radius / np.maximum(norms, 1e-300), models)

    def advanced(g: Floats, models: Floats) -> Floats:
        """g after the clients' models have come."""
        return np.where(took_part[:, None], g - own.mu * (models - wbar), g)

    def added(c: Floats, models: Floats) -> Floats:
        """c after the clients' models have come, in the modes that keep one vector."""
        if own.correction == "printed":
            moved: Floats = models[took_part].sum(axis=0) - wbar
        else:
            moved = (models[took_part] - wbar).sum(axis=0)
        return c - own.mu / clients * moved

    if start is None:
        start = Start(
            np.zeros(dimension), np.full(clients, 1 / clients), np.zeros(clients), np.zeros((clients, dimension))
        )
    wbar, lam, b, g = start.w, start.lam, start.b, start.g
    c = g.mean(axis=0)
    trace = Trace(weights=[lam])
    for t in range(1, rounds + 1):
        drawn = draws(t, lam)
        took_part = drawn.times > 0
        omega = np.ones(clients)
        if own.correction == "lambda-scaled":
            omega = np.maximum(clients * lam, own.omega_min)
        eta = (own.eta / np.maximum(1, omega))[:, None]
        models = np.tile(wbar, (clients, 1))
        for j in range(1, own.tau + 1):
            d = omega[:, None] * gradients(t, j, models) - g - own.mu * (wbar - models)
            models = inside(models - eta * d)
            if j == drawn.step:
                halfway = models.copy()

        share = drawn.times / drawn.times.sum()
        mean, mean_halfway = share @ models, share @ halfway
        if own.correction == "none":
            wsnap, wnew = mean_halfway, mean
        elif own.correction == "lambda-table":
            wsnap = mean_halfway - lam @ advanced(g, halfway) / own.mu
            g = advanced(g, models)
            wnew = mean - lam @ g / own.mu
        else:
            wsnap = mean_halfway - added(c, halfway) / own.mu
            c = added(c, models)
            wnew = mean - c / own.mu
            g = advanced(g, models)
        wsnap, wbar = inside(wsnap), inside(wnew)
        told = losses(t, wsnap)
        m_u = drawn.asked.sum()
        v = np.where(drawn.asked, clients / m_u * told, 0.0)
        if own.estimator == "control-variate":
            v = np.where(drawn.asked, b + clients / m_u * (told - b), b)
            b = np.where(drawn.asked, told, b)
        lam = simplex(lam + own.tau * own.gamma * v)
        trace.models.append(wbar)
        trace.snapshots.append(wsnap)
        trace.weights.append(lam)
    trace.g = g
    return trace


def drdm_on(problem: Quadratics, draws: Draws, own: Constants, rounds: int, start: Start | None = None) -> Trace:
    """Run it with exact gradients and losses of quadratics."""
    clients, dimension = problem.centers.shape
    return drdm(
        clients,
        dimension,
        lambda t, j, models: slopes_of(problem, models),
        lambda t, w: losses_of(problem, w),
        draws,
        own,
        rounds,
        start,
    )


def everybody(clients: int, steps: Iterable[int]) -> Draws:
    """All clients once in every round; k' from a list, from the beginning again after the last."""
    given = list(steps)

    def draw(t: int, weights: Floats) -> Draw:
        return Draw(np.ones(clients, np.int64), given[(t - 1) % len(given)], np.ones(clients, bool))

    return draw


@dataclass(frozen=True)
class ScaffPDConstants:
    """Of a run of SCAFF-PD; names as in section 2.8."""

    eta: float
    steps: int
    sigma: float
    theta: float = 1.0
    server_step: float = 1.0
    rho: float = 0.0


def scaff_pd(problem: Quadratics, own: ScaffPDConstants, start: Start | None = None) -> Iterator[tuple[Floats, Floats]]:
    """Yield x and lambda after each round, all clients taking part; ``b`` of the start is q of the round before."""
    clients, dimension = problem.centers.shape
    x, lam = np.zeros(dimension), np.full(clients, 1 / clients)
    before: Floats | None = None
    if start is not None:
        x, lam, before = start.w, start.lam, start.b
    while True:
        q, c = losses_of(problem, x), slopes_of(problem, np.tile(x, (clients, 1)))
        s = (1 + own.theta) * q - own.theta * (q if before is None else before)
        before = q
        lam = simplex((lam / own.sigma + own.rho / clients + s) / (1 / own.sigma + own.rho))
        mean = lam @ c
        u = np.tile(x, (clients, 1))
        for _ in range(own.steps):
            u = u - own.eta * (slopes_of(problem, u) - c + mean)
        x = x + own.server_step * (lam @ (u - x))
        yield x, lam


def gap(problem: Quadratics, w: Vector, weights: Vector) -> float:
    """max_lambda F(w, lambda) - min_w F(w, weights)."""
    lowest = weights @ losses_of(problem, weighted_minimiser(problem, weights))
    return float(losses_of(problem, w).max() - lowest)
