"""DRDM.

Krouka, Ben Issaid, Bennis, "Distributionally Robust Federated Learning with Client Drift Minimization",
Algorithms 1 to 3, with the parenthesis of the server's update where it belongs (docs/specifications/drdm.md, sections
2.2 to 2.6 and 6.1).
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Self, cast

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, NonNegativeFloat, model_validator

from fenchel.algorithms.client_half import answers
from fenchel.algorithms.fedavg import LocalTraining
from fenchel.algorithms.robust.sampled_by_weight import SampledByWeight
from fenchel.algorithms.robust.settings import SampledByWeightSettings
from fenchel.algorithms.server_half import ServerContext
from fenchel.common.arrays import Dense, Vector
from fenchel.common.objectives.linear import LinearObjective
from fenchel.common.optim.choice import smoothness
from fenchel.common.optim.projection import onto
from fenchel.common.settings.algorithm import Weighting
from fenchel.common.settings.participation import Sampler
from fenchel.common.wire.schema import ABSURD, NumberSpec
from fenchel.common.wire.values import Values
from fenchel.fleet.addressing import Each

OMEGA_MIN = 1e-3
"""Smallest factor of a client's gradients, with ``lambda-scaled``: without weight a drift is renewed all the same."""

_FALLBACK = 0.1  # mu where no smoothness is known, or no drift depends on mu
_FAR_BELOW = 0.1  # of the smoothness: an explicit mu that is warned of


class DRDMSettings(SampledByWeightSettings):
    """Distributionally robust learning with client-drift minimisation (Krouka, Ben Issaid, Bennis)."""

    name: Literal["drdm"] = "drdm"
    exploration: float | None = Field(
        None,
        ge=0,
        le=1,
        description="share of uniform sampling that is mixed into lambda for the draw (epsilon); 0 in the paper, where "
        "clients without weight are never drawn again; not with sampling: uniform. null: 0.1",
    )
    dual_estimator: Literal["plain", "control-variate"] = Field(
        "control-variate",
        description="what is taken for the losses of clients that were not asked. plain: 0, as in the paper; "
        "control-variate: what they last reported, which is quieter; where everybody is asked, about those that do not "
        "answer",
    )
    regularization: NonNegativeFloat | None = Field(
        None,
        description="strength of the dynamic regularisation of local steps (mu); far below the smoothness L of the "
        "clients' losses drifts and lambda drive each other apart, and 0 is for correction: none only. null: follows "
        "from L, which all clients report at the start (docs/algorithms/drdm.md); 0.1 where no L is known (neural "
        "networks), and with correction: none",
    )
    correction: Literal["lambda-table", "lambda-scaled", "uniform", "none"] = Field(
        "lambda-table",
        description="how the clients' drifts are summed up. lambda-table: by lambda, for which the server keeps the "
        "drift of every client. lambda-scaled: the clients scale their gradients by lambda, and the server keeps one "
        "vector. uniform: all alike, as in the paper, which leads to the minimum of the average loss, whatever lambda "
        "is. none: not at all, which is DRFA with a proximal term",
    )

    @property
    def epsilon(self) -> float:
        """Share of uniform sampling in the draw of the training cohort."""
        return 0.1 if self.exploration is None else self.exploration

    def fitting_regularization(self, smoothness: float) -> float:
        """Return a mu for losses of this smoothness L (section 2.10).

        L/2 keeps drifts and lambda stable together; where local steps are short, mu is critically damped, and larger.
        Local steps must stay stable, too, so mu is at most half of 1 / step_size.
        """
        damped = 2 * math.sqrt(smoothness) / math.sqrt(self.step_size * self.local_steps) - smoothness
        return min(max(smoothness / 2, damped), 0.5 / self.step_size)

    def minimises(self, sampler: Sampler) -> Weighting | None:
        """With drifts that are summed up all alike, the average of the clients' losses; else the largest."""
        return "uniform" if self.correction == "uniform" else None

    @model_validator(mode="after")
    def _corrects(self) -> Self:
        if self.regularization == 0 and self.correction != "none":
            raise ValueError(
                f"regularization: 0 given, but drifts enter the local steps times regularization, so that with "
                f"correction: {self.correction} they would correct nothing and still push the model further in every "
                "round; use a positive regularization, or correction: none"
            )
        return self

    @model_validator(mode="after")
    def _visits_everybody(self) -> Self:
        if self.correction == "lambda-scaled" and self.sampling != "uniform":
            raise ValueError(
                f"correction: lambda-scaled sums up the drifts of all clients, also of those with little weight, so "
                f"each must take part now and then, but with sampling: {self.sampling} they may never; use sampling: "
                "uniform, or correction: lambda-table"
            )
        return self

    @model_validator(mode="after")
    def _steps_converge(self) -> Self:
        if self.regularization is not None and self.step_size * self.regularization >= 2:
            raise ValueError(
                f"step_size {self.step_size:g} times regularization {self.regularization:g} is "
                f"{self.step_size * self.regularization:g}, but local steps diverge from 2 on; lower one of them"
            )
        return self


log = logging.getLogger("fenchel.server")


class DRDM(SampledByWeight):
    """Local steps that correct the clients' drift, cohorts drawn by weights that grow with the loss."""

    @dataclass
    class State(SampledByWeight.State):
        """More of the server's state.

        Attributes
        ----------
        drift
            H, shape (d,), float64: the mean of all clients' h_i, whoever took part; with ``lambda-table`` their sum,
            weighed by the lambda of the last round.
        table
            h_i of every client, shape (N, d), with ``lambda-table``; else (0, d). In the dtype of the model, as the
            clients keep theirs, so that both round alike.
        """

        drift: NDArray[np.float64]
        table: Dense

    Settings = DRDMSettings
    settings: DRDMSettings
    state: State

    def __init__(self, context: ServerContext) -> None:
        super().__init__(context)
        loud = self.settings.dual_estimator == "plain" and self.m < self.clients
        if loud and self.settings.correction.startswith("lambda"):
            log.warning(
                "with dual_estimator: plain and fewer than all clients a round, lambda never settles, and correction: "
                "%s follows it; use dual_estimator: control-variate",
                self.settings.correction,
            )

    def initial_state(self, model: Vector) -> State:
        """H = 0, as the clients begin with h_i = 0."""
        rows = len(self.fleet.members) if self.settings.correction == "lambda-table" else 0
        return self.State(
            **self.beginning(model), drift=np.zeros(model.shape), table=np.zeros((rows, model.size), model.dtype)
        )

    def cautions(self, smoothness: Callable[[], float]) -> tuple[str, ...]:
        """Warn of an explicit mu far below L: drifts are gradients over mu, and lambda moves too far for them."""
        settings = self.settings
        mu = settings.regularization
        if not mu or settings.dual_step_size == 0 or not settings.correction.startswith("lambda"):
            return ()
        if not isinstance(self.objective, LinearObjective):
            return ()  # what all samples together tell of a client's is known of means over samples only
        known = smoothness()
        if not math.isfinite(known):
            return ()
        fitting = settings.fitting_regularization(known)
        if mu >= min(_FAR_BELOW * known, float(f"{fitting:.2g}")):
            return ()
        return (
            f"algorithm.regularization: {mu:g} is far below the smoothness of the objective, {known:.3g}. Drifts and "
            "weights may drive each other apart, and the run may diverge. Leave regularization out, or use "
            f"{fitting:.2g}",
        )

    @property
    def _unsmooth(self) -> bool:
        """True if no data can tell the smoothness of this objective."""
        return smoothness(self.objective) == math.inf

    async def start(self) -> None:
        """Agree on mu and gamma, as far as they follow from the clients' data."""
        if self.settings.regularization is None and self.settings.correction != "none" and not self._unsmooth:
            await self._fit_regularization()
        await super().start()

    async def _fit_regularization(self) -> None:
        """Have each client report its L once, and tell all of them the mu that fits the largest."""
        spec = NumberSpec(minimum=0, maximum=ABSURD, hint="the regularization follows from it, so it does not count")
        replies = await self.fleet.all().ask("smoothness", returns={"smoothness": spec})
        reported = {client: cast(float, reply["smoothness"]) for client, reply in replies.items()}
        steepest = max(reported, key=lambda client: reported[client])
        known, eta = reported[steepest], self.settings.step_size
        if known <= 0:
            return
        mu = self.settings.fitting_regularization(known)
        log.info("regularization is %.3g", mu)
        if eta * (known + mu) >= 2:
            log.warning(
                "client %s reports a smoothness of %.3g, with which local steps of step_size %g diverge; use "
                "algorithm.step_size: %.2g, or scale the data",
                steepest,
                known,
                eta,
                1 / known,
            )
        await self.fleet.all().tell("regularize", strength=mu)

    async def round(self, t: int) -> None:
        """Phase A: train D^(s) and move the model; phase B: ask U^(s) for losses at the snapshot and move lambda.

        Where client i has come by Delta_i and Delta'_i:

            H <- H + sum_i share_i Delta_i        w       <- w + mean_D(Delta_i)  + H
            H' = H + sum_i share_i Delta'_i       snapshot = w + mean_D(Delta'_i) + H'     (with the old w and H)

        A client that was drawn more than once counts more in the means, and once in the sums. Its new h_i
        counts if and only if its reply did.
        """
        await self.part_with_lost()
        w, state, share = self.model, self.state, self.shares()
        drift = self.current_drift()
        snapshot_drift = drift.copy()

        def take(client: str, change: Vector, snapshot_change: Vector) -> None:
            nonlocal drift, snapshot_drift
            place = self.place[client]
            drift += share[place] * change
            snapshot_drift += share[place] * snapshot_change
            if len(state.table):
                state.table[place] += change

        change, snapshot_change = await self.trained(t, w, take, **self._scales())
        state.drift = drift
        self.model = self.moved(w, change + drift)
        await self.dual_step(t, self.moved(w, snapshot_change + snapshot_drift))

    async def part_with_lost(self) -> bool:
        """Take out of H the h_i of clients that were lost, so that H is again the sum over those that are left.

        With a table H does without them, as their lambda_i is 0. Otherwise nobody knows their h_i any more,
        and H and every h_i begin at 0 again, together (section 2.7): a promise that each client keeps before
        it trains again.
        """
        parted = await super().part_with_lost()
        if parted and self.settings.correction == "lambda-table":
            self.state.table[self.state.lost] = 0
        elif parted and self.settings.correction != "none":
            self.state.drift = np.zeros_like(self.state.drift)
            await self.fleet.all().tell("forget_drift")
            log.warning(
                "the drifts of lost clients are not known with correction: %s, so all drifts begin at 0 again and the "
                "run goes on; with correction: lambda-table that would not be necessary",
                self.settings.correction,
            )
        return parted

    def shares(self) -> NDArray[np.float64]:
        """Return what each h_i counts for in H, shape (N,): 1/N, lambda_i, or nothing (section 2.4)."""
        if self.settings.correction == "lambda-table":
            return self.state.weights
        return np.where(self.state.lost | (self.settings.correction == "none"), 0.0, 1 / self.clients)

    def current_drift(self) -> NDArray[np.float64]:
        """Return H before the round, a new array of shape (d,); from the table, since lambda may have changed."""
        drift = self.state.drift.copy()
        if self.settings.correction == "lambda-table":
            drift[:] = 0
            for weight, h in zip(self.state.weights, self.state.table, strict=True):
                drift += weight * h
        return drift

    def _scales(self) -> dict[str, Any]:
        """omega_i = max(N lambda_i, OMEGA_MIN), for ``lambda-scaled``: each client is told its own."""
        if self.settings.correction != "lambda-scaled":
            return {}
        scales = np.maximum(self.clients * self.state.weights, OMEGA_MIN)
        return {"scale": Each({client: float(scales[place]) for client, place in self.place.items()})}


class SampledClient(LocalTraining):
    """What the clients of DRDM and DRFA share: they report their loss."""

    settings: SampledByWeightSettings

    @answers("loss")
    def loss(self, model: Vector) -> Values:
        """Algorithm 3: return the mean loss of a fresh mini-batch at the snapshot, shape (d,); no state is touched.

        The penalty is left out: it is the same for all clients, so lambda is not meant to follow it.
        """
        size = self.settings.dual_batch_size
        if size is None or size >= self.objective.samples:
            return {"loss": self.objective.loss(model)}
        rows = self.generator("dual batch").choice(self.objective.samples, size, replace=False)
        return {"loss": self.objective.batch_loss(model, rows)}

    def displacements(self, change: Vector, snapshot_change: Vector, snapshot_step: int) -> Values:
        """Return what is sent; at the last step the snapshot is the end, and is not sent twice."""
        if snapshot_step == self.settings.local_steps:
            return {"change": change}
        return {"change": change, "snapshot_change": snapshot_change}


class DRDMClient(SampledClient):
    """Local steps with dynamic regularisation; keeps the drift."""

    @dataclass
    class State:
        """The drift, in units of the model.

        Attributes
        ----------
        drift
            h_i = -g_i / mu, shape (d,): g_i estimates the gradient of f_i at this client's last local model. In
            float64, as the server's mean of them; with ``lambda-table`` in the dtype of the model, as its table.
        regularization
            Mu, where the settings leave it open.
        """

        drift: Vector
        regularization: float = _FALLBACK

    settings: DRDMSettings

    def initial_state(self) -> State:
        """h_i = 0."""
        return self.State(self._no_drift())

    def _no_drift(self) -> Vector:
        table = self.settings.correction == "lambda-table"
        return np.zeros(self.objective.dimension, self.objective.dtype if table else np.float64)

    @answers("smoothness")
    def smoothness(self) -> Values:
        """Return L of this client's objective; 0: no bound is known."""
        bound = float(self.objective.smoothness)
        return {"smoothness": bound if math.isfinite(bound) else 0.0}

    @answers("regularize")
    def regularize(self, strength: float) -> None:
        """Take in mu, which follows from the largest L of all clients."""
        self.state.regularization = strength

    @answers("train")
    def train(self, model: Vector, snapshot_step: int, scale: float = 1.0) -> Values:
        """tau times w <- Pi_W(w - eta (omega grad l_i(w) + mu (h_i + w - wbar))); h_i <- h_i + w - wbar.

        Parameters
        ----------
        model
            Wbar, shape (d,).
        snapshot_step
            k': after so many steps the snapshot is taken.
        scale
            omega_i, with ``lambda-scaled``; steps are shorter where it is above 1.
        """
        w, snapshot, given = model.copy(), model, self.settings.regularization
        mu = self.state.regularization if given is None else given
        h = self.state.drift.astype(model.dtype, copy=False)
        eta = self.settings.step_size_at(self.round) / max(1.0, scale)
        for step, batch in enumerate(self.batches(), 1):
            d = scale * self.gradient(w, batch) + mu * (h + w - model)
            w = onto(self.settings.constraint, w - eta * d)
            if step == snapshot_step:
                snapshot = w
        change = w - model
        if self.settings.correction != "none":
            self.state.drift = self.state.drift + change
        return self.displacements(change, snapshot - model, snapshot_step)

    @answers("forget_drift")
    def forget_drift(self) -> None:
        """h_i <- 0, as everybody's and the server's H: another client's h_i is lost for good (section 2.7)."""
        self.state.drift = self._no_drift()
