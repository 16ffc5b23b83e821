"""Base of DRDM and DRFA: cohorts drawn by weight, and a dual step at a snapshot of the model.

Source: docs/specifications/drdm.md, sections 2.2, 2.5 and 2.6.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import numpy as np
from numpy.typing import NDArray

from fenchel.algorithms.fixed_fleet import WeightedSums
from fenchel.algorithms.robust.settings import LARGEST_DUAL_STEP, SampledByWeightSettings
from fenchel.algorithms.robust.weights import Robust, entropy
from fenchel.algorithms.server_half import ServerContext
from fenchel.common.arrays import Vector
from fenchel.common.errors import SettingsError
from fenchel.common.optim.projection import onto
from fenchel.common.randomness import generator
from fenchel.common.settings.participation import AllClients, FixedSize
from fenchel.common.wire.values import Values
from fenchel.fleet.cohort import Cohort

log = logging.getLogger("fenchel.server")

_QUIET = 0.3  # fraction of the dual step that would remove all weight from clients outside the cohort
_NOTABLE = 10  # ratio of an initial loss to the median above which the loss is logged, as it shortens dual steps
_APART = 1e3  # ratio of an initial loss to the median at which the loss is capped for dual_step_size


class SampledByWeight(Robust):
    """Server half: phase A trains clients drawn by lambda; phase B updates lambda by losses at a random local step."""

    @dataclass
    class State(Robust.State):
        """State of the server half.

        Attributes
        ----------
        dual_step_size
            Dual step size gamma; 0 until it is known.
        mean_weights
            Mean over rounds of the lambda used in the draw, shape (N,).
        mean_snapshot
            Mean over rounds of the snapshots, shape (d,). The theorem is about these means, not about the last iterates
            (docs/specifications/drdm.md, section 6.2, E7).
        """

        dual_step_size: float
        mean_weights: NDArray[np.float64]
        mean_snapshot: Vector

    settings: SampledByWeightSettings
    state: State
    figures: ClassVar[tuple[str, ...]] = (*Robust.figures, "largest_mean_weight", "mean_weights_entropy")

    def __init__(self, context: ServerContext) -> None:
        super().__init__(context)
        sampler = self.fleet.participation.sampler
        if not isinstance(sampler, AllClients | FixedSize):
            raise SettingsError(
                f"{sampler.kind} given, but {self.settings.name} draws its cohorts itself, by the clients' "
                "weights; use kind: fixed with a size, or kind: all",
                key="participation.sampler.kind",
            )
        clients = len(self.fleet.members)
        size = sampler.size if isinstance(sampler, FixedSize) else clients
        if size > clients:
            raise SettingsError(
                f"{size} given, but the run has only {clients} clients, and each round requests the losses of that "
                f"many distinct ones, even with algorithm.sampling: {self.settings.sampling}; use at most "
                f"{clients}",
                key="participation.sampler.size",
            )
        if self.settings.exploration and self.settings.sampling == "without-replacement" and size == clients:
            raise SettingsError(
                f"{self.settings.exploration:g} has no effect, because algorithm.sampling: without-replacement "
                f"draws all {clients} clients in every round; leave exploration out, or draw fewer clients with "
                "participation.sampler",
                key="algorithm.exploration",
            )

    @property
    def m(self) -> int:
        """Number of clients drawn in each phase, at most that of remaining clients."""
        sampler = self.fleet.participation.sampler
        return min(sampler.size, self.clients) if isinstance(sampler, FixedSize) else self.clients

    def beginning(self, model: Vector) -> dict[str, Any]:
        """Return the fields of :class:`State` before the first round."""
        return super().beginning(model) | {
            "dual_step_size": self.settings.dual_step_size or 0.0,
            "mean_weights": np.zeros(len(self.fleet.members)),
            "mean_snapshot": np.zeros_like(model),
        }

    async def start(self) -> None:
        """Collect the losses of the initial model from all clients, if gamma follows from them."""
        if self.settings.dual_step_size is not None:
            return
        losses = self.heard(await self._losses(self.fleet.all(), self.model, min_replies=None))
        self.state.dual_step_size = self._quiet_step(losses)
        log.info("dual_step_size is set to %.3g", self.state.dual_step_size)
        # reset the losses, so that the control variate begins at 0 as in runs with a given gamma
        self.state.losses[:] = np.nan

    def _quiet_step(self, losses: NDArray[np.float64]) -> float:
        """Return gamma = 0.3 / (tau N l), where l is the mean of the initial losses, shape (m,).

        If all clients report non-negative losses with this mean, a step changes no weight by more than 0.3. The median
        has no such bound: if one client's loss were far above the others, the weights would oscillate. Each loss is
        capped at 1000 medians, so that a single absurd loss does not freeze the weights. Source:
        docs/specifications/drdm.md, section 6.2, E11.
        """
        median = float(np.median(losses))
        counted = np.minimum(losses, _APART * median) if median > 0 else losses
        mean = float(counted.mean())
        if mean <= 0:
            log.warning(
                "the mean of the clients' first losses is %.3g, from which dual_step_size cannot be derived. It "
                "is set as for a mean of 1; set algorithm.dual_step_size to choose it",
                mean,
            )
            return self._quiet_step(np.ones_like(losses))
        step = self._step_for(mean)
        largest = int(losses.argmax())
        if 0 < _NOTABLE * median < losses[largest]:
            log.warning(
                "client %s reports a first loss of %.3g, and the median is %.3g. To derive dual_step_size, which "
                "becomes %.3g, each loss is capped at %g medians. If the loss is right, set "
                "algorithm.dual_step_size: %.3g; if it is wrong, leave the client out, or set "
                "algorithm.dual_step_size: %.3g",
                list(self.place)[int(np.nanargmax(self.state.losses))],
                losses[largest],
                median,
                step,
                _APART,
                self._step_for(float(losses.mean())),
                self._step_for(float(np.delete(losses, largest).mean())),
            )
        return step

    def _step_for(self, loss: float) -> float:
        return min(_QUIET / self._loudness(loss, 1.0), LARGEST_DUAL_STEP)

    def training_cohort(self, t: int) -> Counter[str]:
        """Draw D^(s) with p(lambda) = (1 - epsilon) lambda + epsilon / N; return the number n_i of draws by client id.

        Lost clients are not drawn. Source: docs/specifications/drdm.md, section 2.5.
        """
        if self.settings.sampling == "uniform":
            return Counter(self.sample().clients)
        present = [member.name for member in self.fleet.present]
        epsilon = self.settings.epsilon
        p = (1 - epsilon) * self.state.weights[self.places(present)] + epsilon / len(present)
        p /= p.sum()
        random = generator(self.fleet.seed, "server", t, "training cohort")
        if self.settings.sampling == "with-replacement":
            drawn = random.choice(len(present), self.m, p=p)
        else:
            weighty = min(self.m, int(np.count_nonzero(p)))
            drawn = random.choice(len(present), weighty, replace=False, p=p)
            others = np.setdiff1d(np.arange(len(present)), drawn)
            missing = min(self.m - weighty, others.size)
            drawn = np.concatenate([drawn, random.choice(others, missing, replace=False)])
        return Counter(present[i] for i in drawn)

    def snapshot_step(self, t: int) -> int:
        """Draw k', the number of local steps before the snapshot, uniformly from 1 to tau."""
        random = generator(self.fleet.seed, "server", t, "snapshot step")
        return int(random.integers(1, self.settings.local_steps, endpoint=True))

    def dual_cohort(self, t: int) -> Cohort:
        """Draw U^(s), m clients, uniformly and independently of D^(s)."""
        return self.fleet.sample(draw_name="dual cohort")

    async def trained(
        self, t: int, w: Vector, take: Callable[[str, Vector, Vector], None] = lambda *_: None, **values: Any
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Have D^(s) train from w (phase A); return mean_D(Delta_i) and mean_D(Delta'_i), each of shape (d,).

        Delta_i and Delta'_i are the displacements of client i after tau and after k' steps. A client drawn n_i times
        counts n_i times.

        Parameters
        ----------
        t
            Number of the round.
        w
            Global model, shape (d,).
        take
            Callback for each reply, with the client id, Delta_i and Delta'_i.
        **values
            Further values to send.
        """
        n, k = self.training_cohort(t), self.snapshot_step(t)
        sums = WeightedSums()

        def add(client: str, reply: Values) -> None:
            change = cast(Vector, reply["change"])
            snapshot_change = cast(Vector, reply.get("snapshot_change", change))
            sums.add(n[client], {"change": change, "snapshot_change": snapshot_change})
            take(client, change, snapshot_change)

        names = ("change",) if k == self.settings.local_steps else ("change", "snapshot_change")
        answered = await Cohort(self.fleet, tuple(n)).visit(
            "train", add, model=w, snapshot_step=k, returns=dict.fromkeys(names, w), **values
        )
        self.visited(answered)
        return sums.mean("change"), sums.mean("snapshot_change")

    def moved(self, w: Vector, displacement: NDArray[np.float64]) -> Vector:
        """Return Pi_W(w + displacement), shape (d,), in the dtype of ``w``."""
        return onto(self.settings.constraint, (w + displacement).astype(w.dtype, copy=False))

    async def dual_step(self, t: int, snapshot: Vector) -> None:
        """Collect losses of U^(s) at the snapshot, and set lambda <- Pi(lambda + tau gamma v) (phase B)."""
        state, tau = self.state, self.settings.local_steps
        state.mean_weights += (state.weights - state.mean_weights) / t
        state.mean_snapshot += ((snapshot - state.mean_snapshot) / t).astype(snapshot.dtype)
        reported = await self._losses(self.dual_cohort(t), snapshot, min_replies=0)
        await self.part_with_lost()
        reported = self.of_left(reported)
        if not reported:
            return
        v = self.estimate(reported)
        self._warn(t)
        state.weights = self.onto_simplex(state.weights + tau * state.dual_step_size * v)

    def estimate(self, reported: dict[str, float]) -> NDArray[np.float64]:
        """Return v, an unbiased estimate of the losses of all remaining clients, and store the reported losses.

        v_i = b_i + (N/m)(L_i - b_i) for i in U^(s), and b_i for others, where b_i is the last reported loss of client
        i, or always 0, and m the number of replies. Source: docs/specifications/drdm.md, section 2.6.

        Parameters
        ----------
        reported
            L_i, by client id.

        Returns
        -------
        NDArray[np.float64]
            Shape (N,), with 0 for lost clients.
        """
        b = np.zeros(len(self.place))
        if self.settings.dual_estimator == "control-variate":
            b = np.nan_to_num(self.state.losses, nan=0.0)
        asked = self.places(reported)
        losses = self.heard(reported)
        v = b.copy()
        v[asked] = b[asked] + self.clients / len(asked) * (losses - b[asked])
        return v

    async def _losses(self, cohort: Cohort, model: Vector, *, min_replies: int | None) -> dict[str, float]:
        replies = await cohort.ask("loss", model=model, returns={"loss": self.loss_expected}, min_replies=min_replies)
        return {client: float(cast(float, reply["loss"])) for client, reply in replies.items()}

    def _loudness(self, loss: float, dual_step_size: float) -> float:
        """Return tau gamma N l (docs/specifications/drdm.md, section 6.2, E11).

        For uniform lambda and equal losses, a value above 1 means that one dual step sets the weight of every client
        outside the loss cohort to zero.
        """
        return self.settings.local_steps * dual_step_size * self.clients * loss

    def _warn(self, t: int) -> None:
        loud = self._loudness(float(np.fmax.reduce(self.state.losses)), self.state.dual_step_size)
        if t == 1 and loud > 1 and self.m < self.clients:
            log.warning(
                "local_steps * dual_step_size * clients * loss is %.2g. Above 1, a client outside the loss cohort "
                "loses all of its weight in one round; set algorithm.dual_step_size so that the product is below "
                "%g",
                loud,
                _QUIET,
            )

    async def finish(self) -> None:
        """Set the model to the mean of all snapshots, if the settings say so."""
        if self.settings.output == "average":
            self.model = self.state.mean_snapshot.copy()

    def metrics(self) -> dict[str, float]:
        """Return the metrics of the base class, and the largest entry and entropy of the mean of lambda over rounds."""
        mean = self.state.mean_weights
        return super().metrics() | {"largest_mean_weight": float(mean.max()), "mean_weights_entropy": entropy(mean)}
