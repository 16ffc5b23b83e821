"""Public facts of a run on which its guarantee of differential privacy depends."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

Support: TypeAlias = Literal["dense", "top-k", "random", "shared-random", "public-top-k"]
"""Coordinates that clients send: all, or those of a sparsifier."""

Batches: TypeAlias = Literal["epoch", "independent", "full"]
"""Drawing of a client's batches (docs/specifications/fedpdm.md, section 2.2)."""


@dataclass(frozen=True)
class PrivacyFacts:
    """Public facts of a run for one client.

    Attributes
    ----------
    support
        Kind of index set of the coordinates that are sent.
    error_feedback
        Whether the client keeps the unsent remainder and sends it later (EF21).
    fixed_steps
        Whether the number of local steps is fixed, not decided by a stopping rule.
    batches
        Drawing of batches.
    dual
        State of the client that enters its next upload, such as a dual variable: ``public`` if it follows from earlier
        uploads alone, ``private`` otherwise, and ``none`` if there is no such state.
    aggregator
        Kind of the server's aggregator.
    steps
        Number ``Q`` of local steps in a round.
    batch_size
        Number ``b`` of samples in a batch.
    samples
        Number ``n_i`` of the client's samples; without a specific client, the smallest number of any client.
    fixed_seeds
        Whether noise and batches follow from the run's seed, a test mode.
    beta
        Weight of the weakly convex regulariser, which is not clipped.
    convex_scalar
        Whether the loss is convex in one number ``a^T x``.
    curvature
        Largest second derivative of the loss in its scores: 1/4 for logistic, 1/2 for softmax, 1 for squares; ``None``
        if no bound is known.
    penalty
        Weight ``rho`` of the pull towards the global model.
    step_size
        Largest step size ``eta`` of any round.
    """

    support: Support
    error_feedback: bool
    fixed_steps: bool
    batches: Batches
    dual: Literal["none", "public", "private"]
    aggregator: Literal["sampled", "stale", "hybrid"]
    steps: int
    batch_size: int
    samples: int
    fixed_seeds: bool
    beta: float
    convex_scalar: bool
    curvature: float | None
    penalty: float
    step_size: float

    @property
    def drawn(self) -> int:
        """Number ``Q b`` of samples that a round draws."""
        return self.steps * self.batch_size
