"""An algorithm whose clients prove to each other, round after round, that they share secrets.

Each returns an HMAC, keyed by all of its secrets, of the same challenge. The server cannot make one, but sees
whether all are equal, now and in every later round, also after a restart.
"""

from __future__ import annotations

import hmac
import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from fenchel.algorithms.client_half import ClientAlgorithm, ClientContext, answers
from fenchel.algorithms.server_half import Algorithm, ServerContext
from fenchel.common.arrays import Array, Vector
from fenchel.common.settings.algorithm import AlgorithmSettings
from fenchel.common.wire.schema import ArraySpec, Expectation
from fenchel.common.wire.values import Values

CHALLENGE = b"the same in every round"


class VaultSettings(AlgorithmSettings):
    """Settings of the vault."""

    bits: int = 2048
    nap: float = 0.0
    """Seconds that a client takes for each phase."""

    @property
    def key_bits(self) -> int:
        return self.bits


class Vault(Algorithm):
    """Server half."""

    @dataclass
    class State(Algorithm.State):
        """Keeps the proof of the first round."""

        proof: Array

    Settings = VaultSettings

    def __init__(self, conduct: ServerContext) -> None:
        super().__init__(conduct)
        self.public_key = conduct.public_key

    def initial_state(self, model: Vector) -> Any:
        return self.State(model, np.zeros(0, np.uint8))

    async def round(self, t: int) -> None:
        wanted: Expectation = {"proof": ArraySpec(np.uint8, (32,)), "fingerprint": str}
        replies = await self.fleet.all().ask("prove", returns=wanted)
        proofs = {np.asarray(reply["proof"]).tobytes() for reply in replies.values()}
        if t > 1:
            proofs.add(self.state.proof.tobytes())
        if len(proofs) != 1 or len(replies) != len(self.fleet.members):
            raise AssertionError(f"round {t}: {len(replies)} clients with {len(proofs)} different proofs")
        keys = {reply["fingerprint"] for reply in replies.values()}
        if self.public_key is not None and keys != {self.public_key.fingerprint}:
            raise AssertionError(f"round {t}: the clients' key is not the one that the server was given")
        self.state.proof = np.frombuffer(proofs.pop(), np.uint8).copy()


class VaultClient(ClientAlgorithm):
    """Client half. It has no state, so that its journal is empty: what it keeps are its secrets."""

    settings: VaultSettings

    def __init__(self, place: ClientContext) -> None:
        super().__init__(place)
        if place.secrets is None:
            raise AssertionError("the algorithm was set up without its secrets")
        self.shared = place.secrets

    @answers("prove")
    def prove(self) -> Values:
        time.sleep(self.settings.nap)
        proof = hmac.digest(self.shared.to_text().encode(), CHALLENGE, "sha256")
        fingerprint = self.shared.private_key.public.fingerprint
        return {"proof": np.frombuffer(proof, np.uint8), "fingerprint": fingerprint}
