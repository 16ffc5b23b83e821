"""FedPDM, client half; with noise DP-FedPDM, with sparsified messages BSDP-FedPDM.

Li, Huang, Wang, Chi, Quek, "Privacy-preserving Federated Primal-Dual Learning for Non-convex and Non-smooth Problems
with Model Sparsification", Algorithms 1 and 2 (FedPDM specification, sections 2.2 to 2.7).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from client.algorithm import Place, answers
from client.algorithms.fedavg import LocalTraining
from client.uplink import Sent
from common.algorithms.fedpdm import FedPDMSettings
from common.arrays import Vector
from common.privacy.sensitivity import DualDifference
from common.values import Values


class FedPDMClient(LocalTraining):
    """Keeps the dual variable of the constraint that its local model equals the global one."""

    @dataclass
    class State:
        """What a client keeps.

        Attributes
        ----------
        dual
            lambda_i, shape (d,); at a solution the gradient of f_i.
        mirrored
            What the server has of this client's upload, shape (d,), where it keeps that; else empty.
        difference
            By how much the dual variable may differ, in norm, were one sample another one: what the sensitivity of
            a private dual variable grows from (FedPDM specification, section 3.3, item 1).
        """

        dual: Vector
        mirrored: Vector
        difference: float

    settings: FedPDMSettings

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self.aggregator = self.settings.aggregates(noisy=self.uplink.noisy)
        self.dual_is_public = self.settings.dual_is_public(noisy=self.uplink.noisy)

    def initial_state(self) -> Any:
        """lambda_i = 0; the server begins with the initial model in place of what a client sends."""
        mirrors = self.aggregator == "stale" or self.settings.error_feedback == "ef21"
        initial = self.objective.initial(self.seed)
        return self.State(np.zeros_like(initial), initial if mirrors else initial[:0], 0.0)

    def sensitivity(self) -> float | None:
        """Return how far one sample can move the upload, and carry on how far it can move the dual variable."""
        protection = self.uplink.protection
        if protection is None:
            return None
        sensitivity, after = protection.sensitivity(self.local_map(), DualDifference(self.state.difference))
        self.state.difference = after.value
        self.largest = max(self.largest, after.value)  # a private dual variable is at most so long
        return sensitivity

    @answers("solve")
    def solve(self, model: Vector) -> Values:
        """Descend from x0 on f_i(x) - <lambda_i, x> + (rho/2) ||x - x0||^2; renew lambda_i; send y_i.

        Parameters
        ----------
        model
            x0, as everybody knows it, shape (d,).
        """
        x0, state, rho = model, self.state, self.settings.penalty
        x, steps = self._local(x0)
        dual = state.dual + rho * (x0 - x)  # (8c)
        if self.aggregator == "hybrid":
            sent = self.send(x, around=x0)
            state.dual[sent.coordinates] += rho * (x0[sent.coordinates] - sent.values)
            return {"upload": sent.wire, "steps": steps}
        y = x - dual / rho  # (8d)
        sent, y_sent = self._sent(y, x0)
        if self.dual_is_public:
            chosen = sent.coordinates
            state.dual[chosen] = (state.dual[chosen] + rho * (x0[chosen] - y_sent)) / 2
        else:
            state.dual = dual
        return {"upload": sent.wire, "steps": steps}

    def _local(self, x0: Vector) -> tuple[Vector, int]:
        """Algorithm 1, lines 4 to 8: return x_i, and Q_i."""
        eta, rho, nu = self.settings.step_size_at(self.round), self.settings.penalty, self.settings.tolerance
        x, steps = x0.copy(), 0
        for batch in self.batches():
            g = self.gradient(x, batch) - self.state.dual + rho * (x - x0)
            x -= eta * g  # (8a)
            steps += 1
            if nu is not None and g @ g <= nu:  # before the step that was just taken, as in the paper
                break
        return x, steps

    def _sent(self, y: Vector, x0: Vector) -> tuple[Sent, Vector]:
        """Send y_i, or its change where the server keeps it; return also y_i on the coordinates that were sent."""
        mirrored = self.state.mirrored
        if not mirrored.size:
            sent = self.send(y, around=x0)
            return sent, sent.values
        if self.settings.error_feedback == "ef21":
            sent = self.send(y - mirrored, around=x0)
        else:
            sent = self.send(y, around=x0, minus=mirrored)
        mirrored[sent.coordinates] += sent.values
        return sent, mirrored[sent.coordinates]
