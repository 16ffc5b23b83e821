"""Phases that the runtime itself asks, whatever the algorithm."""

from __future__ import annotations

from common.expectation import Expectation

EVALUATE = "fenchel.evaluate"
"""Evaluate a model on the client's shard and on its holdout; changes no state."""

EVALUATION: Expectation = {
    "loss_sum": float,
    "correct": int,
    "samples": int,
    "holdout_loss_sum": float,
    "holdout_correct": int,
    "holdout_samples": int,
}
"""What comes back: sums, so that they add up over clients; losses without the l2 term."""
