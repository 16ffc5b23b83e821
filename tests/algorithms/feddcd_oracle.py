"""FedDCD and AccFedDCD once more, in plain NumPy, written from the pseudocode of the specification.

Every client is stepped in every round, also those that sit it out; nothing is shared with the code under test. All
arrays may have further axes in front, one entry for each of many independent runs: so expectations are cheap.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import numpy as np

from fenchel.common.arrays import Dense, Vector

Minimisers: TypeAlias = Callable[[Dense], Dense]
"""From the dual vectors of all clients, shape (..., N, d), to argmin_w f_i(w) - <w, y_i>, same shape."""


@dataclass(frozen=True)
class Quadratics:
    """f_i(w) = (1/2) (w - m_i)^T A_i (w - m_i), for which everything is known in closed form."""

    curvatures: Dense  # A_i, positive definite, shape (N, d, d)
    centers: Dense  # m_i, shape (N, d)

    @classmethod
    def random(
        cls, clients: int = 6, dimension: int = 4, *, alpha: float = 1.0, beta: float = 12.0, seed: int = 0
    ) -> Quadratics:
        """Draw functions with eigenvalues between alpha and beta, both of which occur in each client."""
        chance = np.random.default_rng(seed)
        bases = np.linalg.qr(chance.standard_normal((clients, dimension, dimension)))[0]
        eigenvalues = chance.uniform(alpha, beta, (clients, dimension))
        eigenvalues[:, 0], eigenvalues[:, -1] = alpha, beta
        curvatures = bases * eigenvalues[:, None, :] @ np.swapaxes(bases, 1, 2)
        return cls((curvatures + np.swapaxes(curvatures, 1, 2)) / 2, chance.standard_normal((clients, dimension)))

    @property
    def zeros(self) -> Dense:
        """The dual vectors at the start, shape (N, d)."""
        return np.zeros_like(self.centers)

    @cached_property
    def _inverses(self) -> Dense:
        return np.linalg.inv(self.curvatures)

    def minimisers(self, y: Dense) -> Dense:
        """w_i(y_i) = m_i + A_i^{-1} y_i, shape (..., N, d)."""
        result: Dense = self.centers + np.einsum("ijk,...ik->...ij", self._inverses, y)
        return result

    def dual(self, y: Dense) -> Dense:
        """G(y) = sum_i <m_i, y_i> + (1/2) y_i^T A_i^{-1} y_i, shape (...)."""
        linear = np.einsum("ij,...ij->...", self.centers, y)
        result: Dense = linear + 0.5 * np.einsum("...ij,ijk,...ik->...", y, self._inverses, y)
        return result

    def value(self, w: Dense) -> Dense:
        """F(w), shape (...), for ``w`` of shape (..., d)."""
        apart = w[..., None, :] - self.centers
        result: Dense = 0.5 * np.einsum("...ij,ijk,...ik->...", apart, self.curvatures, apart)
        return result

    @cached_property
    def optimum(self) -> Vector:
        """w*, shape (d,)."""
        right = np.einsum("ijk,ik->j", self.curvatures, self.centers)
        result: Vector = np.linalg.solve(self.curvatures.sum(axis=0), right)
        return result

    @cached_property
    def optimal_duals(self) -> Dense:
        """y_i* = grad f_i(w*), shape (N, d)."""
        result: Dense = np.einsum("ijk,ik->ij", self.curvatures, self.optimum - self.centers)
        return result

    def gap(self, y: Dense) -> Dense:
        """G(y) - G*, shape (...)."""
        return np.asarray(self.dual(y) - self.dual(self.optimal_duals))


def membership(cohort: Iterable[int], clients: int) -> Vector:
    """Return 1 for the members of a cohort and 0 for the others, shape (N,)."""
    mask = np.zeros(clients)
    mask[list(cohort)] = 1
    return mask


def memberships(chance: np.random.Generator, runs: int, clients: int, size: int) -> Dense:
    """Draw a cohort for each of many runs, uniformly without replacement; shape (runs, N)."""
    order = chance.random((runs, clients)).argsort(axis=1)
    return (order < size).astype(float)


def center_of(w: Dense, active: Dense, scales: Vector) -> Dense:
    """Return the mean of w_i over the active clients, weighted by 1 / lambda_i, shape (..., d)."""
    weights = active * scales
    total: Dense = (weights[..., None] * w).sum(axis=-2) / weights.sum(axis=-1)[..., None]
    return total


def direction(w: Dense, center: Dense, active: Dense, scales: Vector) -> Dense:
    """Return (w_i - center) / lambda_i for active clients and 0 for the others, shape (..., N, d)."""
    return np.asarray((active * scales)[..., None] * (w - center[..., None, :]))


def feddcd_round(w: Dense, y: Dense, active: Dense, scales: Vector, eta: float = 1.0) -> tuple[Dense, Dense]:
    """Steps 4 to 7 of section 2.1: return the new y and the center."""
    center = center_of(w, active, scales)
    return y - eta * direction(w, center, active, scales), center


@dataclass(frozen=True)
class Momentum:
    """The scalars of section 2.3, for participation r and conditioning alpha / beta."""

    r: float
    conditioning: float

    @property
    def q(self) -> float:
        """sqrt(alpha / beta)."""
        return float(np.sqrt(self.conditioning))

    @property
    def a(self) -> float:
        """As printed."""
        return self.q / (1 / self.r + self.q)

    @property
    def b(self) -> float:
        """As printed."""
        return self.conditioning * self.a * self.r**2

    @property
    def theta(self) -> float:
        """The second of the two forms."""
        return (1 - self.a) / (self.q * (1 - self.a + self.a**2))

    def begin(self, y: Dense, z: Dense) -> tuple[Dense, Dense]:
        """Step 1: v and u."""
        v = (1 - self.a) * y + self.a * z
        return v, (self.a**2 * z + self.b * v) / (self.a**2 + self.b)


def accelerated_round(
    minimisers: Minimisers, y: Dense, z: Dense, first: Dense, second: Dense | None, scales: Vector, momentum: Momentum
) -> tuple[Dense, Dense, Dense]:
    """Steps 1 to 9 of section 2.3; ``second = None``: one cohort. Return the new y and z, and the first center."""
    v, u = momentum.begin(y, z)
    w = minimisers(v)
    center = center_of(w, first, scales)
    y = v - direction(w, center, first, scales)
    if second is None:
        return y, u - momentum.theta * direction(w, center, first, scales), center
    return y, u - momentum.theta * direction(w, center_of(w, second, scales), second, scales), center


def idle_rounds(y: Vector, z: Vector, rounds: int, momentum: Momentum) -> tuple[Vector, Vector]:
    """Return what rounds without a client do to it, one after the other."""
    for _ in range(rounds):
        y, z = momentum.begin(y, z)
    return y, z


def safe_participation(tau: int, scales: Sequence[float]) -> float:
    """r_eff of section 1.5: the smallest over all pairs of clients."""
    n, total = len(scales), float(np.sum(scales))
    if tau == n:
        return 1.0
    share = tau * (tau - 1) / (n * (n - 1))
    return min(
        share * total / (a + b + (tau - 2) / (n - 2) * (total - a - b)) for a, b in itertools.combinations(scales, 2)
    )
