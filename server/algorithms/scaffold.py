"""SCAFFOLD, server half.

Karimireddy, Kale, Mohri, Reddi, Stich, Suresh, "SCAFFOLD: Stochastic Controlled Averaging for Federated
Learning", ICML 2020, Algorithm 1 (FedDCD specification, section 2.4).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from common.algorithms.scaffold import ScaffoldSettings
from common.arrays import Vector
from server.algorithm import Algorithm
from server.algorithms.mbsgd import mean_samples


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

    def initial_state(self, model: Vector) -> State:
        """Begin with c = 0, as the clients begin with c_i = 0."""
        return self.State(model, np.zeros_like(model))

    async def round(self, t: int) -> None:
        """Draw I_t; x <- x + eta_g mean over I_t of Delta x_i; c <- c + (1/N) sum over I_t of Delta c_i.

        A client's new c_i counts if and only if its reply did, so that c stays the mean of all c_i.
        """
        x, corrected = self.model, self.settings.correction != "none"
        changes = await self.sample().reduce(
            "train",
            model=x,
            mean_samples=mean_samples(self.fleet),
            **({"control": self.state.control} if corrected else {}),
            returns={"model_change": x} | ({"control_change": x} if corrected else {}),
        )
        self.model = x + self.settings.server_step_size * changes.mean("model_change")
        if corrected:
            clients = len(self.fleet.members)
            self.state.control = self.state.control + changes.sum("control_change") / clients
