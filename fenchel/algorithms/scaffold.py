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
    """Local steps with control variates (Karimireddy et al. 2020)."""

    uses_uplink: ClassVar[bool] = True

    name: Literal["scaffold"] = "scaffold"
    correction: Literal["option-ii", "option-i", "none"] = Field(
        "option-ii",
        description="new control variate of a client. option-ii: mean of the gradients along its local steps; "
        "option-i: its gradient at the global model; none: no control variates, as in the linear baseline published "
        "with FedDCD",
    )
    server_step_size: PositiveFloat = Field(
        1.0, description="step size of the server along the mean change of the local models (eta_g)"
    )

    def memory(self, *, noisy: bool) -> Literal["none", "public", "private"]:
        """Return the kind of the control variates: public if they follow from uploads, which the uplink changes."""
        return "public"

    def check_link(self, uplink: Uplink, *, noisy: bool) -> None:
        """Reject control variates that the server cannot compute from uploads, for which it must know Q.

        Raises
        ------
        ValueError
            If the uplink changes vectors, and the correction is ``option-i`` or the server does not know Q.
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
    """Server half: clients take local steps corrected by control variates, and the server averages the changes."""

    @dataclass
    class State(Algorithm.State):
        """Global model x and control variate.

        Attributes
        ----------
        control
            c, shape (d,): the mean of c_i over all clients after each round.
        """

        control: Vector

    Settings = ScaffoldSettings
    settings: ScaffoldSettings
    figures: ClassVar[tuple[str, ...]] = ("control_variate_norm",)

    def __init__(self, context: ServerContext) -> None:
        super().__init__(context)
        self.corrects = self.settings.correction != "none"

    def initial_state(self, model: Vector) -> State:
        """Return the state with c = 0, as the clients begin with c_i = 0."""
        return self.State(model, np.zeros_like(model))

    async def admit(self, cohort: Cohort) -> None:
        """Multiply c by N_old / N_new, so that it stays the mean of all c_i: those of late joiners are 0."""
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
            mean_samples=mean_samples(self.fleet, self.settings),
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
        """True if clients send Delta c_i as well, as in the paper.

        If the uplink changes Delta x_i, clients compute c_i from what they sent, and Delta c_i follows from that
        (docs/specifications/fedpdm.md, section 2.8).
        """
        return self.corrects and self.uplink.is_plain

    def _control_change(self, replies: Reduced, change: ReceivedVector) -> Vector:
        """Return the sum of Delta c_i as sent, or of -c - Delta x_i / (Q eta) on the coordinates sent."""
        if self.receives_control:
            total: Vector = replies.sum("control_change")
        else:
            along = (self.settings.local_steps or 1) * self.settings.step_size_at(self.fleet.round)
            total = -(change.coverage * self.state.control + change.total / along)
        return total

    def metrics(self) -> dict[str, float]:
        """Return the norm of c, which becomes small as SCAFFOLD converges."""
        return {"control_variate_norm": float(np.linalg.norm(self.state.control))}


class ScaffoldClient(LocalTraining):
    """Client half: mini-batch gradient descent on ``p_i f_i``, corrected by ``c - c_i``."""

    @dataclass
    class State:
        """Control variate of the client.

        Attributes
        ----------
        control
            c_i, shape (d,): estimate of the gradient of p_i f_i in the client's last round; zeros before.
        """

        control: Vector

    settings: ScaffoldSettings

    @answers("train")
    def train(self, model: Vector, mean_samples: float, control: Vector | None = None) -> Values:
        """Start at w = x; repeat w <- w - eta ( g_i(w) - c_i + c ); renew c_i; return Delta x_i and Delta c_i.

        Delta c_i is left out if the uplink changes Delta x_i, because the server computes it from what it receives.

        Parameters
        ----------
        model
            x, shape (d,).
        mean_samples
            n / N, the mean number of samples of a client, for the weight p_i.
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
