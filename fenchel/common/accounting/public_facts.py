"""What everybody may know of a run, and a promise of differential privacy rests on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

Support: TypeAlias = Literal["dense", "top-k", "random", "shared-random", "public-top-k"]
"""Which coordinates clients send: all, or those of a sparsifier."""

Batches: TypeAlias = Literal["epoch", "independent", "full"]
"""How a client draws its batches (docs/specifications/fedpdm.md, section 2.2)."""


@dataclass(frozen=True)
class PrivacyFacts:
    """A run as one client meets it.

    Attributes
    ----------
    support
        Which coordinates are sent.
    error_feedback
        Whether what was not sent is remembered and sent later (EF21).
    fixed_steps
        Whether the number of local steps is fixed, not decided by a stopping rule.
    batches
        How batches are drawn.
    dual
        Whether clients keep a dual variable, or another state that enters the next upload, and whether it follows from
        what they sent (``public``) or also from what they did not send (``private``).
    aggregator
        How the server combines uploads.
    steps
        ``Q``, local steps of a round.
    batch_size
        ``b``.
    samples
        ``n_i``, of this client; the fewest of any client, where no client is meant.
    fixed_seeds
        Whether noise and batches follow from the run's seed: a test mode.
    beta
        Weight of the weakly convex regulariser, which is not clipped.
    convex_scalar
        Whether the loss is convex in one number ``a^T x``.
    curvature
        Largest second derivative of the loss by its scores: 1/4 for logistic, 1/2 for softmax, 1 for squares; ``None``
        where nobody knows a bound.
    penalty
        ``rho``: the pull towards the global model.
    step_size
        ``eta``, the largest of any round.
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
        """``Q b``: samples that a round draws."""
        return self.steps * self.batch_size
