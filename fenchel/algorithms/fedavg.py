"""Federated averaging.

McMahan, Moore, Ramage, Hampson, Aguera y Arcas, "Communication-Efficient Learning of Deep Networks from
Decentralized Data", AISTATS 2017, Algorithm 1.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Literal, Self

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from fenchel.algorithms.client_half import ClientAlgorithm, answers
from fenchel.algorithms.server_half import Algorithm
from fenchel.common.accounting.sensitivity import DualDifference, LocalMap
from fenchel.common.arrays import Indices, Vector
from fenchel.common.objectives.regularizer import Zero
from fenchel.common.settings.algorithm import SMALLEST_STEP, AlgorithmSettings, Weighting
from fenchel.common.settings.participation import Sampler, Weighted
from fenchel.common.settings.uplink import Uplink
from fenchel.common.wire.phases import SAMPLES
from fenchel.common.wire.values import Values
from fenchel.fleet.cohort import Reduced


class LocalTrainingSettings(AlgorithmSettings):
    """Settings of local training: mini-batches and step sizes.

    The last methods describe the algorithm for the analysis of differential privacy (docs/specifications/fedpdm.md,
    section 2.8). A subclass with other steps, or with client state, overrides them.
    """

    treats_nonconvex: ClassVar[bool] = True

    local_epochs: PositiveInt | None = Field(
        None, description="passes over the shard in a round (E); either this or local_steps; default 1"
    )
    local_steps: PositiveInt | None = Field(None, description="mini-batch steps in a round, instead of epochs")
    batch_size: PositiveInt | None = Field(32, description="samples a step (B); null: the whole shard (B = infinity)")
    batches: Literal["passes", "epoch", "independent"] = Field(
        "passes",
        description="sampling of batches. passes: each pass over the shard in a new random order, cut into batches, "
        "the last of which may be shorter. epoch: batches of one random order, so that each sample is used at most "
        "once a round (local_steps * batch_size samples are needed). independent: distinct samples, drawn anew for "
        "each step",
    )
    step_size: PositiveFloat = Field(0.1, description="learning rate of the local steps (eta)")
    step_decay: Literal["constant", "inverse-sqrt", "inverse", "stages"] = Field(
        "constant",
        description="step size in round t: step_size, step_size / sqrt(t), or step_size / t; stages: divided by "
        "decay after every stage_rounds rounds",
    )
    stage_rounds: PositiveInt | None = Field(
        None, description="number of rounds with the same step size, with step_decay: stages"
    )
    decay: float | None = Field(None, ge=1, description="divisor of the step size with step_decay: stages; null: 3")

    @model_validator(mode="after")
    def _one_length(self) -> Self:
        if self.local_epochs is not None and self.local_steps is not None:
            raise ValueError(
                f"local_epochs: {self.local_epochs} and local_steps: {self.local_steps} given, but each alone sets the "
                "length of a round; leave one of them out"
            )
        if self.batches == "epoch" and self.local_steps is None:
            raise ValueError(
                "batches: epoch given without local_steps, the number of batches in a round; give local_steps, or use "
                "batches: passes"
            )
        return self

    @model_validator(mode="after")
    def _stages_have_a_length(self) -> Self:
        if (self.step_decay == "stages") != (self.stage_rounds is not None):
            raise ValueError(
                "step_decay: stages and stage_rounds (rounds with the same step size) go together: give both or neither"
            )
        if self.stage_rounds is None and self.decay is not None:
            raise ValueError(
                f"decay: {self.decay:g} given, but only step_decay: stages uses it, and step_decay is "
                f"{self.step_decay}; leave decay out"
            )
        return self

    def check_rounds(self, rounds: int, clients: int | None) -> None:
        """Reject numbers of rounds at which the step size vanishes.

        Raises
        ------
        ValueError
            If the step size of the last round is too small to change a model.
        """
        if self.step_decay != "stages":
            return
        try:
            last = self.step_size_at(rounds)
        except OverflowError:  # the divisor of the step size exceeds float64
            last = 0.0
        if last < min(self.step_size, SMALLEST_STEP):
            raise ValueError(
                f"rounds: {rounds} given, but algorithm.step_decay: stages lowers the step size of the last round to "
                f"{last:.3g}, too little to change the model; use a smaller decay, a larger stage_rounds, or fewer "
                "rounds"
            )

    def check_steps(self, name: str) -> None:
        """Reject local steps that diverge because of a proximal term, whose weight is the setting ``name``.

        Raises
        ------
        ValueError
            If the step size times the weight is 2 or more.
        """
        weight = getattr(self, name)
        if weight is not None and self.step_size * weight >= 2:
            raise ValueError(
                f"step_size {self.step_size:g} times {name} {weight:g} is {self.step_size * weight:g}, but local "
                "steps diverge from 2 on; lower one of them"
            )

    def step_size_at(self, t: int) -> float:
        """Return the step size of round ``t``, counted from 1."""
        if self.stage_rounds is not None:
            return float(self.step_size / (self.decay or 3.0) ** ((t - 1) // self.stage_rounds))
        powers = {"constant": 0.0, "inverse-sqrt": 0.5, "inverse": 1.0}
        return float(self.step_size / t ** powers[self.step_decay])

    def samples_a_step(self, samples: int) -> int:
        """Return the batch size b of a client with this number of samples."""
        return samples if self.batch_size is None else min(self.batch_size, samples)

    def steps(self, samples: int) -> int:
        """Return Q, the number of steps in a round, of a client with this number of samples."""
        return self.local_steps or (self.local_epochs or 1) * -(-samples // self.samples_a_step(samples))

    @property
    def pull(self) -> float:
        """Weight of the proximal term, which pulls local steps towards the global model; 0 by default."""
        return 0.0

    def gain(self, *, noisy: bool) -> Literal[1, 2]:
        """Return the Lipschitz constant of the upload as a function of the local model, 1 by default."""
        return 1

    def memory(self, *, noisy: bool) -> Literal["none", "public", "private"]:
        """Return the kind of client state that later rounds depend on: public if it follows from uploads."""
        return "none"

    def local_map(self, t: int, samples: int, *, noisy: bool) -> LocalMap:
        """Return the map from gradients to the upload of round ``t``, for a client with this number of samples."""
        return LocalMap(
            self.step_size_at(t), self.steps(samples), self.pull, self.gain(noisy=noisy), self.samples_a_step(samples)
        )


class WeightedAverageSettings(LocalTrainingSettings):
    """Settings of algorithms that average local models: their weights."""

    treats_regularizer: ClassVar[bool] = True

    weighting: Literal["samples", "uniform"] = Field(
        "samples", description="weights of the average: by samples (n_k / n), or equal"
    )

    def minimises(self, sampler: Sampler) -> Weighting | None:
        """Return the weights of the average; equal weights of clients drawn by samples amount to weights by samples."""
        if not isinstance(sampler, Weighted):
            return self.weighting
        return "samples" if self.weighting == "uniform" else None


class FedAvgSettings(WeightedAverageSettings):
    """Federated averaging (McMahan et al. 2017, Algorithm 1)."""

    uses_uplink: ClassVar[bool] = True
    uses_optimizer: ClassVar[bool] = True

    name: Literal["fedavg"] = "fedavg"
    regularizer_step: Literal["subgradient", "prox"] = Field(
        "subgradient",
        description="treatment of h (objective.regularizer) in a local step. subgradient: a step along a subgradient; "
        "prox: the proximal operator of eta h after the step, which is FedMiD",
    )

    @property
    def prox_penalty(self) -> float | None:
        """Penalty ``1/eta`` of FedMiD's proximal operator, for the largest step size; ``None`` without it."""
        return 1 / self.step_size if self.regularizer_step == "prox" else None


class WeightedSumSettings(LocalTrainingSettings):
    """Settings of algorithms that minimise ``F(w) = sum_i p_i f_i(w)``: the weights ``p_i``."""

    treats_regularizer: ClassVar[bool] = True

    weighting: Literal["samples", "uniform"] = Field(
        "samples",
        description="weights p_i of the clients' objectives: N n_i / n, for the mean loss of all samples, or 1",
    )

    def minimises(self, sampler: Sampler) -> Weighting | None:
        """Return the weights in the settings, or ``None`` if large clients are drawn more often."""
        return None if isinstance(sampler, Weighted) else self.weighting

    def check_link(self, uplink: Uplink, *, noisy: bool) -> None:
        """Reject noise if clients are weighted by their numbers of samples.

        Such weights scale gradients of large clients beyond the clipping bound for which the noise is calibrated.

        Raises
        ------
        ValueError
            If uploads carry noise and ``weighting`` is ``samples``.
        """
        if noisy and self.weighting == "samples":
            raise ValueError(
                f"algorithm: {self.name}: weighting: samples scales the gradients of clients with many samples beyond "
                "the clipping bound for which the noise is calibrated; use weighting: uniform"
            )

    def weight(self, samples: int, mean_samples: float) -> float:
        """Return ``p_i`` (docs/specifications/feddcd.md, section 1.6)."""
        return samples / mean_samples if self.weighting == "samples" else 1.0


class FedAvg(Algorithm):
    """Server half: each round a cohort trains locally from the global model, and the results are averaged."""

    Settings: ClassVar[type[AlgorithmSettings]] = FedAvgSettings
    settings: WeightedAverageSettings

    async def round(self, t: int) -> None:
        """Draw S_t; w_{t+1} = mean over k in S_t of ClientUpdate(k, w_t), weighted by n_k, or equally."""
        self.model = self.received(await self.trained(), "model").mean()

    async def trained(self, **more: type[int]) -> Reduced:
        """Have a cohort S_t train; return the weighted sums of local models, of n_k and of the values in ``more``."""
        return await self.sample().reduce(
            "train",
            model=self.broadcast,
            returns={"model": self.upload, "samples": SAMPLES, **more},
            weight="samples" if self.settings.weighting == "samples" else None,
            dtype=self.model.dtype,
        )


class LocalTraining(ClientAlgorithm):
    """Base class of client halves with mini-batch steps: batches, stochastic gradients, sensitivity."""

    settings: LocalTrainingSettings

    @property
    def clip(self) -> float | None:
        """Bound G on the norm of each sample's gradient, or ``None`` without clipping."""
        return None if self.uplink.protection is None else self.uplink.protection.clip_gradient

    def batches(self) -> Iterator[Indices]:
        """Draw this round's mini-batches: E epochs, or a number of steps, of batches of size B."""
        steps = self.settings.local_steps
        epochs = None if steps else self.settings.local_epochs or 1
        return self.objective.batches(
            self.generator("batches"),
            epochs=epochs,
            steps=steps,
            batch_size=self.settings.batch_size,
            draw=self.settings.batches,
        )

    def gradient(self, w: Vector, batch: Indices) -> Vector:
        """Return the stochastic gradient g_i(w) of the client's objective, shape (d,).

        Each sample's loss gradient is clipped to the norm :attr:`clip`, if there is one. A subgradient of h is added
        if the settings say so.

        Parameters
        ----------
        w
            Model, shape (d,).
        batch
            Rows of the shard.
        """
        f, h = self.objective, self.objective.regularizer
        g = f.batch_gradient(w, batch) if self.clip is None else f.clipped_gradient(w, batch, self.clip)
        if self.settings.takes_subgradient and not isinstance(h, Zero):
            g += h.subgradient(w)
        return g

    def sensitivity(self) -> float | None:
        """Return the L2 sensitivity of this round's upload, or ``None`` without differential privacy."""
        protection = self.uplink.protection
        if protection is None:
            return None
        return protection.sensitivity(self.local_map(), DualDifference())[0]

    def local_map(self) -> LocalMap:
        """Return the map from gradients to the upload of this round."""
        return self.settings.local_map(self.round, self.objective.samples, noisy=self.uplink.noisy)


class FedAvgClient(LocalTraining):
    """Client half: mini-batch gradient descent from the global model, without state."""

    @answers("train")
    def train(self, model: Vector) -> Values:
        """Run ClientUpdate(k, w): E epochs, or a number of steps, of batches of size B. Return w and n_k."""
        w, _ = self.descended(model)
        return {"model": self.send(w, around=model).wire, "samples": self.objective.samples}

    def descended(self, x: Vector) -> tuple[Vector, int]:
        """Take local steps from x; return the result, shape (d,), and the number of steps.

        A step is w <- w - eta (g_k(w) + mu (w - x)), or a step of the objective's optimiser along the same gradient.
        FedMiD then takes w <- prox_{eta h}(w).
        """
        w, steps = x, 0
        eta, mu = self.settings.step_size_at(self.round), self.settings.pull
        takes_prox = self.settings.prox_penalty is not None
        step, trained = self.objective.local_step(x, eta), self.objective.trained
        for batch in self.batches():
            g = self.gradient(w, batch)
            if mu:
                g[trained] += mu * (w - x)[trained]
            w = step(w, g)
            if takes_prox:
                w = self.objective.regularizer.prox(w, 1 / eta)
            steps += 1
        return w, steps
