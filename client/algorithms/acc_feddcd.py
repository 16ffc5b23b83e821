"""AccFedDCD, client half.

Fan, Fang, Friedlander, "A dual approach for federated learning", Algorithm 2 (FedDCD specification, section 2.3). A
client that sits a round out does nothing: what the round does to it is a recurrence with a closed form, which it
applies when it is asked next.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from client.algorithm import answers
from client.algorithms.feddcd import DualAscentClient, difference
from client.solvers import Solved
from common.algorithms.feddcd import Acceleration, AccFedDCDSettings
from common.arrays import Indices, Vector
from common.expectation import ABSURD
from common.values import Values


class AccFedDCDClient(DualAscentClient):
    """Keeps two dual vectors, y_i and the extrapolating z_i."""

    settings: AccFedDCDSettings

    @dataclass
    class State(DualAscentClient.State):
        """What a client keeps; ``dual`` is y_i.

        Attributes
        ----------
        momentum
            z_i, shape (d,).
        committed
            After which committed round y_i and z_i are.
        solved_in
            The committed round before which ``minimizer`` was computed; -1: never.
        error
            Bound on the squared distance of ``minimizer`` to the exact one.
        a, b, theta
            The scalars of acceleration, the same for all clients.
        """

        momentum: Vector
        committed: int
        solved_in: int
        error: float
        a: float
        b: float
        theta: float

    def initial_state(self) -> Any:
        """y_i = z_i = w_i = 0."""
        zeros = np.zeros(self.objective.dimension)
        w = zeros.astype(self.objective.dtype)
        return self.State(zeros, w, 1.0, 0, zeros, 0, -1, ABSURD, 0.0, 0.0, 0.0)

    @answers("begin")
    def begin(
        self,
        weight: float,
        a: float,
        b: float,
        theta: float,
        committed: int,
        restarts: Indices,
    ) -> None:
        """Take in p_i and the scalars of acceleration; told again when the fleet has grown, start it anew.

        Rounds that this client sat out before are caught up with by the scalars that held then. From ``committed`` on
        z_i = y_i (specification, section 2.6, "Client joining late").
        """
        state = self.state
        if state.a:  # a client that joins late has y_i = z_i = 0, and no scalars that held before
            self._catch_up(committed, restarts)
        state.momentum, state.committed, state.solved_in = state.dual, committed, -1
        state.weight = weight
        state.a, state.b, state.theta = a, b, theta

    @answers("minimize")
    def minimize(
        self, committed: int, restarts: Indices, accuracy: float, model: Vector | None = None
    ) -> Values:
        """v_i = (1-a) y_i + a z_i; w_i = argmin_w f_i(w) - <w, v_i>. Asked twice in a round it solves once.

        The solve starts from the last own minimiser, or from the average (networks).
        """
        state = self.state
        self._catch_up(committed, restarts)
        if state.solved_in == committed:
            return self.reply(0)  # in the other cohort of this round, at the same v_i
        start = state.minimizer if model is None else model
        solved = self.solved_at(self._v(), start, accuracy)
        state.minimizer, state.solves, state.solved_in = solved.w, state.solves + 1, committed
        state.error = self._error(solved)
        return self.reply(solved.iterations)

    def reply(self, iterations: int) -> Values:
        """Return also how far the minimiser may be from the exact one, which the server's guard rests on."""
        return {**super().reply(iterations), "error": self.state.error}

    def _error(self, solved: Solved) -> float:
        """Bound ||w_i - w_i(v_i)||^2 by the gradient that is left; ABSURD where the solver or alpha_i tell none."""
        alpha = self.objective.strong_convexity
        if not (alpha > 0 and math.isfinite(solved.gradient_norm)):
            return ABSURD
        return min((solved.gradient_norm / float(alpha)) ** 2, ABSURD)

    @answers("shift_duals")
    def shift_duals(
        self, center: Vector | None = None, y_center: Vector | None = None, z_center: Vector | None = None
    ) -> None:
        """y_i = v_i - (w_i - center) / lambda_i; z_i = u_i - theta (w_i - center) / lambda_i.

        With two cohorts each has a center of its own; without one (the client was in the other cohort only),
        y_i = v_i or z_i = u_i.
        """
        state, v, u = self.state, self._v(), self._u()
        if center is not None:
            y_center = z_center = center
        state.dual = v if y_center is None else v - self.step * difference(state.minimizer, y_center)
        state.momentum = (
            u if z_center is None else u - state.theta * self.step * difference(state.minimizer, z_center)
        )
        state.committed += 1

    @property
    def step(self) -> float:
        """1 / lambda_i, or what replaces it for a network."""
        return self.scale if self.settings.dual_step is None else self.settings.dual_step

    @property
    def scale(self) -> float:
        """1 / lambda_i; the same for all clients where the step is a free constant."""
        return super().scale if self.settings.dual_step is None else 1.0

    @answers("certify")
    def certify(self, model: Vector, committed: int, restarts: Indices) -> Values:
        """Objective and conjugate at y_i after the committed rounds, for the duality gap."""
        self._catch_up(committed, restarts)
        return self.certificate(model, self.state.dual)

    @answers("solve_at_dual")
    def solve_at_dual(self, committed: int, restarts: Indices) -> Values:
        """The paper's output: this client's minimiser at its final y_i."""
        self._catch_up(committed, restarts)
        return {"minimizer": self.solved_at(self.state.dual, self.state.minimizer).w}

    def _v(self) -> Vector:
        state = self.state
        v: Vector = (1 - state.a) * state.dual + state.a * state.momentum
        return v

    def _u(self) -> Vector:
        state = self.state
        a2 = state.a**2
        u: Vector = (a2 * state.momentum + state.b * self._v()) / (a2 + state.b)
        return u

    def _catch_up(self, committed: int, restarts: Indices) -> None:
        """Bring y_i and z_i to where the committed rounds are; z_i = y_i wherever the acceleration began anew."""
        state = self.state
        for restart in restarts[(restarts >= state.committed) & (restarts <= committed)].tolist():
            state.dual, _ = self._after(restart)
            state.momentum, state.committed = state.dual, restart
        state.dual, state.momentum = self._after(committed)
        state.committed = committed

    def _after(self, committed: int) -> tuple[Vector, Vector]:
        """y_i and z_i after k rounds without this client, in closed form (specification, 2.3)."""
        state = self.state
        decay = Acceleration(state.a, state.b, state.theta).decay
        k = committed - state.committed
        apart = state.momentum - state.dual
        y: Vector = state.dual + state.a * (1 - decay**k) / (1 - decay) * apart
        z: Vector = y + decay**k * apart
        return y, z
