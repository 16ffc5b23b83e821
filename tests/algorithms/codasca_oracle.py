"""CODASCA, CODA+, CODA and NPA once more, in plain NumPy: linear scorers, whole shards as batches, literal formulas.

Nothing here is shared with the code of the project. Points are u = (w, a, b, alpha); v is u without alpha. Control
variates have the paper's signs: plain gradients, of which that of alpha is ascended.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


@dataclass
class Part:
    """What one machine holds."""

    x: Array  # features, shape (n, d)
    y: Array  # +1 and -1, shape (n,)

    @property
    def rate(self) -> float:
        """Share of positive samples."""
        return float(np.mean(self.y > 0))

    def gradients(self, u: Array, p: float) -> tuple[Array, float]:
        """Return grad_v F and grad_alpha F of the mean over the machine's samples, sample by sample (section 1.3)."""
        w, a, b, alpha = u[:-3], u[-3], u[-2], u[-1]
        g_v, g_alpha = np.zeros(u.size - 1), 0.0
        for x, y in zip(self.x, self.y, strict=True):
            h = float(w @ x)
            if y > 0:
                g_v[:-2] += 2 * (1 - p) * (h - a - 1 - alpha) * x
                g_v[-2] += -2 * (1 - p) * (h - a)
                g_alpha += -2 * (1 - p) * h
            else:
                g_v[:-2] += 2 * p * (h - b + 1 + alpha) * x
                g_v[-1] += -2 * p * (h - b)
                g_alpha += 2 * p * h
            g_alpha += -2 * p * (1 - p) * alpha
        return g_v / self.y.size, g_alpha / self.y.size

    def value(self, u: Array, p: float) -> float:
        """The mean of F (section 1.2)."""
        w, a, b, alpha = u[:-3], u[-3], u[-2], u[-1]
        total = 0.0
        for x, y in zip(self.x, self.y, strict=True):
            h = float(w @ x)
            total += (1 - p) * (h - a) ** 2 if y > 0 else p * (h - b) ** 2
            total += 2 * (1 + alpha) * (-(1 - p) * h if y > 0 else p * h) - p * (1 - p) * alpha**2
        return total / self.y.size


@dataclass
class Machines:
    """All machines, with the weights lambda_k and the prior p that belongs to them."""

    parts: list[Part]
    weights: Array
    gamma: float
    prior: float | None = None
    c: Array = field(init=False)  # c^k, shape (K, n), with the paper's signs; kept between stages
    rounds: list[Array] = field(default_factory=list)  # the point after each round

    def __post_init__(self) -> None:
        self.c = np.zeros((len(self.parts), self.parts[0].x.shape[1] + 3))

    @property
    def p(self) -> float:
        """Class prior."""
        given = float(sum(w * part.rate for w, part in zip(self.weights, self.parts, strict=True)))
        return given if self.prior is None else self.prior

    def step(self, k: int, u: Array, centre: Array, eta: float, correction: Array) -> tuple[Array, Array]:
        """One local step; return the new point and the gradients of the stage, both of shape (n,)."""
        g_v, g_alpha = self.parts[k].gradients(u, self.p)
        g_v = g_v + self.gamma * (u[:-1] - centre[:-1])
        v = u[:-1] - eta * (g_v + correction[:-1])
        alpha = u[-1] + eta * (g_alpha + correction[-1])
        return np.append(v, alpha), np.append(g_v, g_alpha)

    def coda_plus(self, u: Array, eta: float, window: int, rounds: int) -> tuple[Array, Array]:
        """One stage of CODA+; return the average of all iterates, and the last point."""
        centre, total = u.copy(), np.zeros_like(u)
        for _ in range(rounds):
            ends = []
            for k, weight in enumerate(self.weights):
                own = u
                for _ in range(window):
                    own, _ = self.step(k, own, centre, eta, np.zeros_like(u))
                    total += weight * own
                ends.append(own)
            u = self.weights @ np.array(ends)
            self.rounds.append(u)
        return total / (window * rounds), u

    def codasca(self, u: Array, eta: float, eta_g: float, window: int, rounds: int, start: str = "carry") -> Array:
        """One stage of CODASCA, with the difference form of the control variates; return the last point."""
        centre = u.copy()
        if start == "zero":
            self.c = np.zeros_like(self.c)
        if start == "gradient":
            self.c = np.array([np.append(*part.gradients(u, self.p)) for part in self.parts])
        for _ in range(rounds):
            c = self.weights @ self.c
            ends, new = [], []
            for k in range(len(self.parts)):
                own = u
                for _ in range(window):
                    own, _ = self.step(k, own, centre, eta, c - self.c[k])
                moved = (u - own) / (window * eta) * np.append(np.ones(u.size - 1), -1.0)
                new.append(self.c[k] - c + moved)
                ends.append(own)
            self.c = np.array(new)
            u = u + eta_g * (self.weights @ np.array(ends) - u)
            self.rounds.append(u)
        return u


def golden() -> list[Part]:
    """The two machines of section 6.1."""
    return [
        Part(np.array([[1, 0], [0, 1], [-1, 1], [0.5, -0.5]]), np.array([1.0, -1, -1, -1])),
        Part(np.array([[0.0, 2], [1, 1], [-1, 0], [2, -1]]), np.array([1.0, 1, -1, -1])),
    ]
