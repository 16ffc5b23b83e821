"""Base of the AUC algorithms, which proceed in stages (docs/specifications/codasca.md, section 2).

The point is u = (w, a, b, alpha), shape (n,) with n = d + 3; v = (w, a, b) descends and alpha ascends. Vectors of
directions have the sign of G = (grad_v F, -grad_alpha F), so that all entries are treated alike.
"""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fenchel.algorithms.auc.staged_settings import StagedSettings
from fenchel.algorithms.auc.stages import Stage
from fenchel.algorithms.client_half import ClientAlgorithm, ClientContext, answers
from fenchel.algorithms.fixed_fleet import FixedFleet, WeightedSums
from fenchel.algorithms.server_half import ServerContext
from fenchel.common.arrays import Indices, Vector
from fenchel.common.data.source import DataSource
from fenchel.common.errors import DataError, LostStateError, PayloadError, RunStoppedError
from fenchel.common.objectives.auc import AUXILIARY
from fenchel.common.objectives.binary import BinaryObjective, require_scores
from fenchel.common.wire.values import Values
from fenchel.fleet.cohort import Cohort

log = logging.getLogger("fenchel.server")


class Staged(FixedFleet):
    """Base class of server halves that run in stages. A subclass defines a round of communication."""

    @dataclass
    class State(FixedFleet.State):
        """Global point, and position of the run in its stages.

        Attributes
        ----------
        auxiliary
            (a, b, alpha), shape (3,).
        centre
            v_0, the initial point of the stage, shape (n,); its last entry is not used.
        samples, positives
            n_k and n_k^+ of all clients, shape (N,), in the order of client ids.
        prior
            Class prior p, which is fixed after the set-up, unless a client is lost.
        share
            q, the share of positive samples among those drawn, averaged with weights lambda_k. It equals p unless the
            settings give p.
        weights
            lambda_k of all clients, shape (N,), float64, in the order of client ids, with sum 1.
        stage
            Number s of the stage, from 1; 0 before the first.
        done
            Number of completed rounds in the stage; 0 after its last.
        value
            Mean of F over the local steps of the last round and over the clients.
        """

        auxiliary: Vector
        centre: Vector
        samples: NDArray[np.int64]
        positives: NDArray[np.int64]
        prior: float
        share: float
        weights: NDArray[np.float64]
        stage: int
        done: int
        value: float

    settings: StagedSettings
    state: State
    figures: ClassVar[tuple[str, ...]] = ("stage", "minmax_value", "a", "b", "alpha")
    fixed_fleet: ClassVar[str] = "the class prior and the clients' weights are settled once, at the start"

    def __init__(self, context: ServerContext) -> None:
        super().__init__(context)
        require_scores(context.objective, self.settings.name)

    def check(self, data: DataSource | None) -> None:
        """Reject data with samples of only one class."""
        if data is None or data.positives is None:
            return
        held = data.trained_on(len(self.fleet.members))
        samples = np.array([len(rows) for rows in held], np.int64)
        positives = np.array([int(data.positives[rows].sum()) for rows in held], np.int64)
        self._share_of_positives(samples, positives)

    def beginning(self, model: Vector) -> dict[str, Any]:
        """Return the fields of :class:`State` before the set-up, with a = b = alpha = 0."""
        members = len(self.fleet.members)
        return super().beginning(model) | {
            "auxiliary": np.zeros(AUXILIARY, model.dtype),
            "centre": np.zeros(model.size + AUXILIARY, model.dtype),
            "samples": np.zeros(members, np.int64),
            "positives": np.zeros(members, np.int64),
            "prior": 0.0,
            "share": 0.0,
            "weights": np.zeros(members),
            "stage": 0,
            "done": 0,
            "value": 0.0,
        }

    @property
    def point(self) -> Vector:
        """Global point u = (w, a, b, alpha), shape (n,), in a new array."""
        return np.concatenate([self.state.model, self.state.auxiliary])

    @point.setter
    def point(self, u: Vector) -> None:
        u = u.astype(self.state.model.dtype, copy=False)
        self.state.model, self.state.auxiliary = u[:-AUXILIARY].copy(), u[-AUXILIARY:].copy()

    def weights(self) -> dict[str, float]:
        """Return lambda_k by client id."""
        return dict(zip(self.fleet.members, self.state.weights.tolist(), strict=True))

    async def start(self) -> None:
        """Compute the class prior p = sum_k lambda_k p_k, with the lambda_k that average the models.

        This is the set-up phase of docs/specifications/codasca.md, section 1.5.

        Raises
        ------
        PayloadError
            If a client reports impossible numbers of samples.
        DataError
            If all samples have the same class.
        """
        state, all_clients = self.state, self.fleet.all()
        state.lost = self.lost()
        replies = await all_clients.ask(
            "count", returns={"samples": int, "positives": int}, min_replies=len(all_clients)
        )
        samples, positives = (np.array(replies.values_of(name), np.int64) for name in ("samples", "positives"))
        for client, n, n_positive in zip(replies, samples.tolist(), positives.tolist(), strict=True):
            shard = self.fleet.members[client].shard
            described = n if shard is None else shard.samples
            if n != described or not 0 <= n_positive <= n or n == 0:
                raise PayloadError(
                    f"client {client} reports {n} samples, {n_positive} of them positive, but joined with "
                    f"{described} samples. The number of samples must stay above 0 and constant during a run; "
                    "check whether the client's data file was changed"
                )
        state.samples[~state.lost], state.positives[~state.lost] = samples, positives
        self._weigh()

    def _weigh(self) -> None:
        """Set the lambda_k of the remaining clients, q and p."""
        state, left = self.state, ~self.state.lost
        weights, state.share = self._share_of_positives(state.samples[left], state.positives[left])
        state.weights = np.zeros(left.size)
        state.weights[left] = weights
        state.prior = state.share if self.settings.prior is None else self.settings.prior

    def _share_of_positives(
        self, samples: NDArray[np.int64], positives: NDArray[np.int64]
    ) -> tuple[NDArray[np.float64], float]:
        """Return lambda_k, shape (K,), and q for clients with these numbers of samples and positive samples."""
        counts = samples if self.settings.weighting == "samples" else np.ones_like(samples)
        weights = counts / counts.sum()
        rates = [
            self.settings.positive_rate(int(n), int(n_positive))
            for n, n_positive in zip(samples, positives, strict=True)
        ]
        share = float(weights @ np.array(rates))
        if not 0 < share < 1:
            whose = "all clients" if len(samples) == len(self.fleet.members) else "the clients that are left"
            raise DataError(
                f"{int(positives.sum())} of the {int(samples.sum())} samples of {whose} are positive, but the area "
                "under the ROC curve needs samples of both classes; check objective.positive and the labels"
            )
        return weights, share

    async def part_with_lost(self) -> bool:
        """Restrict the problem to the remaining clients; return whether clients were lost.

        With ``participation.on_lost_state: continue``, lambda_k and q become those of the remaining clients. So does p,
        unless the settings give it (``prior``).
        """
        names, state = self.newly_lost(), self.state
        if names is None:
            return False
        before = state.prior
        self._weigh()
        log.warning(
            "clients are lost: %s. The run now maximises the area under the ROC curve of the remaining %d "
            "clients, and the class prior changes from %.4g to %.4g",
            ", ".join(names),
            self.clients,
            before,
            state.prior,
        )
        return True

    def stage(self) -> Stage:
        """Return the present stage. Raise ``RunStoppedError`` if it cannot be run."""
        try:
            return self.settings.checked_stage(self.state.stage, self.state.prior, self.clients)
        except ValueError as error:
            raise RunStoppedError(str(error), round=self.fleet.round) from None

    async def round(self, t: int) -> None:
        """Run a round of the present stage. The first round of a stage sets the centre, the last ends the stage."""
        await self.part_with_lost()
        state = self.state
        begins = state.done == 0
        if begins:
            state.stage += 1
            state.centre = self.point
        stage = self.stage()
        ends = state.done + 1 >= stage.rounds
        await self.communicate(stage, begins=begins, ends=ends)
        state.done = 0 if ends else state.done + 1

    @abstractmethod
    async def communicate(self, stage: Stage, *, begins: bool, ends: bool) -> None:
        """Run one round of communication.

        Parameters
        ----------
        stage
            Present stage.
        begins, ends
            Whether this is the first and the last round of the stage.
        """

    async def visit(
        self, cohort: Cohort, phase: str, returns: Mapping[str, Any], values: Mapping[str, Any], *, all_clients: bool
    ) -> tuple[WeightedSums, Cohort]:
        """Send a request to a cohort; return the replies summed with weights lambda_k, and the clients that answered.

        Parameters
        ----------
        all_clients
            Whether the run stops if any client of the fleet does not answer.

        Raises
        ------
        LostStateError
            If ``all_clients`` is true, and the cohort lacks a client.
        """
        missing = sorted(self.fleet.members.keys() - set(cohort.clients))
        if all_clients and missing:
            raise LostStateError(
                f"{', '.join(missing)} can no longer take part, but these settings of {self.settings.name} need "
                "all clients in every round. Begin a new run with settings for partial participation (codasca: "
                "wire: paper, others: output: last)",
                round=self.fleet.round,
                phase=phase,
            )
        least = self.clients if all_clients else None
        return await self.summed(cohort, phase, self.weights(), returns=returns, min_replies=least, **values)

    async def tell_others(self, answered: Cohort, u: Vector) -> None:
        """Send the stage's initial point to clients whose reply to its first round did not count."""
        others = self.fleet.all().only(lambda client: client not in answered.clients)
        if others.clients:
            await others.tell("begin_stage", point=u)

    def metrics(self) -> dict[str, float]:
        """Return the number of the stage, the mean of F in the last round, a, b and alpha."""
        a, b, alpha = self.state.auxiliary.tolist()
        state = self.state
        return {"stage": float(state.stage), "minmax_value": state.value, "a": a, "b": b, "alpha": alpha}


class StagedClient(ClientAlgorithm):
    """Client half with counts of samples, mini-batches and the proximal term."""

    settings: StagedSettings
    objective: BinaryObjective

    def __init__(self, context: ClientContext) -> None:
        super().__init__(context)
        require_scores(context.objective, context.settings.name)

    @property
    def length(self) -> int:
        """Length n = d + 3 of a point."""
        return self.objective.dimension + AUXILIARY

    def zeros(self) -> Vector:
        """Return zeros of shape (n,), in the dtype of the objective."""
        return np.zeros(self.length, self.objective.dtype)

    @answers("count")
    def count(self) -> Values:
        """Return the numbers of samples n_k and of positive samples n_k^+ (set-up phase)."""
        return {"samples": self.objective.samples, "positives": self.objective.positives}

    def batches(self, steps: int) -> Iterator[Indices]:
        """Draw this round's batches, of size B."""
        if self.settings.batches == "stratified":
            return self._stratified(steps)
        return self.objective.batches(
            self.generator("batches"), steps=steps, batch_size=self.settings.batch_size, draw=self.settings.batches
        )

    def _stratified(self, steps: int) -> Iterator[Indices]:
        """Draw batches with a fixed number of positive samples, with repetition only if there are too few."""
        objective, random = self.objective, self.generator("batches")
        objective.require(objective.samples)
        size = self.settings.batch_size or objective.samples
        wanted = self.settings.positives_of_batch(objective.samples, objective.positives)
        classes = np.flatnonzero(objective.positive), np.flatnonzero(~objective.positive)
        for _ in range(steps):
            yield np.concatenate(
                [
                    random.choice(rows, count, replace=count > rows.size)
                    for rows, count in zip(classes, (wanted, size - wanted), strict=True)
                    if count
                ]
            )

    def pulled(self, g: Vector, u: Vector, centre: Vector) -> Vector:
        """Add gamma (v - v_0) to the entries of ``g`` for v = (w, a, b), in place, and return ``g``."""
        gamma = self.settings.proximal_weight
        if gamma:
            g[:-1] += gamma * (u[:-1] - centre[:-1])
        return g
