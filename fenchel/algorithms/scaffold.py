"""SCAFFOLD.

Karimireddy, Kale, Mohri, Reddi, Stich, Suresh, "SCAFFOLD: Stochastic Controlled Averaging for Federated
Learning", ICML 2020, Algorithm 1 (docs/specifications/feddcd.md, section 2.4).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field, PositiveFloat

from fenchel.algorithms.client_half import answers
from fenchel.algorithms.fedavg import LocalTraining, WeightedSumSettings
from fenchel.algorithms.mb_sgd import mean_samples
from fenchel.algorithms.server_half import Algorithm, ServerContext
from fenchel.common.arrays import Vector
from fenchel.common.settings.uplink import Uplink
from fenchel.common.wire.values import Value, Values
from fenchel.fleet.cohort import Cohort, Reduced
from fenchel.fleet.uplink import ReceivedVector


class ScaffoldSettings(WeightedSumSettings):
    """Local steps corrected by control variates (Karimireddy et al. 2020, Algorithm 1)."""

    uses_uplink: ClassVar[bool] = True

    name: Literal["scaffold"] = "scaffold"
    correction: Literal["option-ii", "option-i", "none"] = Field(
        "option-ii",
        description="a client's new control variate: the mean of the gradients along its local steps (option-ii), "
        "or its gradient at the global model (option-i); none: there are no control variates, as in the linear "
        "baseline published with FedDCD",
    )
    server_step_size: PositiveFloat = Field(
        1.0, description="step size of the server along the mean change of the local models (eta_g)"
    )

    def memory(self, *, noisy: bool) -> Literal["none", "public", "private"]:
        """Control variates: formed from what was sent, where that is changed on its way."""
        return "public"

    def check_link(self, uplink: Uplink, *, noisy: bool) -> None:
        """Refuse control variates that do not follow from what was sent, for which both sides must know Q.

        Raises
        ------
        ValueError
            The uplink changes vectors, and the server cannot form the control variates from them.
        """
        if uplink.is_plain and not noisy:
            return
        if self.correction == "option-i":
            raise ValueError(
                f"algorithm: {self.name}: correction: option-i needs a second vector from each client; use option-ii, "
                "whose control variates follow from what is sent"
            )
        if self.local_steps is None:
            raise ValueError(
                f"algorithm: {self.name}: the server must know the number of local steps: give local_steps in place "
                "of local_epochs"
            )
        super().check_link(uplink, noisy=noisy)


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

    def __init__(self, context: ServerContext) -> None:
        super().__init__(context)
        self.corrects = self.settings.correction != "none"

    def initial_state(self, model: Vector) -> State:
        """Begin with c = 0, as the clients begin with c_i = 0."""
        return self.State(model, np.zeros_like(model))

    async def admit(self, cohort: Cohort) -> None:
        """Newcomers have c_i = 0, so the mean of all c_i is c N_old / N_new."""
        clients = len(self.fleet.members)
        self.state.control = self.state.control * ((clients - len(cohort)) / clients)

    async def round(self, t: int) -> None:
        """Draw I_t; x <- x + eta_g mean over I_t of Delta x_i; c <- c + (1/N) sum over I_t of Delta c_i.

        A client's new c_i counts if and only if its reply did, so that c stays the mean of all c_i.
        """
        x, state = self.model, self.state
        replies = await self.sample().reduce(
            "train",
            model=self.broadcast,
            mean_samples=mean_samples(self.fleet),
            **({"control": state.control} if self.corrects else {}),
            returns={"model_change": self.upload, **({"control_change": x} if self.receives_control else {})},
            dtype=x.dtype,
        )
        change = self.received(replies, "model_change", minus=x)
        if self.corrects:
            state.control = state.control + self._control_change(replies, change) / len(self.fleet.members)
        self.model = x + self.settings.server_step_size * change.mean()

    @property
    def receives_control(self) -> bool:
        """True if clients send Delta c_i, too, as in the paper.

        They do not where Delta x_i is changed on its way: then they form c_i from what they sent, and Delta c_i follows
        from that (docs/specifications/fedpdm.md, section 2.8).
        """
        return self.corrects and self.uplink.is_plain

    def _control_change(self, replies: Reduced, change: ReceivedVector) -> Vector:
        """Return the sum of Delta c_i: as sent, or -c - Delta x_i / (Q eta) where a coordinate was sent."""
        if self.receives_control:
            total: Vector = replies.sum("control_change")
        else:
            along = (self.settings.local_steps or 1) * self.settings.step_size_at(self.fleet.round)
            total = -(change.coverage * self.state.control + change.total / along)
        return total

    def metrics(self) -> dict[str, float]:
        """Return the norm of c, by which all clients are corrected: small again where SCAFFOLD converges."""
        return {"control_variate_norm": float(np.linalg.norm(self.state.control))}


class ScaffoldClient(LocalTraining):
    """Mini-batch gradient descent on ``p_i f_i``, corrected by what all clients do and this one does not."""

    @dataclass
    class State:
        """The control variate.

        Attributes
        ----------
        control
            c_i, shape (d,): the gradient of p_i f_i, as this client last saw it; zeros before.
        """

        control: Vector

    settings: ScaffoldSettings

    @answers("train")
    def train(self, model: Vector, mean_samples: float, control: Vector | None = None) -> Values:
        """Start at w = x; repeat w <- w - eta ( g_i(w) - c_i + c ); renew c_i; return what changed.

        Parameters
        ----------
        model
            x, shape (d,).
        mean_samples
            n / N, of which the weight p_i is made.
        control
            c, shape (d,); absent if the correction is ``none``.
        """
        x, w, state = model, model.copy(), self.state
        eta, steps = self.settings.step_size_at(self.round), 0
        p = self.settings.weight(self.objective.samples, mean_samples)
        correction = 0.0 if control is None else control - state.control
        for batch in self.batches():
            w -= eta * (p * self.gradient(w, batch) + correction)
            steps += 1
        sent = self.send(w, around=x, minus=x)
        reply: dict[str, Value] = {"model_change": sent.wire}
        if control is None:
            return reply
        chosen, before = sent.coordinates, state.control.copy()
        if self.settings.correction == "option-i":
            state.control = p * self.gradient(x, self.objective.all_rows)
        else:
            state.control[chosen] = before[chosen] - control[chosen] - sent.values / (steps * eta)
        if not self.uplink.changes:
            reply["control_change"] = state.control - before
        return reply
