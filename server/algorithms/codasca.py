"""CODASCA, server half.

Yuan, Guo, Xu, Ying, Yang, "Federated Deep AUC Maximization for Heterogeneous Data with a Constant Communication
Complexity", ICML 2021, Algorithms 3 and 4 (CODASCA specification, section 2.2).
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from common.algorithms.codasca import CodascaSettings
from common.algorithms.stages import Stage
from common.arrays import Vector
from common.randomness import generator
from common.values import Value
from server.algorithm import Conduct
from server.algorithms.staged import Staged

log = logging.getLogger("fenchel.server")


class Codasca(Staged):
    """Clients take local steps, each corrected by its difference from the mean of all clients."""

    @dataclass
    class State(Staged.State):
        """The global point, and the control variate.

        Attributes
        ----------
        control
            c, shape (n,), float64: after each round sum_k lambda_k c^k over all clients, whoever took part. It
            travels in the dtype of the model.
        moved
            With the compact wire, eta_g I eta_l of the last round, times c what the point moved by; ``None``: the
            clients have no point yet.
        """

        control: NDArray[np.float64]
        moved: float | None

    Settings = CodascaSettings
    settings: CodascaSettings
    state: State

    def __init__(self, conduct: Conduct) -> None:
        super().__init__(conduct)
        self.is_compact = self.settings.wire == "compact"

    def initial_state(self, model: Vector) -> State:
        """Begin with c = 0, as the clients begin with c^k = 0."""
        fields = self.beginning(model)
        return self.State(**fields, control=np.zeros(fields["centre"].shape), moved=None)

    def stage(self) -> Stage:
        """Return the stage that is going on; with ``output: random`` it ends after a random one of its rounds."""
        stage = super().stage()
        if self.settings.output != "random":
            return stage
        random = generator(self.fleet.seed, "server", self.state.stage, "output round")
        return replace(stage, rounds=int(random.integers(1, stage.rounds + 1)))

    async def communicate(self, stage: Stage, *, begins: bool, ends: bool) -> None:
        """u <- u + eta_g mean of (u^k - u); c <- sum_k lambda_k c^k, as the change of it (sections 2.2, 7.2 and 7.4).

        With the compact wire the mean of u^k - u is -I eta_l c, since the corrections cancel in the mean. A client's
        new c^k counts if and only if its reply did, so that c stays the weighted sum of all c^k.
        """
        state, u = self.state, self.point
        if begins and self.settings.cv_init == "gradient":
            await self._restart(u)
            begins = False
        elif begins and self.settings.cv_init == "zero" and not self.is_compact:
            state.control = np.zeros(u.shape)
        vectors = ("control",) if self.is_compact else ("change", "control_change")
        sums = await self.visit(
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
            everybody=self.is_compact,
        )
        if begins:
            await self.tell_others(sums.cohort, u)
        eta_g = self.settings.server_step(self.clients)
        if self.is_compact:
            state.control = sums.sum("control")
            state.moved = eta_g * stage.local_steps * stage.step_size
            self.point = u - state.moved * self._sent_control()  # as the clients will
        else:
            state.control = state.control + sums.sum("control_change")
            self.point = u + eta_g * sums.mean("change")
        state.value = float(sums.mean("value"))

    async def _restart(self, u: Vector) -> None:
        """Begin a stage with c^k = G_k(u_0), and c their weighted sum (section 5.4)."""
        state, name = self.state, "control" if self.is_compact else "control_change"
        sums = await self.visit(
            self.fleet.all(),
            "gradient",
            {name: u},
            {"prior": state.prior, **self._whereabouts(u, with_control=False)},
            everybody=self.is_compact,
        )
        await self.tell_others(sums.cohort, u)
        state.control = sums.sum(name) if self.is_compact else state.control + sums.sum(name)
        if self.is_compact:
            state.moved = 0.0

    async def part_with_lost(self) -> bool:
        """Take what a lost client's c^k was out of c, which is that of the clients that are left from then on.

        Nobody knows that c^k any more, so c and every c^k begin at 0 again, together: a promise that each client keeps
        before it trains again.
        """
        parted = await super().part_with_lost()
        if parted and not self.is_compact:  # the compact wire needs everybody, and stops
            self.state.control = np.zeros_like(self.state.control)
            await self.fleet.all().tell("forget_control")
            log.warning(
                "the control variates of lost clients are not known any more, so those of all clients begin at 0 "
                "again; the run goes on, for some rounds as if it had just begun"
            )
        return parted

    def _sent_control(self) -> Vector:
        """Return c as it travels, shape (n,), in the dtype of the model."""
        return self.state.control.astype(self.state.model.dtype)

    def _whereabouts(self, u: Vector, *, with_control: bool) -> dict[str, Value]:
        """Return what tells clients the point: itself, or what it has moved by since they knew it."""
        state = self.state
        if not self.is_compact:
            return {"point": u, "control": self._sent_control()} if with_control else {"point": u}
        if state.moved is None:
            return {"point": u}
        return {"control": self._sent_control(), "moved": state.moved}
