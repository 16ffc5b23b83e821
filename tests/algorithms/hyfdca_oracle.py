"""HyFDCA once more, as plain loops over dense arrays, written from the pseudocode of the specification.

Nothing is shared with the code under test: neither the alignment nor the losses nor the local step. A sample is
known by its number, from 0, and every client's rows by the numbers of their samples.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from fenchel.common.arrays import Dense, Indices, Vector


@dataclass(frozen=True)
class Party:
    """What one client holds."""

    rows: Indices  # numbers of its samples, I_k, shape (N_k,)
    columns: Indices  # numbers of its features, M_k, shape (M_k,)
    x: Dense  # its part of the matrix, shape (N_k, M_k); cells that it lacks are 0


@dataclass(frozen=True)
class Problem:
    """A regularised linear problem whose matrix is spread over parties."""

    parties: Mapping[str, Party]  # by name; every sample 0..N-1 is held by somebody
    y: Vector  # targets, shape (N,)
    loss: str  # hinge, smoothed-hinge, squared-hinge, logistic or squared
    l2: float  # lambda
    smoothing: float = 1.0  # s of the smoothed hinge

    @property
    def samples(self) -> int:
        return len(self.y)

    @cached_property
    def x(self) -> Dense:
        """The whole matrix, cells that nobody holds 0, shape (N, M)."""
        features = 1 + max(int(party.columns.max()) for party in self.parties.values())
        whole = np.zeros((self.samples, features))
        for party in self.parties.values():
            whole[np.ix_(party.rows, party.columns)] += party.x
        return whole

    @cached_property
    def holders(self) -> Indices:
        """|B_n|, shape (N,)."""
        count = np.zeros(self.samples, np.int64)
        for party in self.parties.values():
            count[party.rows] += 1
        return count

    def primal(self, alpha: Vector) -> Vector:
        """A alpha."""
        result: Vector = self.x.T @ alpha / (self.l2 * self.samples)
        return result

    def losses(self, z: Vector) -> Vector:
        """l_i(z_i)."""
        m, s = self.y * z, self.smoothing
        by_kind: dict[str, Callable[[], Vector]] = {
            "hinge": lambda: np.maximum(0, 1 - m),
            "smoothed-hinge": lambda: np.where(m >= 1, 0, np.where(m <= 1 - s, 1 - m - s / 2, (1 - m) ** 2 / (2 * s))),
            "squared-hinge": lambda: np.maximum(0, 1 - m) ** 2 / 2,
            "logistic": lambda: np.log1p(np.exp(-np.abs(m))) + np.maximum(-m, 0),
            "squared": lambda: (z - self.y) ** 2 / 2,
        }
        return by_kind[self.loss]()

    def conjugates(self, alpha: Vector) -> Vector:
        """l_i^*(-alpha_i), of dual variables in their domain."""
        b = self.y * alpha
        if self.loss == "logistic":
            p = np.clip(b, 1e-300, 1 - 1e-16)
            result: Vector = p * np.log(p) + (1 - p) * np.log1p(-p)
            return result
        result = -alpha * self.y + self.bend * alpha**2 / 2
        return result

    @property
    def bend(self) -> float:
        """Second derivative of the conjugate, where it is a parabola."""
        return {"hinge": 0.0, "smoothed-hinge": self.smoothing, "squared-hinge": 1.0, "squared": 1.0}[self.loss]

    def dual_objective(self, alpha: Vector) -> float:
        w = self.primal(alpha)
        return float(-self.l2 / 2 * w @ w - self.conjugates(alpha).mean())

    def primal_objective(self, w: Vector) -> float:
        return float(self.l2 / 2 * w @ w + self.losses(self.x @ w).mean())

    def gap(self, alpha: Vector) -> float:
        """P(A alpha) - D(alpha)."""
        return self.primal_objective(self.primal(alpha)) - self.dual_objective(alpha)

    def step(self, alpha: Vector, z: Vector, y: Vector, q: Vector | float) -> Vector:
        """The table of section 1.5."""
        b, m = y * alpha, y * z
        if self.loss == "hinge":
            return np.asarray(y * np.clip(b + (1 - m) / q, 0, 1) - alpha)
        if self.loss == "smoothed-hinge":
            s = self.smoothing
            return np.asarray(y * np.clip(b + (1 - m - s * b) / (s + q), 0, 1) - alpha)
        if self.loss == "squared-hinge":
            return np.asarray(y * np.maximum(0, b + (1 - m - b) / (1 + q)) - alpha)
        if self.loss == "squared":
            return np.asarray((y - z - alpha) / (1 + q))
        # ln((1 - p)/p) - m - q (p - b) falls in p: bisection, on the half where p has its digits.
        low, high = np.full(len(b), -800.0), np.full(len(b), 800.0)
        for _ in range(120):  # over t = ln(p / (1 - p))
            t = (low + high) / 2
            p = np.exp(-np.logaddexp(0, -t))
            right = -t - m - q * (p - b) > 0
            low, high = np.where(right, t, low), np.where(right, high, t)
        return np.asarray(y * np.exp(-np.logaddexp(0, -(low + high) / 2)) - alpha)

    def theory_step(self, alpha: Vector, z: Vector, y: Vector, gamma: float, c: float) -> Vector:
        """Algorithm 3, with -u in the subdifferential."""
        m = y * z
        subgradients: dict[str, Callable[[], Vector]] = {
            "hinge": lambda: np.where(m < 1, y, 0.0),
            "smoothed-hinge": lambda: y * np.clip((1 - m) / self.smoothing, 0, 1),
            "squared-hinge": lambda: y * np.maximum(0, 1 - m),
            "logistic": lambda: y / (1 + np.exp(m)),
            "squared": lambda: y - z,
        }
        end = c * (subgradients[self.loss]() - alpha)
        free = self.step(alpha, z, y, 1 / self.l2) / gamma
        return np.asarray(np.minimum(np.maximum(free, np.minimum(0, end)), np.maximum(0, end)))


@dataclass
class Hybrid:
    """Algorithm 1; preset, averaging and trust are as in the settings."""

    problem: Problem
    preset: str  # linesearch, safe, exact, paper or theory
    averaging: str = "all"
    trust: str = "full"
    sparse: bool = False  # whether inner products are refreshed for picked samples only
    alpha_0: Vector = field(init=False)  # alpha_0, w_0: the server's, shapes (N,) and (M,)
    w_0: Vector = field(init=False)
    alpha: dict[str, Vector] = field(init=False)  # alpha, what, ip: of each party, in the order of its rows and columns
    what: dict[str, Vector] = field(init=False)
    ip: dict[str, Vector] = field(init=False)
    synced: set[str] = field(init=False)  # who has done the last PrimalAggregation

    def __post_init__(self) -> None:
        parties = self.problem.parties
        self.alpha_0, self.w_0 = np.zeros(self.problem.samples), np.zeros(self.problem.x.shape[1])
        self.alpha = {k: np.zeros(len(party.rows)) for k, party in parties.items()}
        self.what = {k: np.zeros(len(party.columns)) for k, party in parties.items()}
        self.ip = {k: np.zeros(len(party.rows)) for k, party in parties.items()}
        self.synced = set(parties)

    def round(self, cohort: Sequence[str], picks: Mapping[str, Indices], gamma: float = 1.0) -> None:
        """One outer iteration; ``picks`` are positions among each party's rows."""
        problem, parties = self.problem, self.problem.parties
        returning = [k for k in cohort if k not in self.synced]
        for k in returning:  # step 2
            self.alpha[k] = self.alpha_0[parties[k].rows]
        self._aggregate(returning)  # step 3
        z = self._inner_products(cohort, picks)  # step 4
        weight = self._weights(cohort, picks, gamma)
        sigma = max(1.0, sum(weight[parties[k].rows[picks[k]]].sum() for k in cohort) / 2)
        delta_0 = np.zeros(problem.samples)
        for k in cohort:  # steps 5 and 6
            own = parties[k].rows[picks[k]]
            delta_0[own] += weight[own] * self._local(k, picks[k], z[own], gamma, sigma)
        if self.preset == "linesearch":
            delta_0 *= self._best_step(delta_0)
        self.alpha_0 = self.alpha_0 + delta_0
        for k in cohort:  # step 7
            self.alpha[k] = self.alpha_0[parties[k].rows]
        self._aggregate(cohort)  # step 8
        self.synced = set(cohort)

    def _aggregate(self, senders: Sequence[str]) -> None:
        """Algorithm 4."""
        for k in senders:
            self.what[k] = self.problem.parties[k].x.T @ self.alpha[k]
        self.w_0 = np.zeros_like(self.w_0)
        for k, party in self.problem.parties.items():
            self.w_0[party.columns] += self.what[k] / (self.problem.l2 * self.problem.samples)

    def _inner_products(self, cohort: Sequence[str], picks: Mapping[str, Indices]) -> Vector:
        """Algorithm 2: z_i for all samples, from what absent parties shared last."""
        parties = self.problem.parties
        union = np.unique(np.concatenate([parties[k].rows[picks[k]] for k in cohort]))
        for k in cohort:
            party = parties[k]
            fresh = np.isin(party.rows, union) if self.sparse else np.ones(len(party.rows), bool)
            self.ip[k] = np.where(fresh, party.x @ self.w_0[party.columns], self.ip[k])
        z = np.zeros(self.problem.samples)
        for k, party in parties.items():
            z[party.rows] += self.ip[k]
        return z

    def _weights(self, cohort: Sequence[str], picks: Mapping[str, Indices], gamma: float) -> Vector:
        """gamma over |B_i|, over the active holders, or over those that picked the sample; shape (N,)."""
        count = np.zeros(self.problem.samples)
        for k in cohort:
            rows = self.problem.parties[k].rows
            count[rows if self.averaging == "active" else rows[picks[k]]] += 1
        divisors = self.problem.holders if self.averaging == "all" else np.maximum(count, 1)
        result: Vector = gamma / divisors
        return result

    def _local(self, k: str, picked: Indices, z: Vector, gamma: float, sigma: float) -> Vector:
        """Algorithms 3 and 5."""
        problem = self.problem
        rows = problem.parties[k].rows
        alpha, y = self.alpha[k][picked], problem.y[rows[picked]]
        if self.preset == "theory":
            c = len(rows) / problem.samples if self.trust == "share" else 1.0
            return problem.theory_step(alpha, z, y, gamma, c)
        nu = 1.0 if self.preset == "paper" else np.sum(problem.x[rows[picked]] ** 2, axis=1)
        damped = sigma if self.preset == "safe" else 1.0
        return problem.step(alpha, z, y, damped * nu / (problem.l2 * problem.samples))

    def _best_step(self, delta: Vector) -> float:
        """Section 3.3, for conjugates that are parabolas."""
        problem = self.problem
        v = problem.primal(delta)
        rise = (
            np.mean(delta * (problem.y - problem.bend * self.alpha_0)) - problem.l2 * problem.primal(self.alpha_0) @ v
        )
        bend = problem.bend * np.mean(delta**2) + problem.l2 * v @ v
        return float(np.clip(rise / bend, 0, 1)) if bend > 0 else float(rise > 0)
