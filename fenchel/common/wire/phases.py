"""Phases that the runtime itself asks, whatever the algorithm."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from fenchel.common.wire.schema import ArraySpec, Expectation

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


LEVELS: Expectation = {"levels": int}
"""Comes back, too, where the server has divided the line of scores further: how often the client has."""


# The exchange of secrets (fenchel/keys/secret_exchange.py): three phases before an algorithm's start.

OFFER = "fenchel.secrets.offer"
"""Give a public key to which others can seal secrets for this client."""

SEAL = "fenchel.secrets.seal"
"""Make the secrets and seal them for each of the others; takes ``CLIENT/NAME`` for each NAME of an offer."""

ACCEPT = "fenchel.secrets.accept"
"""Open the box that was sealed for this client, and keep what is in it."""

EXCHANGE = frozenset({OFFER, SEAL, ACCEPT})

RUNTIME = EXCHANGE | {EVALUATE}
"""All of them."""

OFFERED: Expectation = {
    "public_key": ArraySpec(np.uint8, (32,)),
    "certificate": str,
    "signature": ArraySpec(np.uint8, (None,)),
}
"""An offer: an X25519 public key, the client's certificate, and the signature of its key."""

BOX: Expectation = {"box": ArraySpec(np.uint8, (None,), form="sealed"), "signature": ArraySpec(np.uint8, (None,))}
"""A sealed box for one client, and its sender's signature."""

SENT: Expectation = {"certificate": str, "fingerprint": str}
"""What comes with the boxes: their sender's certificate, and the fingerprint of the secrets, which tells nothing."""

ACCEPTED: Expectation = {"fingerprint": str}
"""What comes back from a client that has its secrets: their fingerprint."""


def grouped_in(bins: int) -> Expectation:
    """Return what clients return besides :data:`EVALUATION`, where they tell scores in groups.

    A group is a bin at least (:mod:`fenchel.common.objectives.score_groups`), so nobody can have more groups
    than bins.
    """
    return {
        prefix + kind: ArraySpec(np.int64, (None, 3), most=bins)
        for prefix in ("", "holdout_")
        for kind in ("positives", "negatives")
    }


def sealed_for(clients: Iterable[str]) -> Expectation:
    """Return what the client that seals for these others must return."""
    boxes = {f"{client}/{name}": expected for client in clients for name, expected in BOX.items()}
    return {**SENT, **boxes}
