"""FedDCD, client half.

Fan, Fang, Friedlander, "A dual approach for federated learning", Algorithm 1 (FedDCD specification, section 2.1).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from client.algorithm import ClientAlgorithm, answers
from client.solvers import Solved, Tilted, chosen, solve
from common.algorithms.feddcd import DualAscentSettings, FedDCDSettings, not_convex
from common.arrays import Vector
from common.objectives.linear import LinearObjective
from common.settings.solver import (
    LbfgsSolver,
    NewtonCgSolver,
    Solver,
    Stopping,
)
from common.values import Values

_EXACTLY = Stopping(accuracy=1e-30)  # as far as rounding lets it


class DualAscentClient(ClientAlgorithm):
    """What the clients of FedDCD and AccFedDCD have in common: constants, the local solve, the certificate."""

    settings: DualAscentSettings

    @dataclass
    class State:
        """What a client keeps.

        Attributes
        ----------
        dual
            y_i, shape (d,), float64 whatever the model's dtype: the duals of all clients sum to zero.
        minimizer
            w_i, the last model that this client computed: where the next solve starts, shape (d,).
        weight
            p_i, its weight in the objective.
        solves
            How often it has solved.
        """

        dual: Vector
        minimizer: Vector
        weight: float
        solves: int

    def initial_state(self) -> Any:
        """y_i = w_i = 0."""
        zeros = np.zeros(self.objective.dimension)
        return self.State(zeros, zeros.astype(self.objective.dtype), 1.0, 0)

    @answers("describe")
    def describe(self) -> Values:
        """alpha_i, beta_i (0: no bound is known) and n_i of the unweighted objective."""
        alpha, beta = float(self.objective.strong_convexity), float(self.objective.smoothness)
        return {
            "strong_convexity": max(alpha, 0.0),
            "smoothness": beta if math.isfinite(beta) else 0.0,
            "samples": self.objective.samples,
        }

    @property
    def scale(self) -> float:
        """1 / lambda_i: the strong convexity of the weighted objective."""
        return float(self.state.weight * self.objective.strong_convexity)

    def solved_at(self, dual: Vector, start: Vector, accuracy: float | None = None) -> Solved:
        """argmin_w f_i(w) - <w, y>, where f_i carries the weight p_i: the tilt of the unweighted one is y / p_i.

        ``accuracy``: delta that the solve keeps at least, where its solver's rule is an accuracy.
        """
        solver: Solver = self.settings.solver
        if self.own_solver is not None:
            solver = self.own_solver.stopping_like(solver)
        exacting = chosen(solver, self.objective)
        if self.state.solves == 0:
            exacting = exacting.within(self.settings.first_accuracy)
        if accuracy is not None:
            exacting = exacting.within(accuracy)
        return self._solved(dual, start, exacting)

    def _solved(self, dual: Vector, start: Vector, solver: Solver) -> Solved:
        problem = Tilted(self.objective, dual / self.state.weight)
        return solve(problem, start, solver, self.generator("solver"))

    def reply(self, iterations: int) -> Values:
        """The minimiser, its weight in the average, and what the server can watch."""
        w = self.state.minimizer
        return {"minimizer": w, "scale": self.scale, "square": float(w @ w), "iterations": iterations}

    def certificate(self, model: Vector, dual: Vector) -> Values:
        """p_i f_i(model) and the conjugate at the dual, exactly solved; what is left of the gradient is added."""
        exactly = NewtonCgSolver if isinstance(self.objective, LinearObjective) else LbfgsSolver
        solved = self._solved(dual, self.state.minimizer, exactly(stop=_EXACTLY))
        weight, w = self.state.weight, solved.w
        conjugate = float(dual @ w) - weight * self.objective.value(w)
        rest = weight * solved.gradient_norm**2 / (2 * float(self.objective.strong_convexity))
        return {"objective": weight * self.objective.value(model), "conjugate": conjugate + rest}


class FedDCDClient(DualAscentClient):
    """Solves its local problem, tilted by the dual vector that makes it agree with the others."""

    settings: FedDCDSettings

    @answers("begin")
    def begin(self, weight: float) -> None:
        """Take in p_i, at the start and whenever a client has joined: y_i stays, and with it the sum of all."""
        self.state.weight = weight

    @answers("minimize")
    def minimize(self, model: Vector | None = None) -> Values:
        """w_i = argmin_w f_i(w) - <w, y_i>, from the last own minimiser, or from the average (networks)."""
        state = self.state
        start = state.minimizer if model is None else model
        solved = self.solved_at(state.dual, start)
        state.minimizer, state.solves = solved.w, state.solves + 1
        return self.reply(solved.iterations)

    @answers("shift_dual")
    def shift_dual(self, center: Vector) -> None:
        """y_i -= eta (w_i - center) / lambda_i; w_i is what was sent."""
        state = self.state
        state.dual = state.dual - self.step * difference(state.minimizer, center)

    @property
    def step(self) -> float:
        """eta / lambda_i, or what replaces it for a network."""
        if self.settings.dual_step is not None:
            return self.settings.dual_step
        return self.settings.step_size * self.scale

    @property
    def scale(self) -> float:
        """1 / lambda_i; the same for all clients where it is a free constant."""
        if self.settings.dual_step is not None:
            return 1.0
        if self.objective.strong_convexity <= 0:
            raise not_convex()
        return super().scale

    @answers("certify")
    def certify(self, model: Vector) -> Values:
        """Objective and conjugate, for the duality gap."""
        return self.certificate(model, self.state.dual)

    @answers("solve_at_dual")
    def solve_at_dual(self) -> Values:
        """The paper's output: this client's minimiser at its final dual vector."""
        solved = self.solved_at(self.state.dual, self.state.minimizer)
        return {"minimizer": solved.w}


def difference(minimizer: Vector, center: Vector) -> Vector:
    """w_i - center, in float64: both are exactly what travelled."""
    exact: Vector = minimizer.astype(np.float64) - center
    return exact
