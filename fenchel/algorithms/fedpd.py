"""FedPD.

Zhang, Hong, Dhople, Yin, Liu, "FedPD: A Federated Learning Framework with Adaptivity to Non-IID Data", IEEE
Transactions on Signal Processing, 2021, Algorithm 1 (docs/specifications/fedpdm.md, section 2.8).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, Self

from pydantic import Field, PositiveFloat, model_validator

from fenchel.algorithms.client_half import answers
from fenchel.algorithms.fedavg import LocalTraining, WeightedSumSettings
from fenchel.algorithms.mb_sgd import mean_samples
from fenchel.algorithms.server_half import Algorithm, ServerContext
from fenchel.common.arrays import Vector
from fenchel.common.errors import SettingsError
from fenchel.common.randomness import generator
from fenchel.common.settings.participation import AllClients
from fenchel.common.wire.values import Values
from fenchel.fleet.cohort import Cohort


class FedPDSettings(WeightedSumSettings):
    """Primal-dual method that skips rounds (Zhang et al. 2021)."""

    name: Literal["fedpd"] = "fedpd"
    proximal_step: PositiveFloat = Field(
        1.0,
        description="eta of the paper: local models are tied to the global one by ||w - x||^2 / (2 eta), and a round "
        "is worth one step of length about eta",
    )
    skip: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="probability that a round ends without communication (p); above 0, all clients must take part",
    )

    @model_validator(mode="after")
    def _steps_converge(self) -> Self:
        if self.step_size >= 2 * self.proximal_step:
            raise ValueError(
                f"step_size {self.step_size:g} given, but local steps diverge from twice the proximal_step on, "
                f"{2 * self.proximal_step:g}; lower it, or raise proximal_step"
            )
        return self


class FedPD(Algorithm):
    """Server half: clients minimise augmented Lagrangians; their results are averaged in rounds with communication."""

    @dataclass
    class State(Algorithm.State):
        """Global model x: the mean of the z_i received in the last round with communication.

        Attributes
        ----------
        agreed
            Whether the previous round had communication, so that clients need the new model.
        """

        agreed: bool = True

    Settings = FedPDSettings
    settings: FedPDSettings
    state: State

    def __init__(self, context: ServerContext) -> None:
        super().__init__(context)
        sampler = self.fleet.participation.sampler
        if self.settings.skip and not isinstance(sampler, AllClients):
            raise SettingsError(
                f"{sampler.kind} given, but with algorithm.skip: {self.settings.skip:g} a client that misses a "
                "round misses a model that is never sent again; use kind: all, or skip: 0",
                key="participation.sampler.kind",
            )

    def talks(self, t: int) -> bool:
        """Draw whether round ``t`` ends with communication, which has probability 1 - p."""
        return float(generator(self.fleet.seed, "server", t, "communication").random()) >= self.settings.skip

    async def admit(self, cohort: Cohort) -> None:
        """Set x_i of late joiners to x, the model that all clients know."""
        await cohort.tell("begin", model=self.model)

    async def round(self, t: int) -> None:
        """Have a cohort train. With probability 1 - p, collect its z_i and set x to their mean."""
        known: dict[str, Any] = {"model": self.model} if self.state.agreed else {}
        cohort, share = self.sample(), mean_samples(self.fleet, self.settings)
        self.state.agreed = self.talks(t)
        if not self.state.agreed:
            await cohort.tell("train", mean_samples=share, talks=False, **known)
            return
        replies = await cohort.reduce("train", mean_samples=share, talks=True, **known, returns={"model": self.model})
        self.model = replies.mean("model")


class FedPDClient(LocalTraining):
    """Client half: mini-batch descent on ``p_i f_i(w) + <mu_i, w - x_i> + ||w - x_i||^2 / (2 eta)`` from x_i."""

    @dataclass
    class State:
        """State of the client half.

        Attributes
        ----------
        dual
            mu_i, shape (d,): estimate of minus the gradient of p_i f_i at the last local model; initially zeros.
        anchor
            x_i (``x_{0,i}`` in the paper), shape (d,): z_i of the client's last round, or the global model that the
            client received when it joined.
        """

        dual: Vector
        anchor: Vector

    settings: FedPDSettings

    @answers("begin")
    def begin(self, model: Vector) -> None:
        """Set x_i to the current global model x, if the client joins the run late."""
        self.state.anchor = model.copy()

    @answers("train")
    def train(self, mean_samples: float, talks: bool, model: Vector | None = None) -> Values:
        """Descend from x_i to w; mu_i <- mu_i + (w - x_i) / eta; x_i <- z_i = w + eta mu_i.

        Parameters
        ----------
        mean_samples
            n / N, the mean number of samples of a client, for the weight p_i.
        talks
            Whether this round ends with communication, so that z_i is returned.
        model
            Global model x, shape (d,), which replaces x_i before the descent. Absent if the previous round had no
            communication.
        """
        state, eta = self.state, self.settings.proximal_step
        x = state.anchor if model is None else model
        w, step = x.copy(), self.settings.step_size_at(self.round)
        p = self.settings.weight(self.objective.samples, mean_samples)
        for batch in self.batches():
            w -= step * (p * self.gradient(w, batch) + state.dual + (w - x) / eta)
        state.dual = state.dual + (w - x) / eta
        state.anchor = w + eta * state.dual
        return {"model": state.anchor} if talks else {}
