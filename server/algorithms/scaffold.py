"""SCAFFOLD, server half.

Karimireddy, Kale, Mohri, Reddi, Stich, Suresh, "SCAFFOLD: Stochastic Controlled Averaging for Federated
Learning", ICML 2020, Algorithm 1 (FedDCD specification, section 2.4).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from common.algorithms.scaffold import ScaffoldSettings
from common.arrays import Vector
from common.expectation import Expected
from server.algorithm import Algorithm
from server.algorithms.mbsgd import mean_samples
from server.cohort import Cohort
from server.uplink import Aggregate


class Scaffold(Algorithm):
    """Clients take local steps, each corrected by its difference from the mean of all clients."""

    @dataclass
    class State(Algorithm.State):
        """The global model x, and the control variate.

        Attributes
        ----------
        control
            c, shape (d,): after each round the mean of c_i over all clients, whoever took part.
        """

        control: Vector

    Settings = ScaffoldSettings
    settings: ScaffoldSettings
    figures: ClassVar[tuple[str, ...]] = ("control_variate_norm",)

    def initial_state(self, model: Vector) -> State:
        """Begin with c = 0, as the clients begin with c_i = 0."""
        return self.State(self.downlink.kept(model, 1), np.zeros_like(model))

    async def admit(self, cohort: Cohort) -> None:
        """Newcomers have c_i = 0, so the mean of all c_i is c N_old / N_new."""
        clients = len(self.fleet.members)
        self.state.control = self.state.control * ((clients - len(cohort)) / clients)

    async def round(self, t: int) -> None:
        """Draw I_t; x <- x + eta_g mean over I_t of Delta x_i; c <- c + (1/N) sum over I_t of Delta c_i.

        A client's new c_i counts if and only if its reply did, so that c stays the mean of all c_i.
        """
        x, corrected = self.model, self.settings.correction != "none"
        plain = self.uplink.settings.is_plain and not self.noisy
        replies = await self.sample().reduce(
            "train",
            model=self.downlink.wire(x, t),
            mean_samples=mean_samples(self.fleet),
            **({"control": self.state.control} if corrected else {}),
            returns=self._changes(x, corrected) if plain else {"model": self.uplink.expected(x)},
            dtype=x.dtype,
        )
        if plain:
            change = replies.mean("model_change")
            if corrected:
                self._shift_control(replies.sum("control_change"))
        else:
            change = self.uplink.mean(replies, "model", x, t) - x
            if corrected:
                self._shift_control(self._control_change(self.uplink.aggregate(replies, "model", x, t), x, t))
        self.model = self.downlink.kept(x + self.settings.server_step_size * change, t + 1)

    def metrics(self) -> dict[str, float]:
        """Return the norm of c, by which all clients are corrected: small again where SCAFFOLD converges."""
        return {"control_variate_norm": float(np.linalg.norm(self.state.control))}

    def _changes(self, x: Vector, corrected: bool) -> dict[str, Expected]:
        names = ("model_change", "control_change") if corrected else ("model_change",)
        return dict.fromkeys(names, x)

    def _shift_control(self, total: Vector) -> None:
        self.state.control = self.state.control + total / len(self.fleet.members)

    def _control_change(self, sent: Aggregate, x: Vector, t: int) -> Vector:
        """Return what the c_i of I_t change by, together: -c + (x - x_i) / (Q eta) where they sent something.

        So the clients form c_i from what they sent, and no second vector travels (FedPDM specification, section 2.8).
        """
        along = (self.settings.local_steps or 1) * self.settings.step_size_at(t)
        change: Vector = sent.coverage * (x / along - self.state.control) - sent.total / along
        return change
