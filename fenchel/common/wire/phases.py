"""Phases of the runtime itself, which every algorithm has, and the schemas of their replies."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from fenchel.common.wire.schema import ArraySpec, Expectation, NumberSpec

SAMPLES = NumberSpec(int, minimum=1)
"""Schema of the number of a client's training samples, of which none can join without one."""

EVALUATE = "fenchel.evaluate"
"""Phase in which a client evaluates a model on its shard and its holdout. It changes no state."""

EVALUATION: Expectation = {
    "loss_sum": float,
    "correct": int,
    "samples": SAMPLES,
    "holdout_loss_sum": float,
    "holdout_correct": int,
    "holdout_samples": NumberSpec(int, minimum=0),
}
"""Schema of an evaluation. Its values are sums, which add up over clients; losses exclude the l2 term."""


LEVELS: Expectation = {"levels": int}
"""Additional schema if the server has refined the score bins: number of refinements that the client has applied."""


# The secret exchange (fenchel/keys/secret_exchange.py) has three phases before an algorithm's start.

OFFER = "fenchel.secrets.offer"
"""Phase in which a client offers a public key, with which others can seal secrets for it."""

SEAL = "fenchel.secrets.seal"
"""Phase in which the designated client makes the secrets and seals them for each of the others.

Its instruction has a value ``CLIENT/NAME`` for each NAME of each client's offer.
"""

ACCEPT = "fenchel.secrets.accept"
"""Phase in which a client opens its sealed box and keeps the secrets."""

EXCHANGE = frozenset({OFFER, SEAL, ACCEPT})

RUNTIME = EXCHANGE | {EVALUATE}
"""All phases of the runtime."""

OFFERED: Expectation = {
    "public_key": ArraySpec(np.uint8, (32,)),
    "certificate": str,
    "signature": ArraySpec(np.uint8, (None,)),
}
"""Schema of an offer: an X25519 public key, the client's certificate, and the client's signature of the key."""

BOX: Expectation = {"box": ArraySpec(np.uint8, (None,), form="sealed"), "signature": ArraySpec(np.uint8, (None,))}
"""Schema of a sealed box for one client, with its sender's signature."""

SENT: Expectation = {"certificate": str, "fingerprint": str}
"""Schema of the values beside the boxes: the sender's certificate, and the fingerprint of the secrets."""

ACCEPTED: Expectation = {"fingerprint": str}
"""Schema of the reply of a client that has received its secrets: their fingerprint."""


def grouped_in(bins: int) -> Expectation:
    """Return the schema of the score groups that clients return beside :data:`EVALUATION`.

    A group consists of at least one bin (:mod:`fenchel.common.objectives.score_groups`), so a client has at most
    ``bins`` groups.
    """
    return {
        prefix + kind: ArraySpec(np.int64, (None, 3), most=bins)
        for prefix in ("", "holdout_")
        for kind in ("positives", "negatives")
    }


def sealed_for(clients: Iterable[str]) -> Expectation:
    """Return the schema of the designated client's reply, which contains one sealed box for each of ``clients``."""
    boxes = {f"{client}/{name}": expected for client in clients for name, expected in BOX.items()}
    return {**SENT, **boxes}
