"""AccFedDCD, server half: FedDCD with Nesterov's acceleration.

Fan, Fang, Friedlander, "A dual approach for federated learning", Algorithm 2 (FedDCD specification, section 2.3).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from common.algorithms.feddcd import Acceleration, AccFedDCDSettings, effective_participation
from common.arrays import Indices, Vector
from common.errors import SettingsError
from common.expectation import ABSURD, Expected, NumberSpec
from common.settings.participation import Weighted
from server.algorithms.feddcd import DualAscent
from server.cohort import Cohort
from server.replies import Reduced

log = logging.getLogger("fenchel.server")

_WINDOW = 10  # rounds over which the clients' spread is averaged
_FINEST = 1e-6  # accuracy of local solves that more restarts do not tighten further
_GROWTH = 10.0  # of that average over its lowest value
_INEXACT = 0.25  # of the squared length of the dual steps, by which inexact solves may have moved them
_UNFIT = (
    "acc-feddcd needs a smooth and strongly convex objective: not the hinge, and objective.l2 above 0; for a neural "
    "network give algorithm.dual_step (such as 0.01) and algorithm.conditioning (such as 0.3)"
)


class AccFedDCD(DualAscent):
    """Accelerated federated dual coordinate descent."""

    @dataclass
    class State(DualAscent.State):
        """The server's state.

        Attributes
        ----------
        spreads
            The clients' spread in the latest rounds.
        errors
            Bounds on how far inexact solves moved the dual steps of these rounds, in the unit of the spread.
        lowest
            The lowest mean spread of a window so far.
        smallest
            The smallest spread above 0 so far.
        restarts
            Numbers of committed rounds after which the acceleration began anew, shape (restarts,).
        accuracy
            delta that the local solves keep at least.
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
                "acc-feddcd rests on every pair of clients meeting equally often, which weighted sampling does not "
                "give; use fixed, or feddcd",
                key="participation.sampler.kind",
            )

    def _check_convexity(self, least: float) -> None:
        if (self.settings.dual_step is None or self.settings.conditioning is None) and least <= 0:
            raise SettingsError(_UNFIT, key="objective.l2")

    def _check_smoothness(self, least: float) -> None:
        super()._check_smoothness(least)
        if self.settings.conditioning is None and least <= 0:
            raise SettingsError(_UNFIT, key="objective.kind")

    def constants(self) -> dict[str, float]:
        """a, b and theta of Algorithm 2, from r and the worst alpha_i / beta_i."""
        scales = self._scales()
        conditioning = self.settings.conditioning or self._worst_conditioning()
        r = effective_participation(self.cohort_size(), scales)
        chosen = Acceleration.of(r, conditioning)
        return {"a": chosen.a, "b": chosen.b, "theta": chosen.theta}

    def _scales(self) -> list[float]:
        """1 / lambda_i of all clients; 1 each where the dual step is a constant of its own."""
        alphas = self.state.strong_convexity
        if self.settings.dual_step is not None:
            return [1.0] * len(alphas)
        weights = self.weights()
        return [weights[client] * alpha for client, alpha in alphas.items()]

    def _worst_conditioning(self) -> float:
        """The smallest alpha_i / beta_i."""
        state = self.state
        ratios = (
            alpha / (self.settings.smoothness or state.smoothness[client])
            for client, alpha in state.strong_convexity.items()
        )
        return min(*ratios, 1.0)

    async def admit(self, cohort: Cohort) -> None:
        """A newcomer begins far from the others, which is no sign of inexact solves: the guard watches anew."""
        await super().admit(cohort)
        self._watch_anew()

    async def round(self, t: int) -> None:
        """v_i = (1-a) y_i + a z_i; w_i = argmin f_i - <., v_i>; y_i and z_i step from v_i and u_i."""
        self.state.figures = {}
        first = self.sample()
        solved = await self.minimisers(first, **self._asked())
        if self.is_alone(solved.cohort):
            return  # not committed: nobody's recurrence advances
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
        """Steps 6 to 9 as printed: another cohort, at the same v_i, moves z."""
        solved = await self.minimisers(self.second_sample(), min_replies=0, **self._asked())
        members = solved.cohort.clients if len(solved.cohort) >= 2 else ()
        both = first.only(members.__contains__)
        await first.only(lambda client: client not in members).tell("shift_duals", y_center=center)
        if not members:
            return
        second, self.state.second_rounding = self._rounded(solved, self.state.second_rounding)
        await both.tell("shift_duals", y_center=center, z_center=second)
        await solved.cohort.only(lambda client: client not in first.clients).tell(
            "shift_duals", z_center=second
        )

    def second_sample(self) -> Cohort:
        """Draw I_2, independently of the round's first cohort."""
        return self.fleet.sample(draw_name="second cohort")

    def moment(self) -> dict[str, Any]:
        """Return the number of committed rounds, and where among them the acceleration began anew."""
        return {"committed": self.state.committed, "restarts": self.state.restarts}

    def _asked(self) -> dict[str, Any]:
        asked = {**self.moment(), "accuracy": self.state.accuracy}
        # A neural network's local solve starts from the average of the last round, in either cohort.
        return asked | ({"model": self.model} if self.settings.dual_step is not None else {})

    def note(self, solved: Reduced, center: Vector) -> None:
        """Note also sum_i (1 / lambda_i) e_i, where e_i bounds client i's squared distance to its exact minimiser."""
        super().note(solved, center)
        self.state.figures["solve_error"] = float(solved.sum("error"))

    def _watch_anew(self) -> None:
        state = self.state
        state.spreads, state.errors, state.lowest = [], [], float("inf")

    def _guard(self) -> None:
        """Begin the acceleration anew, with more accurate solves, when inexact ones drive the minimisers apart (5.7).

        With cohorts that are drawn, the spread of unequal clients may grow by much while the method converges, as the
        theorem is about exact solves and means over the draws. So growth alone is no sign. The dual step of a cohort,
        a projection of its minimisers, has the spread as its squared length, and inexact solves move it by no more
        than the sum of their errors: 0 for exact ones, for which the theorem holds, and the guard does nothing.

        A spread that rounding hides reads 0, so whatever reads more lies above rounding. A window whose mean is below
        the smallest of such readings is counted as that: rounding errors that come and go are no growth, and a run
        that leaves an agreement, however close, is seen.
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
                    "the clients' minimisers move apart, and local solves may be off by %.2g of that distance "
                    "(squared), so the acceleration begins anew after round %d; nothing is lost. From now on local "
                    "problems are solved to an accuracy of %.3g, if solver.stop is an accuracy. If it is steps or "
                    "epochs and this comes again: a new run with solver.stop.accuracy",
                    min(moved, ABSURD),
                    self.fleet.round,
                    state.accuracy,
                )
            else:
                state.lowest = min(state.lowest, level)
        state.figures["restarts"] = float(len(state.restarts))
