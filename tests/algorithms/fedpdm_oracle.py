"""FedPDM once more, as plain loops over all clients.

Written from docs/specifications/fedpdm.md, sections 2.2 to 2.8, and from no code of the project but what has tests
of its own: the supports, the generator of random numbers, and the clients' gradients. Nothing is kept
incrementally here: the mean of what all clients hold is taken of what they all hold.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fenchel.common.arrays import Dense, Indices, Vector
from fenchel.common.compression.sparsification import public_top_k, top_k
from fenchel.common.randomness import generator, public_seed
from fenchel.common.wire.index_sets import seeded_support
from fenchel.deploy.launch.names import client_names
from tests.algorithms.mlr import Problem


@dataclass(frozen=True)
class Variant:
    """Which of the algorithms this is."""

    penalty: float = 1.0  # rho
    step_size: float = 0.2  # eta
    steps: int = 3  # Q
    decays: bool = False  # whether eta is divided by the square root of the round's number
    aggregator: str = "sampled"  # or stale, hybrid
    public: bool = False  # whether dual variables are formed from what was sent; with hybrid they always are
    batch_size: int | None = None  # b; None: all samples
    batches: str = "passes"
    support: str | None = None  # which coordinates are sent; None: all
    keep: float = 1.0  # of which share
    hold: bool = False  # whether others stay as they were
    ef21: bool = False  # whether the change of a replica is sent
    down: str | None = None  # likewise for the model
    down_keep: float = 1.0
    clip: float | None = None  # what happens to the values on their way
    noise: float | None = None
    float32: bool = False  # both ways
    gamma: float = 0.0  # weight of the l1 norm in h
    beta: float = 0.0  # weight of the non-convex term in each f_i
    tolerance: float | None = None  # nu

    def algorithm(self) -> dict[str, Any]:
        """Return the settings of the algorithm, everything said in words."""
        return {
            "name": "fedpdm",
            "penalty": self.penalty,
            "step_size": self.step_size,
            "step_decay": "inverse-sqrt" if self.decays else "constant",
            "local_steps": self.steps,
            "batch_size": self.batch_size,
            "batches": self.batches,
            "aggregator": self.aggregator,
            "dual": "public" if self.public or self.aggregator == "hybrid" else "private",
            "tolerance": self.tolerance,
            "error_feedback": "ef21" if self.ef21 else "none",
        }

    def sections(self) -> dict[str, Any]:
        """Return the other sections of the settings that say so."""
        fill = "hold" if self.hold else "zero"
        up = {"support": self.support, "keep": self.keep, "fill": fill} if self.support else None
        down = {"support": self.down, "keep": self.down_keep} if self.down else None
        dtype = "float32" if self.float32 else None
        h = {"kind": "l1", "weight": self.gamma} if self.gamma else {"kind": "none"}
        return {
            "uplink": {"sparsify": up, "clip": self.clip, "noise": self.noise, "dtype": dtype},
            "downlink": {"sparsify": down, "dtype": dtype},
            "regularizer": h,
            "nonconvex": self.beta,
        }


@dataclass
class Trace:
    """What became of a run."""

    duals: Dense  # lambda_i, shape (N, d)
    held: Dense  # what the server has of each client's upload, shape (N, d)
    models: list[Vector] = field(default_factory=list)  # x0 after each round, as the clients know it
    steps: list[dict[int, int]] = field(default_factory=list)  # Q_i of each round and client


def soft(u: Vector, threshold: float) -> Vector:
    """The proximal operator of ``threshold ||x||_1``."""
    return np.sign(u) * np.maximum(np.abs(u) - threshold, 0.0)


def share(alpha: float, size: int) -> int:
    """How many entries a share is."""
    return max(1, int(np.floor(alpha * size + 0.5)))


def batches_of(variant: Variant, samples: int, seed: int, client: str, t: int) -> list[Indices]:
    """The batches of one client in one round (section 2.2)."""
    every = np.arange(samples)
    b, steps = variant.batch_size, variant.steps
    if b is None or b >= samples:
        return [every] * steps
    draws = generator(seed, client, t, "batches")
    if variant.batches == "independent":
        return [draws.choice(samples, b, replace=False) for _ in range(steps)]
    drawn: list[Indices] = []
    while len(drawn) < steps:
        order = draws.permutation(samples)
        drawn += [order[start : start + b] for start in range(0, samples, b)]
    return drawn[:steps]


def up_support(variant: Variant, vector: Vector, x0: Vector, seed: int, client: str, t: int) -> Indices:
    """The coordinates that a client sends of a vector (section 2.5)."""
    d = vector.size
    k = share(variant.keep, d)
    shared = public_seed(seed, "uplink support", t)
    match variant.support:
        case "top-k":
            return top_k(vector, k)
        case "random":
            own = int(generator(seed, client, t, "support", "model").integers(1 << 64, dtype=np.uint64))
            return seeded_support(own, d, k)
        case "shared-random":
            return seeded_support(shared, d, k)
        case "public-top-k":
            return public_top_k(x0, k, shared)
    return np.arange(d)


def down_model(variant: Variant, model: Vector, seed: int, t: int) -> Vector:
    """What the clients will know of a model in round ``t`` (section 2.4, step 8)."""
    rounded = rounded_to_wire(variant, model)
    if variant.down is None:
        return rounded
    k = share(variant.down_keep, model.size)
    if variant.down == "top-k":
        kept = top_k(rounded, k)
    else:
        kept = seeded_support(public_seed(seed, "downlink support", t), model.size, k)
    sparse = np.zeros_like(rounded)
    sparse[kept] = rounded[kept]
    return sparse


def rounded_to_wire(variant: Variant, values: Vector) -> Vector:
    """The values as they arrive."""
    return values.astype(np.float32).astype(np.float64) if variant.float32 else values


def spoilt(variant: Variant, values: Vector, around: Vector, seed: int, client: str, t: int) -> Vector:
    """The chosen values of an upload, clipped and with noise."""
    if variant.clip is not None:
        change = values - around
        values = around + change * min(1.0, variant.clip / max(float(np.linalg.norm(change)), 1e-300))
    if variant.noise is not None:
        draws = generator(seed, client, t, "noise", "model")
        values = values + variant.noise * draws.standard_normal(values.size)
    return values


def simulated(
    problem: Problem, variant: Variant, cohorts: Sequence[Sequence[int]], seed: int = 0, *, start: Vector | None = None
) -> Trace:
    """Run the algorithm with one cohort a round, from x0 and from uploads that the server takes to be ``start``."""
    clients, names = problem.clients, client_names(problem.clients)
    objectives = problem.objectives
    d = objectives[0].dimension
    rho = variant.penalty
    initial: Vector = np.zeros(d) if start is None else start
    trace = Trace(np.zeros((clients, d)), np.tile(initial, (clients, 1)))
    x0 = down_model(variant, initial, seed, 1)
    for t, cohort in enumerate(cohorts, 1):
        eta = variant.step_size / (np.sqrt(t) if variant.decays else 1.0)
        sums, counts = np.zeros(d), np.zeros(d)
        trace.steps.append({})
        for i in sorted(cohort):
            f, name = objectives[i], names[i]
            x = x0.copy()
            for q, rows in enumerate(batches_of(variant, f.samples, seed, name, t), 1):
                bent = 2 * variant.beta * x / (1 + x**2) ** 2
                g = f.batch_gradient(x, rows) + bent - trace.duals[i] + rho * (x - x0)
                x = x - eta * g
                trace.steps[-1][i] = q
                if variant.tolerance is not None and float(g @ g) <= variant.tolerance:
                    break
            dual = trace.duals[i] + rho * (x0 - x)  # (8c)
            y = 2 * x - x0 - trace.duals[i] / rho  # (8d) as it reads after the equality sign
            upload = x if variant.aggregator == "hybrid" else y
            if variant.ef21:
                change = upload - trace.held[i]
                chosen = up_support(variant, change, x0, seed, name, t)
                trace.held[i, chosen] += rounded_to_wire(variant, change[chosen])
                received = trace.held[i, chosen]
            else:
                chosen = up_support(variant, upload, x0, seed, name, t)
                received = spoilt(variant, upload[chosen], x0[chosen], seed, name, t)
                if variant.aggregator == "stale":
                    known = trace.held[i, chosen]
                    received = known + rounded_to_wire(variant, received - known)
                    trace.held[i, chosen] = received
                else:
                    received = rounded_to_wire(variant, received)
            sums[chosen] += received
            counts[chosen] += 1
            if variant.aggregator == "hybrid":
                trace.duals[i, chosen] += rho * (x0[chosen] - received)
            elif variant.public:
                trace.duals[i, chosen] = (trace.duals[i, chosen] + rho * (x0[chosen] - received)) / 2
            else:
                trace.duals[i] = dual
        covered = counts > 0
        with np.errstate(invalid="ignore"):
            elementwise = np.where(covered, sums / counts, 0.0)
        if variant.aggregator == "stale":
            u, covered = trace.held.mean(axis=0), np.ones(d, bool)
        elif variant.ef21:
            u, covered = trace.held[sorted(cohort)].mean(axis=0), np.ones(d, bool)
        elif variant.aggregator == "hybrid":
            u = np.where(covered, elementwise - trace.duals.mean(axis=0) / rho, 0.0)
        else:
            u = elementwise
        new = soft(u, variant.gamma / rho)
        if variant.support is not None and variant.hold:
            new = np.where(covered, new, x0)
        x0 = down_model(variant, new, seed, t + 1)
        trace.models.append(x0)
    return trace


@dataclass(frozen=True)
class Iterate:
    """Where the algorithm stands after a round with everybody in it."""

    local: Dense  # x_i, shape (N, d)
    duals: Dense  # lambda_i, shape (N, d)
    model: Vector  # x0, the one that came of them, shape (d,)


@dataclass(frozen=True)
class Landscape:
    """F(x) = (1/N) sum_i f_i(x) + gamma ||x||_1, and what the theory of section 4 says of a run on it."""

    values: Sequence[Callable[[Vector], float]]  # f_i
    gradients: Sequence[Callable[[Vector], Vector]]
    smoothness: float  # L, of every f_i
    gamma: float  # weight of the l1 norm
    penalty: float  # rho

    def objective(self, x: Vector) -> float:
        """F(x)."""
        return float(np.mean([f(x) for f in self.values])) + self.gamma * float(np.abs(x).sum())

    def lagrangian(self, at: Iterate) -> float:
        """The augmented Lagrangian (7)."""
        total = 0.0
        for f, x, dual in zip(self.values, at.local, at.duals, strict=True):
            apart = at.model - x
            total += f(x) + float(dual @ apart) + self.penalty / 2 * float(apart @ apart)
        return total / len(self.values) + self.gamma * float(np.abs(at.model).sum())

    def residuals(self, at: Iterate) -> tuple[Vector, Vector, float]:
        """Norms of the three kinds of terms of P (section 4.2): of each client two, and the server's."""
        rho = self.penalty
        slopes = [
            float(np.linalg.norm(gradient(x) - dual + rho * (x - at.model)))
            for gradient, x, dual in zip(self.gradients, at.local, at.duals, strict=True)
        ]
        gaps = np.linalg.norm(at.model - at.local, axis=1)
        u = np.mean(at.local - at.duals / rho, axis=0)
        server = float(np.linalg.norm(at.model - soft(u, self.gamma / rho)))
        return np.array(slopes), gaps, server

    def measure(self, at: Iterate) -> float:
        """P."""
        slopes, gaps, server = self.residuals(at)
        return float((slopes**2).sum() + (gaps**2).sum() + server**2)

    def gradient_map(self, x: Vector) -> Vector:
        """Gmap, which is 0 where F is stationary."""
        mean: Vector = np.mean([gradient(x) for gradient in self.gradients], axis=0)
        return self.penalty * (x - soft(x - mean / self.penalty, self.gamma / self.penalty))
