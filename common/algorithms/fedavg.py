"""Settings of FedAvg, and what it shares with other algorithms whose clients take mini-batch steps."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from common.algorithms import AlgorithmSettings


class LocalTrainingSettings(AlgorithmSettings):
    """Which mini-batches a client uses in a round, and how long a step is."""

    local_epochs: PositiveInt | None = Field(
        None, description="passes over the shard in a round (E); either this or local_steps; default 1"
    )
    local_steps: PositiveInt | None = Field(
        None, description="mini-batch steps in a round, instead of epochs"
    )
    batch_size: PositiveInt | None = Field(
        32, description="samples a step (B); null: the whole shard (B = infinity)"
    )
    step_size: PositiveFloat = Field(0.1, description="learning rate of the local steps (eta)")
    step_decay: Literal["constant", "inverse-sqrt", "inverse"] = Field(
        "constant", description="step size in round t: step_size, step_size / sqrt(t), or step_size / t"
    )

    @model_validator(mode="after")
    def _one_length(self) -> Self:
        if self.local_epochs is not None and self.local_steps is not None:
            raise ValueError("give local_epochs or local_steps, not both")
        return self

    def step_size_at(self, t: int) -> float:
        """Step size of round ``t``, counted from 1."""
        powers = {"constant": 0.0, "inverse-sqrt": 0.5, "inverse": 1.0}
        return float(self.step_size / t ** powers[self.step_decay])


class WeightedAverageSettings(LocalTrainingSettings):
    """For algorithms that average local models: how much each counts."""

    weighting: Literal["samples", "uniform"] = Field(
        "samples", description="average weighted by samples (n_k / n), or with equal weights"
    )


class FedAvgSettings(WeightedAverageSettings):
    """Federated averaging (McMahan et al. 2017, Algorithm 1)."""

    name: Literal["fedavg"] = "fedavg"


class WeightedSumSettings(LocalTrainingSettings):
    """For algorithms that minimise ``F(w) = sum_i p_i f_i(w)``: what the weights ``p_i`` are."""

    weighting: Literal["samples", "uniform"] = Field(
        "samples",
        description="what is minimised: each client's objective weighted by p_i = N n_i / n, which gives the mean "
        "loss of all samples, or with p_i = 1, the sum of the clients' objectives",
    )

    def weight(self, samples: int, mean_samples: float) -> float:
        """Return ``p_i`` (FedDCD specification, section 1.6).

        Parameters
        ----------
        samples
            n_i, of this client.
        mean_samples
            n / N, of all clients.
        """
        return samples / mean_samples if self.weighting == "samples" else 1.0
