"""DRDM.

Krouka, Ben Issaid, Bennis, "Distributionally Robust Federated Learning with Client Drift Minimization",
Algorithms 1 to 3, with a corrected parenthesis in the server's update (docs/specifications/drdm.md, sections 2.2 to
2.6 and 6.1).
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
from fenchel.fleet.question import Each

OMEGA_MIN = 1e-3
"""Smallest factor on gradients with ``lambda-scaled``, so that drifts of clients without weight are renewed."""

_FALLBACK = 0.1  # value of mu if the smoothness is unknown, or if no drift depends on mu
_FAR_BELOW = 0.1  # ratio of an explicit mu to the smoothness below which a warning is logged


class DRDMSettings(SampledByWeightSettings):
    """Loss of the worst clients, drift corrected (Krouka et al.)."""

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
        description="estimate of the losses of clients that did not report any. plain: 0, as in the paper; "
        "control-variate: the last reported loss, which has less variance",
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
        description="weights of the clients' drifts in their sum. lambda-table: lambda, for which the server keeps the "
        "drift of every client; lambda-scaled: lambda, where clients scale their gradients by it and the server keeps "
        "one vector; uniform: equal, as in the paper, which leads to the minimum of the average loss for every lambda; "
        "none: no correction, which is DRFA with a proximal term",
    )

    @property
    def epsilon(self) -> float:
        """Share of uniform sampling in the draw of the training cohort."""
        return 0.1 if self.exploration is None else self.exploration

    def fitting_regularization(self, smoothness: float) -> float:
        """Return mu for losses of smoothness L (docs/specifications/drdm.md, section 2.10).

        L/2 keeps drifts and lambda stable together. For short local steps mu is larger, for critical damping. It is at
        most half of 1 / step_size, so that local steps stay stable.
        """
        damped = 2 * math.sqrt(smoothness) / math.sqrt(self.step_size * self.local_steps) - smoothness
        return min(max(smoothness / 2, damped), 0.5 / self.step_size)

    def minimises(self, sampler: Sampler) -> Weighting | None:
        """Return equal weights if all drifts count equally, otherwise ``None``, as the largest loss is minimised."""
        return "uniform" if self.correction == "uniform" else None

    @model_validator(mode="after")
    def _corrects(self) -> Self:
        if self.regularization == 0 and self.correction != "none":
            raise ValueError(
                f"regularization: 0 given, but local steps multiply the drifts by it. With correction: "
                f"{self.correction} the drifts would then not correct local steps, but still move the server's model; "
                "use a positive regularization, or correction: none"
            )
        return self

    @model_validator(mode="after")
    def _visits_all_clients(self) -> Self:
        if self.correction == "lambda-scaled" and self.sampling != "uniform":
            raise ValueError(
                f"correction: lambda-scaled needs every client to take part from time to time, but with sampling: "
                f"{self.sampling} clients of little weight may never do so; use sampling: uniform, or correction: "
                "lambda-table"
            )
        return self

    @model_validator(mode="after")
    def _steps_converge(self) -> Self:
        self.check_steps("regularization")
        return self


log = logging.getLogger("fenchel.server")


class DRDM(SampledByWeight):
    """Server half: local steps with drift correction, and cohorts drawn by weights that grow with the loss."""

    @dataclass
    class State(SampledByWeight.State):
        """State of the server half.

        Attributes
        ----------
        drift
            H, shape (d,), float64: mean of h_i over all clients. With ``lambda-table`` their sum weighted by the
            lambda of the last round.
        table
            h_i of all clients, shape (N, d), with ``lambda-table``; otherwise shape (0, d). In the dtype of the model,
            as on the clients, so that both sides round alike.
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
                "lambda never settles with dual_estimator: plain and partial participation, and correction: %s "
                "follows lambda; use dual_estimator: control-variate",
                self.settings.correction,
            )

    def beginning(self, model: Vector) -> dict[str, Any]:
        """Return the fields of :class:`State` with H = 0, as the clients begin with h_i = 0."""
        rows = len(self.fleet.members) if self.settings.correction == "lambda-table" else 0
        table = np.zeros((rows, model.size), model.dtype)
        return super().beginning(model) | {"drift": np.zeros(model.shape), "table": table}

    def cautions(self, smoothness: Callable[[], float]) -> tuple[str, ...]:
        """Return a warning if mu is far below L, as lambda then moves too fast for the drifts."""
        settings = self.settings
        mu = settings.regularization
        if not mu or settings.dual_step_size == 0 or not settings.correction.startswith("lambda"):
            return ()
        if not isinstance(self.objective, LinearObjective):
            # the smoothness over all samples bounds that of each client only if the loss is a mean over samples
            return ()
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

    async def start(self) -> None:
        """Determine mu and gamma from the clients' data, if the settings do not give them."""
        derives = self.settings.regularization is None and self.settings.correction != "none"
        if derives and smoothness(self.objective) != math.inf:  # otherwise no client knows its L
            await self._fit_regularization()
        await super().start()

    async def _fit_regularization(self) -> None:
        """Collect L of each client, and send all clients the mu for the largest, unless no client knows its L."""
        spec = NumberSpec(minimum=0, maximum=ABSURD, hint="the regularization follows from it, so it does not count")
        replies = await self.fleet.all().ask("smoothness", returns={"smoothness": spec})
        reported = {client: cast(float, reply["smoothness"]) for client, reply in replies.items()}
        steepest = max(reported, key=lambda client: reported[client])
        known, eta = reported[steepest], self.settings.step_size
        if known <= 0:
            return
        mu = self.settings.fitting_regularization(known)
        log.info("regularization is set to %.3g", mu)
        if eta * (known + mu) >= 2:
            log.warning(
                "client %s reports a smoothness of %.3g, for which local steps of step_size %g diverge; use "
                "algorithm.step_size: %.2g, or scale the data",
                steepest,
                known,
                eta,
                1 / known,
            )
        await self.fleet.all().tell("regularize", strength=mu)

    async def round(self, t: int) -> None:
        """Train clients D^(s), drawn by lambda, and update the model; then update lambda by losses at the snapshot.

        The losses are those of the clients U^(s), drawn uniformly.
        With displacements Delta_i and Delta'_i of client i after tau and k' steps:

            H <- H + sum_i share_i Delta_i        w       <- Pi_W(w + mean_D(Delta_i)  + H)
            H' = H + sum_i share_i Delta'_i       snapshot = Pi_W(w + mean_D(Delta'_i) + H')     (with the old w and H)

        A client drawn n_i times counts n_i times in the means, and once in the sums. If its reply does not count, it
        keeps its old h_i.
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
        """Restrict H to the remaining clients; return whether clients were lost.

        With a table, lost clients drop out, as their lambda_i is 0. Otherwise their h_i are unknown, and H and every
        h_i are reset to 0 (docs/specifications/drdm.md, section 2.7). Each client applies the reset before it trains
        again.
        """
        parted = await super().part_with_lost()
        if parted and self.settings.correction == "lambda-table":
            self.state.table[self.state.lost] = 0
        elif parted and self.settings.correction != "none":
            self.state.drift = np.zeros_like(self.state.drift)
            await self.fleet.all().tell("forget_drift")
            log.warning(
                "the drifts of the lost clients are unknown with correction: %s, so the drifts of all clients are "
                "reset to 0 and the run continues. correction: lambda-table would avoid this",
                self.settings.correction,
            )
        return parted

    def shares(self) -> NDArray[np.float64]:
        """Return the weight of each h_i in H, shape (N,): 1/N, lambda_i or 0 (docs/specifications/drdm.md, 2.4)."""
        if self.settings.correction == "lambda-table":
            return self.state.weights
        return np.where(self.state.lost | (self.settings.correction == "none"), 0.0, 1 / self.clients)

    def current_drift(self) -> NDArray[np.float64]:
        """Return H before the round in a new array, shape (d,); a table's H depends on lambda and is recomputed."""
        drift = self.state.drift.copy()
        if self.settings.correction == "lambda-table":
            drift[:] = 0
            for weight, h in zip(self.state.weights, self.state.table, strict=True):
                drift += weight * h
        return drift

    def _scales(self) -> dict[str, Any]:
        """Return omega_i = max(N lambda_i, OMEGA_MIN) for each client, with ``lambda-scaled``."""
        if self.settings.correction != "lambda-scaled":
            return {}
        scales = np.maximum(self.clients * self.state.weights, OMEGA_MIN)
        return {"scale": Each({client: float(scales[place]) for client, place in self.place.items()})}


class SampledClient(LocalTraining):
    """Client half common to DRDM and DRFA: the reported loss, and the displacements of the local model."""

    settings: SampledByWeightSettings

    @answers("loss")
    def loss(self, model: Vector) -> Values:
        """Return the mean loss at the snapshot of a new mini-batch, or of the whole shard (Algorithm 3).

        The loss is without the regulariser, which is the same for all clients and should not affect lambda.
        """
        size = self.settings.dual_batch_size
        if size is None or size >= self.objective.samples:
            return {"loss": self.objective.loss(model)}
        rows = self.generator("dual batch").choice(self.objective.samples, size, replace=False)
        return {"loss": self.objective.batch_loss(model, rows)}

    def displacements(self, change: Vector, snapshot_change: Vector, snapshot_step: int) -> Values:
        """Return the reply. A snapshot after the last step has the displacement of the model, which is sent once."""
        if snapshot_step == self.settings.local_steps:
            return {"change": change}
        return {"change": change, "snapshot_change": snapshot_change}


class DRDMClient(SampledClient):
    """Client half: local steps with dynamic regularisation, and the client's drift."""

    @dataclass
    class State:
        """Drift, in units of the model.

        Attributes
        ----------
        drift
            h_i = -g_i / mu, shape (d,), where g_i estimates the gradient of f_i at the client's last local model. In
            float64, like H; with ``lambda-table`` in the dtype of the model, like the table.
        regularization
            The value of mu, if the settings do not give it.
        """

        drift: Vector
        regularization: float = _FALLBACK

    settings: DRDMSettings

    def initial_state(self) -> State:
        """Return h_i = 0."""
        return self.State(self._no_drift())

    def _no_drift(self) -> Vector:
        table = self.settings.correction == "lambda-table"
        return np.zeros(self.objective.dimension, self.objective.dtype if table else np.float64)

    @answers("smoothness")
    def smoothness(self) -> Values:
        """Return L of this client's objective, or 0 if it is unknown."""
        bound = float(self.objective.smoothness)
        return {"smoothness": bound if math.isfinite(bound) else 0.0}

    @answers("regularize")
    def regularize(self, strength: float) -> None:
        """Set mu, which follows from the largest L of all clients."""
        self.state.regularization = strength

    @answers("train")
    def train(self, model: Vector, snapshot_step: int, scale: float = 1.0) -> Values:
        """Take tau steps w <- Pi_W(w - eta (omega grad l_i(w) + mu (h_i + w - wbar))); h_i <- h_i + w - wbar.

        With ``correction: none``, h_i stays 0. Return the displacements of w after tau and after k' steps.

        Parameters
        ----------
        model
            wbar, shape (d,).
        snapshot_step
            k', the number of steps before the snapshot.
        scale
            omega_i with ``correction: lambda-scaled``, else 1. The step size is divided by max(1, omega_i).
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
        """Reset h_i to 0. The server resets H and all h_i if it does not know the h_i of a lost client.

        Source: docs/specifications/drdm.md, section 2.7.
        """
        self.state.drift = self._no_drift()
