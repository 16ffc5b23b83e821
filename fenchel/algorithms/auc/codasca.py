"""CODASCA.

Yuan, Guo, Xu, Ying, Yang, "Federated Deep AUC Maximization for Heterogeneous Data with a Constant Communication
Complexity", ICML 2021, Algorithms 3 and 4 (docs/specifications/codasca.md, section 2.2).
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass, replace
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, PositiveFloat, model_validator

from fenchel.algorithms.auc.staged import Staged, StagedClient
from fenchel.algorithms.auc.staged_settings import WindowedSettings, check_all_take_part
from fenchel.algorithms.auc.stages import Stage, TheorySchedule
from fenchel.algorithms.client_half import answers
from fenchel.common.arrays import Vector
from fenchel.common.randomness import generator
from fenchel.common.settings.participation import Participation
from fenchel.common.wire.values import Value, Values


class CodascaSettings(WindowedSettings):
    """AUC maximisation with control variates (Yuan et al. 2021)."""

    name: Literal["codasca"] = "codasca"
    server_step_size: PositiveFloat | None = Field(
        None,
        description="step size of the server along the mean change (eta_g); null: 1, or with schedule.kind: theory the "
        "square root of the number of clients",
    )
    cv_init: Literal["carry", "zero", "gradient"] = Field(
        "carry",
        description="control variates at the start of a stage. carry: those of the previous stage; zero: 0, as in the "
        "paper, where clients drift in the first round of every stage; gradient: each client's gradient at the start "
        "over its whole shard, for one more request",
    )
    output: Literal["last", "random"] = Field(
        "last",
        description="start of the next stage. last: model after the last round; random: model after a random round, "
        "where the stage ends, as in the paper",
    )
    wire: Literal["paper", "compact"] = Field(
        "compact",
        description="values that travel. paper: 2 (d + 3) numbers for each round, client and direction; compact: d + 3 "
        "numbers, for the same algorithm, if all clients take part in every round",
    )

    @model_validator(mode="after")
    def _first_control_variates_fit(self) -> Self:
        if self.cv_init == "gradient" and self.batches == "stratified":
            raise ValueError(
                "cv_init: gradient averages gradients over the whole shard, but batches: stratified can draw another "
                "fraction of positive samples; use cv_init: carry, or batches: independent"
            )
        return self

    @property
    def is_compact(self) -> bool:
        """True if messages leave out what follows from the mean over all clients."""
        return self.wire == "compact"

    def check_participation(self, participation: Participation) -> None:
        """Reject partial participation with ``wire: compact``."""
        if self.is_compact:
            check_all_take_part(participation, "wire: compact leaves out what follows from the mean of all clients")

    def server_step(self, clients: int) -> float:
        """Return the server's step size eta_g."""
        if self.server_step_size is not None:
            return self.server_step_size
        return math.sqrt(clients) if isinstance(self.schedule, TheorySchedule) else 1.0

    def stage(self, number: int, prior: float, clients: int) -> Stage:
        """Return stage ``number``: of the experiments, or of Theorem 2."""
        if isinstance(self.schedule, TheorySchedule):
            eta_g = self.server_step(clients)
            length = None if self.step_size is None else self.step_size * eta_g * max(1, round(self.schedule.window))
            return self.schedule.controlled_stage(number, length, prior, eta_g)
        return self.schedule.stage(number, self.first_step, self.round_steps)


log = logging.getLogger("fenchel.server")


class Codasca(Staged):
    """Server half: clients take local steps corrected by control variates, and the server averages the changes."""

    @dataclass
    class State(Staged.State):
        """Global point and control variate.

        Attributes
        ----------
        control
            c, shape (n,), float64: sum_k lambda_k c^k over all clients after each round. It is sent in the dtype of the
            model.
        moved
            With the compact wire, eta_g I eta_l of the last round, in which the point moved by -``moved`` c; ``None``
            if the clients have no point yet.
        """

        control: NDArray[np.float64]
        moved: float | None

    Settings = CodascaSettings
    settings: CodascaSettings
    state: State

    def beginning(self, model: Vector) -> dict[str, Any]:
        """Return the fields of :class:`State` with c = 0, as the clients begin with c^k = 0."""
        fields = super().beginning(model)
        return fields | {"control": np.zeros(fields["centre"].shape), "moved": None}

    def stage(self) -> Stage:
        """Return the present stage. With ``output: random`` it ends after a random one of its rounds."""
        stage = super().stage()
        if self.settings.output != "random":
            return stage
        random = generator(self.fleet.seed, "server", self.state.stage, "output round")
        return replace(stage, rounds=int(random.integers(1, stage.rounds + 1)))

    async def communicate(self, stage: Stage, *, begins: bool, ends: bool) -> None:
        """Set u <- u + eta_g mean of (u^k - u), and c <- sum_k lambda_k c^k.

        With the compact wire the mean of u^k - u is -I eta_l c, as the corrections cancel in the mean. A client's new
        c^k counts if and only if its reply did, so that c stays the weighted sum of all c^k. Source:
        docs/specifications/codasca.md, sections 2.2, 7.2 and 7.4.
        """
        state, u = self.state, self.point
        if begins and self.settings.cv_init == "gradient":
            await self._restart(u)
            begins = False
        elif begins and self.settings.cv_init == "zero" and not self.settings.is_compact:
            state.control = np.zeros(u.shape)
        vectors = ("control",) if self.settings.is_compact else ("change", "control_change")
        sums, answered = await self.visit(
            self.sample(),
            "train",
            dict.fromkeys(vectors, u) | {"value": float},
            {
                "prior": state.prior,
                "steps": stage.local_steps,
                "step_size": stage.step_size,
                "begins": begins,
                **self._whereabouts(u, with_control=True),
            },
            all_clients=self.settings.is_compact,
        )
        if begins:
            await self.tell_others(answered, u)
        eta_g = self.settings.server_step(self.clients)
        if self.settings.is_compact:
            state.control = sums.sum("control")
            state.moved = eta_g * stage.local_steps * stage.step_size
            # same floating-point operations as on the clients, for bitwise equal results
            self.point = u - state.moved * self._sent_control()
        else:
            state.control = state.control + sums.sum("control_change")
            self.point = u + eta_g * sums.mean("change")
        state.value = float(sums.mean("value"))

    async def _restart(self, u: Vector) -> None:
        """Begin a stage with c^k = G_k(u_0), and c their weighted sum (docs/specifications/codasca.md, section 5.4)."""
        state, name = self.state, "control" if self.settings.is_compact else "control_change"
        sums, answered = await self.visit(
            self.fleet.all(),
            "gradient",
            {name: u},
            {"prior": state.prior, **self._whereabouts(u, with_control=False)},
            all_clients=self.settings.is_compact,
        )
        await self.tell_others(answered, u)
        state.control = sums.sum(name) if self.settings.is_compact else state.control + sums.sum(name)
        if self.settings.is_compact:
            state.moved = 0.0

    async def part_with_lost(self) -> bool:
        """Restrict the problem to the remaining clients; return whether clients were lost.

        The c^k of a lost client is unknown and cannot be removed from c. Therefore c and every c^k are reset to 0. Each
        client applies the reset before it trains again.
        """
        parted = await super().part_with_lost()
        if parted and not self.settings.is_compact:  # a run with compact messages needs all clients and stops instead
            self.state.control = np.zeros_like(self.state.control)
            await self.fleet.all().tell("forget_control")
            log.warning(
                "the control variates of the lost clients are unknown, so those of all clients are reset to 0. "
                "The run continues, and converges more slowly for some rounds"
            )
        return parted

    def _sent_control(self) -> Vector:
        """Return c as it is sent, shape (n,), in the dtype of the model."""
        return self.state.control.astype(self.state.model.dtype)

    def _whereabouts(self, u: Vector, *, with_control: bool) -> dict[str, Value]:
        """Return the values from which clients get the point: the point itself, or its change."""
        state = self.state
        if not self.settings.is_compact:
            return {"point": u, "control": self._sent_control()} if with_control else {"point": u}
        if state.moved is None:
            return {"point": u}
        return {"control": self._sent_control(), "moved": state.moved}


class CodascaClient(StagedClient):
    """Client half: local descent and ascent, corrected by ``c - c^k``."""

    @dataclass
    class State:
        """State of the client half, with vectors of shape (n,) for points u = (w, a, b, alpha).

        Attributes
        ----------
        centre
            v_0, the initial point of the stage; its last entry is not used.
        control
            c^k, the mean direction of this client's last round. With the paper's wire it is the sum of the changes
            sent, in float64, so that the server's c stays the weighted sum of all c^k.
        point
            u_{r-1}, with the compact wire, which does not send it; otherwise of shape (0,).
        """

        centre: Vector
        control: Vector
        point: Vector

    settings: CodascaSettings
    state: State

    def initial_state(self) -> State:
        """Return c^k = 0."""
        kept = self.zeros() if self.settings.is_compact else self.zeros()[:0]
        return self.State(self.zeros(), self._no_control(), kept)

    def _no_control(self) -> Vector:
        return np.zeros(self.length, self.objective.dtype if self.settings.is_compact else np.float64)

    @answers("begin_stage")
    def begin_stage(self, point: Vector) -> None:
        """Set v_0 <- u_0, and with ``cv_init: zero`` c^k <- 0.

        The server sends this phase to clients that missed the first round of the stage.
        """
        self.state.centre = np.array(point)
        if self.settings.cv_init == "zero":
            self.state.control = self._no_control()

    @answers("gradient")
    def gradient(
        self, prior: float, point: Vector | None = None, control: Vector | None = None, moved: float = 0.0
    ) -> Values:
        """Begin a stage with c^k = G_k(u_0), on the whole shard; parameters as for :meth:`train`.

        Source: docs/specifications/codasca.md, section 5.4.
        """
        u = self._point(point, control, moved)
        self.begin_stage(u)
        # the gradient of the proximal term is 0 at its own centre
        control = self.objective.saddle_gradient(u, self.objective.all_rows, prior)[1]
        if self.settings.is_compact:
            self.state.point = u
        return self._renewed(control)

    @answers("forget_control")
    def forget_control(self) -> None:
        """Reset c^k to 0. The server resets c and all c^k if it does not know the c^k of a lost client."""
        self.state.control = self._no_control()

    @answers("train")
    def train(
        self,
        prior: float,
        steps: int,
        step_size: float,
        begins: bool,
        point: Vector | None = None,
        control: Vector | None = None,
        moved: float = 0.0,
    ) -> Values:
        """Start at u = u_{r-1}; take I steps u <- u - eta ( g(u) - c^k + c ); renew c^k; return both changes.

        Parameters
        ----------
        begins
            Whether this is the first round of a stage, whose centre is then the point.
        point
            u_{r-1}, shape (n,). With the compact wire it is sent only in the first round; later it follows from the
            client's state and ``control``.
        control
            c, shape (n,); absent if it is 0.
        moved
            With the compact wire, eta_g I eta_l of the round before: u_{r-1} = u_{r-2} - moved c.

        Returns
        -------
        Values
            ``change``: u - u_{r-1}. ``control_change``: change of c^k. With the compact wire, ``control``: c^k, from
            which both follow. ``value``: mean of F over the local steps.
        """
        start = self._point(point, control, moved)
        if begins:
            self.begin_stage(start)
        if control is None or (begins and self.settings.cv_init == "zero"):
            control = self.zeros()
        u, mean, total = start.copy(), self.zeros(), 0.0
        correction = (control - self.state.control).astype(u.dtype)
        for batch in self.batches(steps):
            value, g = self.objective.saddle_gradient(u, batch, prior)
            g = self.pulled(g, u, self.state.centre)
            mean += g
            u -= step_size * (g + correction)
            total += value
        mean /= steps
        reply = {"value": total / steps, **self._renewed(mean)}
        if self.settings.is_compact:
            self.state.point = start
            return reply
        return {**reply, "change": u - start}

    def _renewed(self, control: Vector) -> Values:
        """Set c^k to ``control``, shape (n,), and return the values of the reply.

        With the paper's wire the reply is the change, rounded to the dtype of the model. c^k changes by exactly the
        rounded amount; otherwise the server's c would drift away from the sum of all c^k.
        """
        if self.settings.is_compact:
            self.state.control = control
            return {"control": control}
        change = (control - self.state.control).astype(control.dtype)
        self.state.control = self.state.control + change
        return {"control_change": change}

    def _point(self, point: Vector | None, control: Vector | None, moved: float) -> Vector:
        if point is not None:
            return np.array(point)
        return self.state.point if control is None else self.state.point - moved * control
