"""FedDCD.

Fan, Fang, Friedlander, "A dual approach for federated learning" (docs/specifications/feddcd.md). Each client holds a
dual vector y_i, and the sum of all y_i is zero. The server receives minimisers and sends back their average, which
keeps the sum at zero: the projection in line 5 of the paper's Algorithm 1.
"""

from __future__ import annotations

import logging
import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, Self, cast

import numpy as np
from pydantic import Field, NonNegativeInt, PositiveFloat, model_validator

from fenchel.algorithms.client_half import ClientAlgorithm, answers
from fenchel.algorithms.server_half import Algorithm, ServerContext
from fenchel.common.arrays import Vector
from fenchel.common.data.source import DataSource
from fenchel.common.errors import JoinRefusedError, PayloadError, SettingsError
from fenchel.common.objectives.linear import LinearObjective
from fenchel.common.objectives.objective import Objective
from fenchel.common.optim import Solved, Tilted, chosen, solve
from fenchel.common.optim.choice import check_solver, smoothness, strong_convexity
from fenchel.common.settings.algorithm import AlgorithmSettings, Weighting
from fenchel.common.settings.participation import Bernoulli, Cyclic, FixedSize, Fraction, Sampler, Weighted
from fenchel.common.settings.solver import AutoSolver, LbfgsSolver, NewtonCgSolver, Solver, SolverSettings, Stopping
from fenchel.common.version import SAME_VERSION
from fenchel.common.wire.schema import Expected, NumberSpec
from fenchel.common.wire.values import Values
from fenchel.fleet.cohort import Cohort, Reduced
from fenchel.fleet.question import Each
from fenchel.fleet.sampling import fraction_size


class DualAscentSettings(AlgorithmSettings):
    """Settings common to FedDCD and AccFedDCD (Fan, Fang and Friedlander 2022)."""

    weighting: Literal["uniform", "samples"] = Field(
        "samples",
        description="the objective is the sum of the clients' mean losses (uniform: the paper), or each "
        "weighted by N n_i / n, which makes it the mean loss over all samples",
    )
    solver: SolverSettings = Field(
        default_factory=AutoSolver,
        description="local solver of the clients and its accuracy (docs/solvers.md). Default: accuracy delta = 1/4, "
        "which needs no more rounds than exact solves",
    )
    monitor: NonNegativeInt = Field(
        0,
        description="interval of reports, in rounds: all clients solve exactly, and the server reports primal "
        "objective, dual objective and gap, each divided by the number of clients; 0: no reports",
    )
    dual_step_size: PositiveFloat | None = Field(
        None,
        description="dual step size in place of eta / lambda_i for objectives that are not strongly convex, such as "
        "neural networks; for example 0.1",
    )

    @model_validator(mode="after")
    def _certified_if_convex(self) -> Self:
        if self.dual_step_size is not None and self.monitor:
            raise ValueError(
                f"monitor: {self.monitor} given, but dual_step_size is for non-convex objectives, which have no "
                "duality gap; leave one of them out"
            )
        return self

    @property
    def uses_initial(self) -> bool:
        """True with ``dual_step_size``, where local solves start from the average and first from the initial model."""
        return self.dual_step_size is not None

    def minimises(self, sampler: Sampler) -> Weighting | None:
        """Return the setting ``weighting`` for every sampler, because sampling does not change the dual optimum."""
        return self.weighting


class FedDCDSettings(DualAscentSettings):
    """Federated dual coordinate descent (Fan, Fang, Friedlander)."""

    name: Literal["feddcd"] = "feddcd"
    step_size: float = Field(
        1.0,
        gt=0,
        description="eta; stable below 2. 1 is the minimax choice, 1.9 needed half the rounds in practice, 0.25 is "
        "that of the theorem for inexact solves",
    )

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings about step sizes that are known to diverge."""
        if self.step_size > 2:
            return (f"algorithm.step_size: {self.step_size:g}. Above 2 FedDCD diverges",)
        return ()

    @model_validator(mode="after")
    def _one_of_both(self) -> Self:
        if self.dual_step_size is not None and self.step_size != 1.0:
            raise ValueError(
                f"step_size: {self.step_size:g} has no effect with dual_step_size: {self.dual_step_size:g}; leave one "
                "of them out"
            )
        return self


log = logging.getLogger("fenchel.server")

_ROUNDING = 64  # bound on the rounding error of a difference of sums, in units in the last place


class DualAscent(Algorithm):
    """Server half common to FedDCD and AccFedDCD: constants, averages, the certificate of the duality gap."""

    @dataclass
    class State(Algorithm.State):
        """State of the server half.

        Attributes
        ----------
        strong_convexity, smoothness
            alpha_i and beta_i of each client's unweighted objective, by client id. beta_i is 0 if it is unknown.
        samples
            n_i, by client id.
        rounding, second_rounding
            Accumulated rounding error of the averages of the first and second cohort in the sum of the duals, shape
            (d,). It is added to the next average (docs/specifications/feddcd.md, section 5, row 5.20).
        committed
            Number of rounds whose average was sent to the clients.
        figures
            Latest metrics.
        """

        strong_convexity: dict[str, float] = field(default_factory=dict)
        smoothness: dict[str, float] = field(default_factory=dict)
        samples: dict[str, int] = field(default_factory=dict)
        rounding: Vector = field(default_factory=lambda: np.empty(0))
        second_rounding: Vector = field(default_factory=lambda: np.empty(0))
        committed: int = 0
        figures: dict[str, float] = field(default_factory=dict)

    settings: DualAscentSettings
    objective: Objective
    state: State
    also_reported: ClassVar[Mapping[str, Expected]] = {}
    """Schemas, by name, of the values that a subclass adds to a reply of ``minimize``."""
    figures: ClassVar[tuple[str, ...]] = ("spread", "solver_iterations", "minimised_objective", "dual_objective", "gap")

    def __init__(self, context: ServerContext) -> None:
        super().__init__(context)
        self.objective = context.objective

    def check(self, data: DataSource | None) -> None:
        """Reject cohorts of one client, and local problems that the chosen solver cannot solve."""
        self._check_cohorts()
        try:
            check_solver(self.settings.solver, self.objective)
        except SettingsError as error:
            raise SettingsError(error.problem, key=f"algorithm.{error.key}") from None
        convexity = strong_convexity(self.objective)
        if convexity is not None and convexity <= 0:
            self._check_convexity(0.0)
        if smoothness(self.objective) == math.inf:
            self._check_smoothness(0.0)

    async def start(self) -> None:
        """Start all clients with y_i = 0."""
        self.state.rounding = np.zeros(self.model.shape)
        self.state.second_rounding = np.zeros(self.model.shape)
        await self._take_in(self.fleet.all())

    async def admit(self, cohort: Cohort) -> None:
        """Integrate late joiners with y_i = 0, so that the sum of the duals stays zero.

        Raises
        ------
        JoinRefusedError
            If the objective of a late joiner is not supported.
        """
        before = replace(self.state)
        try:
            await self._take_in(cohort)
        except SettingsError as error:
            self.state = before
            raise JoinRefusedError(f"the cohort {', '.join(cohort)} cannot run the algorithm: {error}") from None

    async def _take_in(self, late_joiners: Cohort) -> None:
        """Collect alpha_i, beta_i and n_i of new clients, and send all clients their weight p_i in the objective.

        Weights and constants depend on all clients, so all receive them again, including absent ones.
        """
        described = await late_joiners.ask(
            "describe",
            returns={"strong_convexity": float, "smoothness": float, "samples": int},
            min_replies=len(late_joiners),
        )
        alphas, betas, samples = {}, {}, {}
        for client, reply in described.items():
            alpha, beta = cast(float, reply["strong_convexity"]), cast(float, reply["smoothness"])
            if alpha < 0 or 0 < beta < alpha:
                raise PayloadError(
                    f"client {client} reports a strong convexity of {alpha} and a smoothness of {beta}; expected 0 <= "
                    f"strong convexity <= smoothness, or smoothness 0 for a loss that is not smooth{SAME_VERSION}"
                )
            alphas[client], betas[client] = alpha, beta
            samples[client] = cast(int, reply["samples"])
            shard = self.fleet.members[client].shard
            if samples[client] < 1 or (shard is not None and samples[client] != shard.samples):
                raise PayloadError(
                    f"client {client} reports {samples[client]} samples, but joined with "
                    f"{0 if shard is None else shard.samples}. The number of samples must stay above 0 and "
                    "constant during a run; check whether the client's data file was changed"
                )
        state = self.state  # dictionaries of the state are replaced, not changed, so that a failed admit can be undone
        state.strong_convexity = dict(sorted((state.strong_convexity | alphas).items()))
        state.smoothness = dict(sorted((state.smoothness | betas).items()))
        state.samples = dict(sorted((state.samples | samples).items()))
        self._check()
        constants = self.constants()
        await self.fleet.all().tell("begin", weight=Each(self.weights()), **constants, **self.moment())

    def _check_cohorts(self) -> None:
        """Reject cohorts of one client, in which no dual step is possible."""
        if self.cohort_size() < 2:
            raise SettingsError(
                f"the sampler draws {self.cohort_size():g} clients a round on average, but a dual step needs the "
                "minimisers of at least two; draw more clients",
                key="participation.sampler" if len(self.fleet.members) > 1 else "clients",
            )

    def _check_convexity(self, least: float) -> None:
        """Reject local problems if their strong convexity, at least ``least``, does not suffice."""

    def _check_smoothness(self, least: float) -> None:
        """Reject non-smooth problems if smoothness is required; ``least`` is the smallest beta_i, or 0 if unknown."""
        if self.settings.monitor and least <= 0:
            raise SettingsError(
                f"{self.settings.monitor} given, but the duality gap needs exact local solves, and therefore a "
                "smooth objective; leave it out, or use smoothed-hinge or squared-hinge",
                key="algorithm.monitor",
            )

    def _check(self) -> None:
        """Reject impossible problems once the clients' constants are known, before any computation."""
        self._check_cohorts()
        self._check_convexity(min(self.state.strong_convexity.values()))
        self._check_smoothness(min(self.state.smoothness.values()))
        sampler = self.fleet.participation.sampler
        if isinstance(sampler, Cyclic) and sampler.groups > 1:
            log.warning(
                "participation.sampler: cyclic groups never mix, so each group converges to an optimum of its "
                "own; use kind: fixed, fraction or all"
            )

    def cohort_size(self) -> float:
        """Return tau, the (mean) number of clients in a round."""
        clients, sampler = len(self.fleet.members), self.fleet.participation.sampler
        match sampler:
            case FixedSize() | Weighted():
                return float(sampler.size)
            case Fraction():
                return float(fraction_size(sampler, clients))
            case Bernoulli():
                return sampler.probability * clients
            case Cyclic():
                return clients / sampler.groups
        return float(clients)

    def constants(self) -> dict[str, float]:
        """Return the constants, derived from those of all clients, that each client receives."""
        return {}

    def moment(self) -> dict[str, Any]:
        """Return the values from which a client derives the rounds that it missed. The default is none."""
        return {}

    def weights(self) -> dict[str, float]:
        """Return p_i by client id: 1, or N n_i / n."""
        samples = self.state.samples
        if self.settings.weighting == "uniform":
            return dict.fromkeys(samples, 1.0)
        total = sum(samples.values())
        return {client: len(samples) * own / total for client, own in samples.items()}

    async def minimisers(self, cohort: Cohort, **values: Any) -> Reduced:
        """Have a cohort solve its local problems; return the sums of the replies with weights 1 / lambda_i."""
        returns: dict[str, Expected | Each[Expected]] = {
            "minimizer": self.model,
            "scale": NumberSpec(minimum=sys.float_info.min),
            "square": float,
            "iterations": int,
            **self.also_reported,
        }
        # Local solves of a neural network start from the average of the last round; those of a convex objective start
        # from the client's last minimiser.
        start: dict[str, Any] = {"model": self.model} if self.settings.uses_initial else {}
        return await cohort.reduce("minimize", returns=returns, weight="scale", dtype=np.float64, **values, **start)

    def average(self, solved: Reduced) -> Vector:
        """Return the mean of the minimisers with weights 1 / lambda_i, shape (d,), in the dtype of the model.

        The rounding error is added to the next average.
        """
        center, self.state.rounding = self._rounded(solved, self.state.rounding)
        return center

    def _rounded(self, solved: Reduced, carried: Vector) -> tuple[Vector, Vector]:
        """Return the mean in the model's dtype, and the error of its rounding in the sum of the duals."""
        exact = (solved.sum("minimizer") + carried) / solved.weight
        center: Vector = exact.astype(self.model.dtype)
        return center, solved.weight * (exact - center)

    def note(self, solved: Reduced, center: Vector) -> None:
        """Record the spread sum_i (1 / lambda_i) ||w_i - center||^2, which tends to 0, and the mean iterations."""
        squares = float(solved.sum("square"))
        spread = squares - solved.weight * float(center.astype(np.float64) @ center)
        blur = _ROUNDING * float(np.finfo(center.dtype).eps) * squares
        self.state.figures = {
            "spread": spread if spread > blur else 0.0,
            "solver_iterations": float(solved.mean("iterations")),
        }

    async def certify(self, t: int) -> None:
        """Collect F(center)/N and -G(y)/N from all clients in rounds that are due; their difference bounds the gap."""
        if not self.settings.monitor or t % self.settings.monitor:
            return
        all_clients = self.fleet.all()
        if len(all_clients) < len(self.fleet.members):
            return  # a certificate needs sums over all clients; partial sums would waste costly local solves
        certified = await all_clients.ask(
            "certify", model=self.model, returns={"objective": float, "conjugate": float}, **self.moment()
        )
        if len(certified) < len(self.fleet.members):
            return  # a certificate needs sums over all clients
        objective, conjugate = float(certified.mean("objective")), float(certified.mean("conjugate"))
        self.state.figures |= {
            "minimised_objective": objective,
            "dual_objective": -conjugate,
            "gap": objective + conjugate,
        }

    def is_alone(self, cohort: Cohort) -> bool:
        """Return whether fewer than two clients answered, so that no dual moves and the round is not committed."""
        if len(cohort) >= 2:
            return False
        log.warning(
            "round %d: only %d of the clients answered, but a dual step needs two, so the model does not change. "
            "If this recurs, begin a new run with a longer participation.deadline",
            self.fleet.round,
            len(cohort),
        )
        return True

    def metrics(self) -> dict[str, float]:
        """Return the latest metrics."""
        return dict(self.state.figures)


class FedDCD(DualAscent):
    """Server half of federated dual coordinate descent (Algorithm 1; exact and inexact, section 5 of the paper)."""

    Settings = FedDCDSettings
    settings: FedDCDSettings

    def _check_convexity(self, least: float) -> None:
        if self.settings.dual_step_size is None and least <= 0:
            raise SettingsError(
                "the objective is not strongly convex, as feddcd needs; set objective.l2 above 0, or, for a "
                "neural network, algorithm.dual_step_size (such as 0.1)",
                key="objective.l2",
            )

    async def round(self, t: int) -> None:
        """Have I_t compute w_i = argmin f_i - <., y_i>, and set y_i -= eta (w_i - center) / lambda_i."""
        self.state.figures = {}
        solved = await self.minimisers(self.sample())
        if self.is_alone(solved.cohort):
            return
        center = self.average(solved)
        self.note(solved, center)
        await solved.cohort.tell("shift_dual", center=center)
        self.state.committed += 1
        self.model = center
        await self.certify(t)


_FIRST_ACCURACY = 0.01  # accuracy of a client's first solve, which has no warm start
_EXACTLY = Stopping(accuracy=1e-30)  # stopping criterion that only rounding errors end


class DualAscentClient(ClientAlgorithm):
    """Client half common to FedDCD and AccFedDCD: constants, the local solve, the certificate of the duality gap."""

    settings: DualAscentSettings

    @dataclass
    class State:
        """State of the client half.

        Attributes
        ----------
        dual
            y_i, shape (d,), always float64, so that the duals of all clients sum to zero.
        minimizer
            w_i, the last minimiser of this client, from which the next solve starts, shape (d,).
        weight
            p_i, the client's weight in the objective.
        solves
            Number of solves.
        """

        dual: Vector
        minimizer: Vector
        weight: float
        solves: int

    def initial_state(self) -> Any:
        """Return y_i = w_i = 0."""
        zeros = np.zeros(self.objective.dimension)
        return self.State(zeros, zeros.astype(self.objective.dtype), 1.0, 0)

    @answers("describe")
    def describe(self) -> Values:
        """Return alpha_i, beta_i (0 if unknown) and n_i of the unweighted objective."""
        alpha, beta = float(self.objective.strong_convexity), float(self.objective.smoothness)
        return {
            "strong_convexity": max(alpha, 0.0),
            "smoothness": beta if math.isfinite(beta) else 0.0,
            "samples": self.objective.samples,
        }

    @property
    def scale(self) -> float:
        """1 / lambda_i, the strong convexity of the weighted objective, or 1 if the settings give the dual step."""
        if self.settings.dual_step_size is not None:
            return 1.0
        return float(self.state.weight * self.objective.strong_convexity)

    @property
    def step(self) -> float:
        """Dual step 1 / lambda_i, or ``dual_step_size`` if the settings give it."""
        return self.settings.dual_step_size or self.scale

    def apart(self, center: Vector) -> Vector:
        """Return w_i - center in float64, both exactly as they were sent."""
        exact: Vector = self.state.minimizer.astype(np.float64) - center
        return exact

    def solved_at(self, dual: Vector, model: Vector | None, accuracy: float | None = None) -> Solved:
        """Set w_i = argmin_w f_i(w) - <w, y>, where f_i includes the weight p_i, and return the result of the solver.

        Parameters
        ----------
        dual
            y, shape (d,).
        model
            Initial model of the solver, shape (d,): the server's average for networks. ``None``: the last minimiser.
        accuracy
            Required accuracy delta, for solvers whose stopping criterion is an accuracy.
        """
        solver: Solver = self.settings.solver
        if self.own_solver is not None:
            solver = self.own_solver.stopping_like(solver)
        exacting = chosen(solver, self.objective)
        if self.state.solves == 0:
            exacting = exacting.within(_FIRST_ACCURACY)
        if accuracy is not None:
            exacting = exacting.within(accuracy)
        state = self.state
        solved = self._solved(dual, state.minimizer if model is None else model, exacting)
        state.minimizer, state.solves = solved.w, state.solves + 1
        return solved

    def _solved(self, dual: Vector, start: Vector, solver: Solver) -> Solved:
        problem = Tilted(self.objective, dual / self.state.weight)
        return solve(problem, start, solver, self.generator("solver"))

    def reply(self, iterations: int) -> Values:
        """Return the minimiser, its weight in the average, and statistics of the solve."""
        w = self.state.minimizer
        return {"minimizer": w, "scale": self.scale, "square": float(w @ w), "iterations": iterations}

    def certificate(self, model: Vector, dual: Vector) -> Values:
        """Return p_i f_i(model) and an upper bound on the conjugate at the dual, from the remaining gradient."""
        exactly = NewtonCgSolver if isinstance(self.objective, LinearObjective) else LbfgsSolver
        solved = self._solved(dual, self.state.minimizer, exactly(stop=_EXACTLY))
        weight, w = self.state.weight, solved.w
        conjugate = float(dual @ w) - weight * self.objective.value(w)
        rest = weight * solved.gradient_norm**2 / (2 * float(self.objective.strong_convexity))
        return {"objective": weight * self.objective.value(model), "conjugate": conjugate + rest}


class FedDCDClient(DualAscentClient):
    """Client half: solves the local problem with the dual vector as linear term."""

    settings: FedDCDSettings

    @answers("begin")
    def begin(self, weight: float) -> None:
        """Set p_i, at the start and after late joiners. y_i is kept, and with it the sum of all duals."""
        self.state.weight = weight

    @answers("minimize")
    def minimize(self, model: Vector | None = None) -> Values:
        """Solve w_i = argmin_w f_i(w) - <w, y_i>, where f_i includes p_i, and return :meth:`reply`."""
        return self.reply(self.solved_at(self.state.dual, model).iterations)

    @answers("shift_dual")
    def shift_dual(self, center: Vector) -> None:
        """Set y_i -= eta (w_i - center) / lambda_i, where w_i is the minimiser as sent."""
        self.state.dual = self.state.dual - self.settings.step_size * self.step * self.apart(center)

    @answers("certify")
    def certify(self, model: Vector) -> Values:
        """Return objective and conjugate, for the duality gap."""
        return self.certificate(model, self.state.dual)
