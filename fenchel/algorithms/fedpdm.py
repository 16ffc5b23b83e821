"""FedPDM; with noise DP-FedPDM, with sparsified messages BSDP-FedPDM.

Li, Huang, Wang, Chi, Quek, "Privacy-preserving Federated Primal-Dual Learning for Non-convex and Non-smooth
Problems with Model Sparsification", Algorithms 1 and 2 (docs/specifications/fedpdm.md, sections 2.3 to 2.7). The
settings ``uplink``, ``downlink`` and ``differential_privacy`` choose the variant; the algorithm is the same.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Self, cast

import numpy as np
from pydantic import Field, PositiveFloat, model_validator

from fenchel.algorithms.client_half import ClientContext, answers
from fenchel.algorithms.fedavg import LocalTraining, LocalTrainingSettings
from fenchel.algorithms.server_half import Algorithm, ServerContext
from fenchel.common.accounting.sensitivity import DualDifference
from fenchel.common.arrays import Vector
from fenchel.common.compression.uplink import Sent
from fenchel.common.settings.algorithm import Weighting
from fenchel.common.settings.participation import Sampler, Weighted
from fenchel.common.settings.uplink import Uplink
from fenchel.common.wire.schema import Expected
from fenchel.common.wire.values import SparseVector, Values
from fenchel.fleet.cohort import Cohort
from fenchel.fleet.uplink import ReceivedVector

Aggregator = Literal["sampled", "stale", "hybrid"]
Dual = Literal["private", "public"]


class FedPDMSettings(LocalTrainingSettings):
    """Primal-dual method for non-convex problems (Li et al.)."""

    uses_uplink: ClassVar[bool] = True
    treats_regularizer: ClassVar[bool] = True

    name: Literal["fedpdm"] = "fedpdm"
    penalty: PositiveFloat = Field(
        1.0,
        description="penalty of the augmented Lagrangian (rho). A round is worth one step of length about 1 / rho, "
        "however many local steps it has: lower it to go faster; above twice the smoothness it is proven to descend",
    )
    aggregator: Aggregator | None = Field(
        None,
        description="composition of the new model. sampled: mean of the uploads of this round's clients, as in the "
        "paper; stale: mean of the last uploads of all clients; hybrid: mean of this round's local models, corrected "
        "by the mean dual variable of all clients; null: hybrid, or sampled with noise or dual: private",
    )
    dual: Dual | None = Field(
        None,
        description="source of a client's dual variable. private: its local model, as in the paper; public: its "
        "upload, with noise and without the coordinates that were not sent, so that the dual variable is no secret; "
        "null: private, or public with noise. The hybrid aggregator is always public",
    )
    tolerance: PositiveFloat | None = Field(
        None,
        description="stop of the local steps: squared norm of the direction (nu); local_steps or local_epochs is then "
        "their maximum. null: always that number of steps",
    )
    error_feedback: Literal["none", "ef21"] = Field(
        "none",
        description="error feedback. ef21: clients send the difference to their previous uploads, so that coordinates "
        "that are left out now are sent later; needs uplink.sparsify",
    )
    first_round: Literal["sampled", "all"] = Field(
        "sampled", description="participants of round 1: a cohort as in every round, or all clients, as in the paper"
    )

    def minimises(self, sampler: Sampler) -> Weighting | None:
        """Return equal weights of the clients' objectives, or ``None`` if large clients are drawn more often."""
        return None if isinstance(sampler, Weighted) else "uniform"

    @model_validator(mode="after")
    def _parts_fit(self) -> Self:
        self.check_steps("penalty")
        if self.aggregator == "hybrid" and self.dual == "private":
            raise ValueError(
                "dual: private given, but with aggregator: hybrid the server computes the dual variables from the "
                "uploads; use dual: public, or another aggregator"
            )
        if self.error_feedback == "ef21" and self.aggregator not in ("sampled", "stale"):
            raise ValueError(
                "error_feedback: ef21 needs aggregator: stale or sampled, because the server must know what each "
                "client sent before; set one of these, or use error_feedback: none"
            )
        if self.error_feedback == "ef21" and self.dual == "public":
            raise ValueError(
                "error_feedback: ef21 needs dual: private, but dual: public is given; change one of the two settings"
            )
        return self

    @property
    def mirrors_initial(self) -> bool:
        """True if the server keeps a copy of each client's upload, which begins as the initial model."""
        return self.aggregator == "stale" or self.error_feedback != "none"

    @property
    def prox_penalty(self) -> float:
        """Penalty of the server's proximal operator of h: rho."""
        return self.penalty

    def check_link(self, uplink: Uplink, *, noisy: bool) -> None:
        """Reject error feedback without sparsification, and with noise, which it would compensate.

        Raises
        ------
        ValueError
            If error feedback is on, and the uplink does not support it.
        """
        if self.error_feedback == "none":
            return
        where = f"algorithm: {self.name}: error_feedback: ef21"
        if uplink.sparsify is None:
            raise ValueError(
                f"{where} given without uplink.sparsify, but all coordinates are sent then, so there is no error to "
                "feed back; set uplink.sparsify, or use error_feedback: none"
            )
        if noisy or uplink.clip is not None:
            raise ValueError(
                f"{where} undoes clipping and accumulates noise; use error_feedback: none, or leave out uplink.clip, "
                "uplink.noise and differential_privacy"
            )

    @property
    def pull(self) -> float:
        """Weight of the proximal term: rho."""
        return self.penalty

    def gain(self, *, noisy: bool) -> Literal[1, 2]:
        """Return 1 if local models are sent, otherwise 2, for y_i = 2 x_i - x0 - lambda_i / rho."""
        return 1 if self.aggregates(noisy=noisy) == "hybrid" else 2

    def memory(self, *, noisy: bool) -> Literal["none", "public", "private"]:
        """Return whether dual variables are public or private."""
        return "public" if self.dual_is_public(noisy=noisy) else "private"

    def aggregates(self, *, noisy: bool) -> Aggregator:
        """Return the aggregator, given whether uploads carry noise."""
        if self.aggregator is not None:
            return self.aggregator
        return "sampled" if noisy or self.dual == "private" else "hybrid"

    def dual_is_public(self, *, noisy: bool) -> bool:
        """Return whether dual variables follow from uploads, given whether these carry noise."""
        if self.aggregates(noisy=noisy) == "hybrid":
            return True
        return noisy if self.dual is None else self.dual == "public"


class FedPDM(Algorithm):
    """Server half: a cohort descends on augmented Lagrangians; the server takes a proximal step from the mean."""

    @dataclass
    class State(Algorithm.State):
        """State of the server half; ``model`` is x0 as the clients know it.

        Attributes
        ----------
        mean_upload
            Aggregator ``stale``: mean of the last uploads of all N clients, shape (d,). The initial model stands in for
            those that have sent none.
        mean_dual
            Aggregator ``hybrid``: mean of all N dual variables, shape (d,).
        replicas
            Aggregator ``sampled`` with error feedback: the initial model plus all uploads of a client, shape (d,), by
            client id.
        """

        mean_upload: Vector
        mean_dual: Vector
        replicas: dict[str, Vector] = field(default_factory=dict)

    Settings = FedPDMSettings
    settings: FedPDMSettings
    state: State
    figures: ClassVar[tuple[str, ...]] = ("nonzeros", "coverage", "local_steps")

    def __init__(self, context: ServerContext) -> None:
        super().__init__(context)
        self.h = context.objective.regularizer
        self.aggregator = self.settings.aggregates(noisy=self.uplink.noisy)
        self.initial_model = context.initial_model
        self._figures: dict[str, float] = {}

    def initial_state(self, model: Vector) -> State:
        """Return the state before the first upload: x0 as given, all dual variables 0."""
        return self.State(model, model.copy(), np.zeros_like(model))

    async def round(self, t: int) -> None:
        """Aggregate the uploads of S_t into u, and set x0 <- prox_{h/rho}(u). The downlink may sparsify x0."""
        cohort = self.fleet.all() if t == 1 and self.settings.first_round == "all" else self.sample()
        u, sent, steps = await self._aggregate(cohort, t)
        x0 = self.h.prox(u, self.settings.penalty)  # equation (12)
        # Coordinates without an upload keep their value, because the prox would shrink them in every round.
        self.model = x0 if sent is None else sent.held(x0)  # equation (27)
        self._figures = {
            "nonzeros": float(np.count_nonzero(self.model)),
            "coverage": 1.0 if sent is None else float(sent.covered.mean()),
            "local_steps": steps,
        }

    async def _aggregate(self, cohort: Cohort, t: int) -> tuple[Vector, ReceivedVector | None, float]:
        """Return u, shape (d,), the received vector (``None`` if u has all coordinates), and the mean of Q_i."""
        x0, rho, clients = self.model, self.settings.penalty, len(self.fleet.members)
        returns: dict[str, Expected] = {"upload": self.upload, "steps": int}
        if self.aggregator == "sampled" and self.settings.error_feedback == "ef21":
            replies = await cohort.ask("solve", model=self.broadcast, returns=returns)
            known = [self.state.replicas.setdefault(client, self.initial_model.copy()) for client in replies]
            for replica, upload in zip(known, replies.values_of("upload"), strict=True):
                coordinates, values = self.uplink.entries(cast(SparseVector | Vector, upload), x0, t)
                replica[coordinates] += values
            return np.mean(known, axis=0), None, float(replies.mean("steps"))
        sums = await cohort.reduce("solve", model=self.broadcast, returns=returns, dtype=x0.dtype)
        steps = float(sums.mean("steps"))
        sent = self.received(sums, "upload")
        nothing = np.zeros_like(x0)
        if self.aggregator == "stale":  # each upload is the difference from the client's previous vector
            self.state.mean_upload = self.state.mean_upload + sent.total / clients
            return self.state.mean_upload, None, steps
        if self.aggregator == "sampled":
            return sent.mean(nothing), sent, steps  # equations (20) and (23)
        self.state.mean_dual = self.state.mean_dual + rho / clients * (sent.coverage * x0 - sent.total)
        u = np.where(sent.covered, sent.mean() - self.state.mean_dual / rho, nothing)
        return u, sent, steps

    async def admit(self, cohort: Cohort) -> None:
        """Add late joiners to the means over all clients, with initial uploads and dual variables 0."""
        all_clients = len(self.fleet.members)
        share = (all_clients - len(cohort)) / all_clients
        self.state.mean_upload = share * self.state.mean_upload + (1 - share) * self.initial_model
        self.state.mean_dual = share * self.state.mean_dual

    def metrics(self) -> dict[str, float]:
        """Return the sparsity of the model, the share of coordinates that were sent, and the mean of Q_i."""
        return dict(self._figures)


class FedPDMClient(LocalTraining):
    """Client half, with the dual variable of the constraint that local and global model are equal."""

    @dataclass
    class State:
        """State of the client half.

        Attributes
        ----------
        dual
            lambda_i, shape (d,): estimate of the gradient of f_i at the last local model; initially zeros.
        mirrored
            The server's copy of this client's upload, shape (d,); empty if the server keeps none.
        difference
            Bound on the distance of dual variables if one sample is replaced, which enters the sensitivity of a
            private dual variable (docs/specifications/fedpdm.md, section 3.3, item 1). Infinity if none is known.
        """

        dual: Vector
        mirrored: Vector
        difference: float

    settings: FedPDMSettings

    def __init__(self, context: ClientContext) -> None:
        super().__init__(context)
        self.aggregator = self.settings.aggregates(noisy=self.uplink.noisy)
        self.dual_is_public = self.settings.dual_is_public(noisy=self.uplink.noisy)

    def initial_state(self) -> Any:
        """Return lambda_i = 0, and the initial model as the server's copy of the upload."""
        initial = self.objective.initial(self.seed)
        mirrored = initial if self.settings.mirrors_initial else initial[:0]
        return self.State(np.zeros_like(initial), mirrored, 0.0)

    def sensitivity(self) -> float | None:
        """Return the L2 sensitivity of the upload, and update that of the dual variable."""
        protection = self.uplink.protection
        if protection is None:
            return None
        sensitivity, after = protection.sensitivity(self.local_map(), DualDifference(self.state.difference))
        self.state.difference = after.value
        if math.isfinite(after.value):  # infinite with mechanisms for which the dual variable does not matter
            self.largest = max(self.largest, after.value)  # bound on the norm of a private dual variable
        return sensitivity

    @answers("solve")
    def solve(self, model: Vector) -> Values:
        """Descend from x0 on f_i(x) - <lambda_i, x> + (rho/2) ||x - x0||^2; renew lambda_i; send y_i.

        Parameters
        ----------
        model
            x0 as all clients know it, shape (d,).
        """
        x0, state, rho = model, self.state, self.settings.penalty
        x, steps = self._local(x0)
        dual = state.dual + rho * (x0 - x)  # equation (8c)
        is_hybrid = self.aggregator == "hybrid"
        sent, y = self._sent(x if is_hybrid else x - dual / rho, x0)  # equation (8d)
        chosen = sent.coordinates
        if is_hybrid:
            state.dual[chosen] += rho * (x0[chosen] - y)
        elif self.dual_is_public:
            state.dual[chosen] = (state.dual[chosen] + rho * (x0[chosen] - y)) / 2
        else:
            state.dual = dual
        return {"upload": sent.wire, "steps": steps}

    def _local(self, x0: Vector) -> tuple[Vector, int]:
        """Run lines 4 to 8 of Algorithm 1; return x_i and Q_i."""
        eta, rho, nu = self.settings.step_size_at(self.round), self.settings.penalty, self.settings.tolerance
        x, steps = x0.copy(), 0
        for batch in self.batches():
            g = self.gradient(x, batch) - self.state.dual + rho * (x - x0)
            x -= eta * g  # equation (8a)
            steps += 1
            if nu is not None and g @ g <= nu:  # the paper's stopping criterion: gradient before the step
                break
        return x, steps

    def _sent(self, y: Vector, x0: Vector) -> tuple[Sent, Vector]:
        """Apply the uplink to y_i, or to its change if the server keeps a copy; return also the server's y_i."""
        mirrored = self.state.mirrored
        if self.settings.error_feedback == "ef21":
            sent = self.send(y - mirrored, around=x0)
        else:
            sent = self.send(y, around=x0, minus=mirrored if mirrored.size else None)
        if not mirrored.size:
            return sent, sent.values
        mirrored[sent.coordinates] += sent.values
        return sent, mirrored[sent.coordinates]
