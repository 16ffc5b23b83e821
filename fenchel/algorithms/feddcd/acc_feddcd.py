"""AccFedDCD: FedDCD with Nesterov's acceleration.

Fan, Fang, Friedlander, "A dual approach for federated learning", Algorithm 2 (docs/specifications/feddcd.md, section
2.3).
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar, Literal, Self

import numpy as np
from pydantic import Field, PositiveFloat, model_validator

from fenchel.algorithms.client_half import answers
from fenchel.algorithms.feddcd.feddcd import DualAscent, DualAscentClient, DualAscentSettings
from fenchel.common.arrays import Indices, Vector
from fenchel.common.errors import SettingsError
from fenchel.common.optim import Solved
from fenchel.common.settings.participation import Weighted
from fenchel.common.wire.schema import ABSURD, Expected, NumberSpec
from fenchel.common.wire.values import Values
from fenchel.fleet.cohort import Cohort, Reduced


class AccFedDCDSettings(DualAscentSettings):
    """FedDCD with acceleration (Fan, Fang, Friedlander)."""

    name: Literal["acc-feddcd"] = "acc-feddcd"
    cohorts: Literal[1, 2] = Field(
        1,
        description="cohorts a round: two as printed, or one, which the same proof covers (for equal "
        "alpha_i) at half of the traffic",
    )
    smoothness: PositiveFloat | None = Field(
        None,
        description="beta of each client's objective before weighting; null: the client's own bound. A value below the "
        "true one may be faster, but has no guarantee",
    )
    conditioning: float | None = Field(
        None,
        gt=0,
        le=1,
        description="alpha / beta, from which the acceleration follows; null: the smallest of the clients' own. With "
        "dual_step_size and a neural network, which has neither, it must be given (the paper's code: 30 times l2)",
    )
    restart: bool = Field(
        True,
        description="restart the acceleration, with solves four times as accurate, if the clients' minimisers diverge "
        "and local solves were too inexact; each client bounds its error by its final gradient",
    )

    @model_validator(mode="after")
    def _one_conditioning(self) -> Self:
        if self.conditioning is not None and self.smoothness is not None:
            raise ValueError(
                f"smoothness: {self.smoothness:g} has no effect with conditioning: {self.conditioning:g}, which "
                "already sets alpha / beta; leave one of them out"
            )
        return self


@dataclass(frozen=True)
class Acceleration:
    """Scalars of AccFedDCD. They are the same for all clients, so that the duals sum to zero.

    Attributes
    ----------
    a, b, theta
        As in Algorithm 2 of the paper (docs/specifications/feddcd.md, section 2.3).
    """

    a: float
    b: float
    theta: float

    @classmethod
    def of(cls, participation: float, conditioning: float) -> Acceleration:
        """Return the scalars for r in (0, 1] and alpha / beta in (0, 1]."""
        r, q = participation, math.sqrt(conditioning)
        a = r * q / (1 + r * q)
        b = conditioning * a * r**2
        return cls(a, b, a * r / (a**2 + b))

    @property
    def decay(self) -> float:
        """Factor rho by which z - y decreases in a round without the client."""
        return self.a**2 * (1 - self.a) / (self.a**2 + self.b)


def effective_participation(cohort: float, scales: Sequence[float]) -> float:
    """Return r, which is (tau - 1) / (N - 1) for equal scales, and lower for unequal ones.

    For unequal scales, convergence of the accelerated method with this r is not proved, but observed. Source:
    docs/specifications/feddcd.md, section 1.5.

    Parameters
    ----------
    cohort
        (Mean) number tau of clients in a round.
    scales
        1 / lambda_i of all clients.
    """
    n, a = len(scales), np.sort(np.asarray(scales, np.float64))
    if n < 2 or cohort >= n:
        return 1.0
    total = float(a.sum())
    # The ratio decreases in the sum of a pair, so the pair with the largest sum has the smallest ratio.
    pair = float(a[-1] + a[-2])
    rest = 0.0 if n == 2 else (cohort - 2) / (n - 2) * (total - pair)
    return cohort * (cohort - 1) / (n * (n - 1)) * total / (pair + rest)


log = logging.getLogger("fenchel.server")

_WINDOW = 10  # number of rounds over which the clients' spread is averaged
_FINEST = 1e-6  # smallest accuracy of local solves that restarts may set
_GROWTH = 10.0  # restart if the average spread exceeds its lowest value by this factor
_INEXACT = 0.25  # ratio of the mean solver error to the mean spread above which local solves count as too inexact
_UNFIT = (
    "the objective is not known to be smooth and strongly convex, as acc-feddcd needs. Use objective.l2 above 0 and "
    "another loss than hinge; for a neural network give algorithm.dual_step_size (such as 0.01) and "
    "algorithm.conditioning (such as 0.3)"
)


class AccFedDCD(DualAscent):
    """Server half of accelerated federated dual coordinate descent."""

    @dataclass
    class State(DualAscent.State):
        """State of the server half.

        Attributes
        ----------
        spreads
            Spread of the clients' minimisers in each of the latest rounds, at most a window of them.
        errors
            For each of these rounds, a bound on the squared error that inexact solves cause in the dual step.
        lowest
            Lowest mean spread of a window since the last restart or the last late joiner.
        smallest
            Smallest positive spread so far.
        restarts
            Numbers of committed rounds after which the acceleration was restarted, shape (restarts,).
        accuracy
            Required accuracy delta of local solves.
        """

        spreads: list[float] = field(default_factory=list)
        errors: list[float] = field(default_factory=list)
        lowest: float = float("inf")
        smallest: float = float("inf")
        restarts: Indices = field(default_factory=lambda: np.empty(0, np.int64))
        accuracy: float = 0.25

    Settings = AccFedDCDSettings
    settings: AccFedDCDSettings
    state: State
    also_reported: ClassVar[Mapping[str, Expected]] = {"error": NumberSpec(minimum=0.0)}
    figures: ClassVar[tuple[str, ...]] = (*DualAscent.figures, "solve_error", "restarts")

    def _check_cohorts(self) -> None:
        super()._check_cohorts()
        if isinstance(self.fleet.participation.sampler, Weighted):
            raise SettingsError(
                "weighted sampling given, but acc-feddcd needs every pair of clients to meet equally often; use "
                "kind: fixed, or the algorithm feddcd",
                key="participation.sampler.kind",
            )

    def _check_convexity(self, least: float) -> None:
        if (self.settings.dual_step_size is None or self.settings.conditioning is None) and least <= 0:
            raise SettingsError(_UNFIT, key="objective.l2")

    def _check_smoothness(self, least: float) -> None:
        super()._check_smoothness(least)
        if self.settings.conditioning is None and least <= 0:
            raise SettingsError(_UNFIT, key="objective.kind")

    def constants(self) -> dict[str, float]:
        """Return a, b and theta of Algorithm 2, from r and the smallest alpha_i / beta_i."""
        conditioning = self.settings.conditioning or self._worst_conditioning()
        r = effective_participation(self.cohort_size(), self._scales())
        return asdict(Acceleration.of(r, conditioning))

    def _scales(self) -> list[float]:
        """Return 1 / lambda_i of all clients, or 1 for each if the settings give the dual step."""
        alphas = self.state.strong_convexity
        if self.settings.dual_step_size is not None:
            return [1.0] * len(alphas)
        weights = self.weights()
        return [weights[client] * alpha for client, alpha in alphas.items()]

    def _worst_conditioning(self) -> float:
        """Return the smallest alpha_i / beta_i."""
        state = self.state
        ratios = (
            alpha / (self.settings.smoothness or state.smoothness[client])
            for client, alpha in state.strong_convexity.items()
        )
        return min(*ratios, 1.0)

    async def admit(self, cohort: Cohort) -> None:
        """Integrate late joiners, and clear the records of spreads, which their initial distance would distort."""
        await super().admit(cohort)
        self._watch_anew()

    async def round(self, t: int) -> None:
        """Have clients compute w_i = argmin f_i - <., v_i> at v_i = (1-a) y_i + a z_i, and step y_i and z_i."""
        self.state.figures = {}
        first = self.sample()
        solved = await self.minimisers(first, **self._asked())
        if self.is_alone(solved.cohort):
            return  # the round is not committed: no client advances its recurrence
        center = self.average(solved)
        self.note(solved, center)
        if self.settings.cohorts == 1:
            await solved.cohort.tell("shift_duals", center=center)
        else:
            await self._second(solved.cohort, center)
        self.state.committed += 1
        self.model = center
        self._guard()
        await self.certify(t)

    async def _second(self, first: Cohort, center: Vector) -> None:
        """Run steps 6 to 9 as printed: a second cohort, at the same v_i, updates z."""
        solved = await self.minimisers(self.second_sample(), min_replies=0, **self._asked())
        members = solved.cohort.clients if len(solved.cohort) >= 2 else ()
        both = first.only(members.__contains__)
        await first.only(lambda client: client not in members).tell("shift_duals", y_center=center)
        if not members:
            return
        second, self.state.second_rounding = self._rounded(solved, self.state.second_rounding)
        await both.tell("shift_duals", y_center=center, z_center=second)
        await solved.cohort.only(lambda client: client not in first.clients).tell("shift_duals", z_center=second)

    def second_sample(self) -> Cohort:
        """Draw I_2, independently of the round's first cohort."""
        return self.fleet.sample(draw_name="second cohort")

    def moment(self) -> dict[str, Any]:
        """Return the number of committed rounds, and the numbers after which the acceleration was restarted."""
        return {"committed": self.state.committed, "restarts": self.state.restarts}

    def _asked(self) -> dict[str, Any]:
        return {**self.moment(), "accuracy": self.state.accuracy}

    def note(self, solved: Reduced, center: Vector) -> None:
        """Record also sum_i (1 / lambda_i) e_i, where e_i bounds client i's squared distance to its exact minimiser."""
        super().note(solved, center)
        self.state.figures["solve_error"] = float(solved.sum("error"))

    def _watch_anew(self) -> None:
        state = self.state
        state.spreads, state.errors, state.lowest = [], [], float("inf")

    def _guard(self) -> None:
        """Restart the acceleration, with more accurate solves, if inexact solves drive the minimisers apart.

        With sampled cohorts the spread of unequal clients may grow while the method converges, as the theorem is about
        exact solves and expectations. Growth alone is therefore no sign of divergence. The spread is the squared norm
        of a cohort's dual step, and inexact solves change it by at most the sum of their errors. For exact solves the
        sum is 0, and the acceleration is never restarted.

        A spread below its rounding error is recorded as 0. The mean of a window therefore counts as at least the
        smallest positive spread, so that rounding errors do not look like growth. Source:
        docs/specifications/feddcd.md, section 5, row 5.7.
        """
        state, spread = self.state, self.state.figures["spread"]
        state.spreads = [*state.spreads[-(_WINDOW - 1) :], spread]
        state.errors = [*state.errors[-(_WINDOW - 1) :], state.figures["solve_error"]]
        state.smallest = min(state.smallest, spread) if spread > 0 else state.smallest
        if len(state.spreads) == _WINDOW and self.settings.restart:
            level = max(float(np.mean(state.spreads)), state.smallest)
            moved = float(np.mean(state.errors)) / level
            if level > _GROWTH * state.lowest and moved > _INEXACT:
                state.accuracy = max(state.accuracy / 4, _FINEST)
                state.restarts = np.append(state.restarts, state.committed)
                self._watch_anew()
                log.warning(
                    "the clients' local minimisers diverge, and local solves may be off by %.2g of their distance "
                    "(squared). The acceleration restarts after round %d, and if solver.stop is an accuracy, it "
                    "becomes %.3g. If this recurs with a stop in steps or epochs, begin a new run with "
                    "solver.stop.accuracy",
                    min(moved, ABSURD),
                    self.fleet.round,
                    state.accuracy,
                )
            else:
                state.lowest = min(state.lowest, level)
        state.figures["restarts"] = float(len(state.restarts))


class AccFedDCDClient(DualAscentClient):
    """Client half, with the dual vector y_i and its extrapolation z_i."""

    settings: AccFedDCDSettings

    @dataclass
    class State(DualAscentClient.State):
        """State of the client half; ``dual`` is y_i.

        Attributes
        ----------
        momentum
            z_i, shape (d,).
        committed
            Number of committed rounds to which y_i and z_i belong.
        solved_in
            Number of committed rounds at the time ``minimizer`` was computed; -1 before the first solve.
        error
            Bound on the squared distance of ``minimizer`` to the exact one.
        a, b, theta
            Scalars of the acceleration, the same for all clients.
        """

        momentum: Vector
        committed: int
        solved_in: int
        error: float
        a: float
        b: float
        theta: float

    def initial_state(self) -> Any:
        """Return y_i = z_i = w_i = 0."""
        zeros = np.zeros(self.objective.dimension)
        w = zeros.astype(self.objective.dtype)
        return self.State(zeros, w, 1.0, 0, zeros, 0, -1, ABSURD, 0.0, 0.0, 0.0)

    @answers("begin")
    def begin(self, weight: float, a: float, b: float, theta: float, committed: int, restarts: Indices) -> None:
        """Set p_i and the scalars of acceleration.

        The server repeats this phase after it admits late joiners, which restarts the acceleration. The client first
        applies the rounds that it missed, with the old scalars. From round ``committed`` on, z_i = y_i
        (docs/specifications/feddcd.md, section 2.6, "Client joining late").
        """
        state = self.state
        if state.a:  # false for a late joiner, which has no old scalars, and y_i = z_i = 0
            self._catch_up(committed, restarts)
        state.momentum, state.committed, state.solved_in = state.dual, committed, -1
        state.weight = weight
        state.a, state.b, state.theta = a, b, theta

    @answers("minimize")
    def minimize(self, committed: int, restarts: Indices, accuracy: float, model: Vector | None = None) -> Values:
        """Compute w_i = argmin_w f_i(w) - <w, v_i>, where v_i = (1-a) y_i + a z_i.

        The solve starts from the client's last minimiser, or from the average for networks. A second request in a round
        returns the same w_i.
        """
        state = self.state
        self._catch_up(committed, restarts)
        if state.solved_in == committed:
            return self.reply(0)  # the other cohort of this round included this client, at the same v_i
        solved = self.solved_at(self._v(), model, accuracy)
        state.solved_in, state.error = committed, self._error(solved)
        return self.reply(solved.iterations)

    def reply(self, iterations: int) -> Values:
        """Return the reply with a bound on the minimiser's error, by which the server decides on restarts."""
        return {**super().reply(iterations), "error": self.state.error}

    def _error(self, solved: Solved) -> float:
        """Return a bound on ||w_i - w_i(v_i)||^2 from the final gradient, or ABSURD if there is none."""
        alpha = self.objective.strong_convexity
        if not (alpha > 0 and math.isfinite(solved.gradient_norm)):
            return ABSURD
        return min((solved.gradient_norm / float(alpha)) ** 2, ABSURD)

    @answers("shift_duals")
    def shift_duals(
        self, center: Vector | None = None, y_center: Vector | None = None, z_center: Vector | None = None
    ) -> None:
        """Set y_i = v_i - (w_i - center) / lambda_i and z_i = u_i - theta (w_i - center) / lambda_i.

        Each of two cohorts has its own center. For a client that was only in the other cohort, y_i = v_i or z_i = u_i.
        """
        state, v, u = self.state, self._v(), self._u()
        if center is not None:
            y_center = z_center = center
        state.dual = v if y_center is None else v - self.step * self.apart(y_center)
        state.momentum = u if z_center is None else u - state.theta * self.step * self.apart(z_center)
        state.committed += 1

    @answers("certify")
    def certify(self, model: Vector, committed: int, restarts: Indices) -> Values:
        """Return objective and conjugate at y_i after the committed rounds, for the duality gap."""
        self._catch_up(committed, restarts)
        return self.certificate(model, self.state.dual)

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
        """Advance y_i and z_i over missed committed rounds, with z_i = y_i at each restart of the acceleration."""
        state = self.state
        for restart in restarts[(restarts >= state.committed) & (restarts <= committed)].tolist():
            state.dual, _ = self._after(restart)
            state.momentum, state.committed = state.dual, restart
        state.dual, state.momentum = self._after(committed)
        state.committed = committed

    def _after(self, committed: int) -> tuple[Vector, Vector]:
        """Return y_i and z_i after missed rounds, in closed form (docs/specifications/feddcd.md, section 2.3)."""
        state = self.state
        decay = Acceleration(state.a, state.b, state.theta).decay
        k = committed - state.committed
        apart = state.momentum - state.dual
        y: Vector = state.dual + state.a * (1 - decay**k) / (1 - decay) * apart
        z: Vector = y + decay**k * apart
        return y, z
