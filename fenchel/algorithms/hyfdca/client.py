"""HyFDCA, client half.

Overman, Blum, Klabjan, "A Primal-Dual Algorithm for Hybrid Federated Learning", arXiv:2210.08106v3. Numbers of
algorithms are those of the paper. docs/algorithms/hyfdca.md lists the corrections. ``what_k`` is the paper's w_k with a
hat: the contribution of client k to the model, before the division by lambda N.
"""

from __future__ import annotations

import logging
import math

import numpy as np

from fenchel.algorithms.client_half import answers
from fenchel.algorithms.hyfdca.client_setup import HyFDCASetupClient
from fenchel.algorithms.hyfdca.settings import LINE_STEPS, SampledBlock, line_count, sampled
from fenchel.common.arrays import Indices, Vector
from fenchel.common.crypto.ciphertexts import Ciphertexts
from fenchel.common.errors import EncryptionError, PayloadError
from fenchel.common.objectives.coordinate import dual_step, dual_values, feasible, line_terms, theory_step
from fenchel.common.version import SAME_VERSION
from fenchel.common.wire.values import Value, Values

log = logging.getLogger("fenchel.client")

_CURVATURE_TERMS = 2  # w^T v and ||v||^2


class HyFDCAClient(HyFDCASetupClient):
    """Client half of HyFDCA, for a client that holds some features of some samples."""

    # Algorithm 1

    @answers("resume")
    def resume(self, dual: Vector | Ciphertexts) -> Values:
        """Replace alpha_k of a returning client by the server's alpha_0; send what_k (Algorithm 1, steps 2 and 3)."""
        self.state.dual = self._samples_in("dual").open(dual)
        return self._contribution(self.state.dual)

    @answers("inner_product")
    def inner_product(self, primal: Vector | Ciphertexts, blocks: Indices | None = None) -> Values:
        """Send enc(p), where p_{k,i} = x_{k,i}^T w_k (Algorithm 2)."""
        w = self._primal(primal)
        p = (self._problem.features @ w)[self.state.order]
        return {"share": self._samples_in("score").seal(p, blocks)}

    @answers("change_dual")
    def change_dual(
        self,
        step_size: float,
        damping: float,
        monitor: bool,
        scores: Vector | Ciphertexts | None = None,
        primal: Vector | Ciphertexts | None = None,
        divisors: Indices | None = None,
    ) -> Values:
        """Compute Delta = LocalDualMethod(alpha_k, z), and send enc(gamma / |B_i| Delta_i) for i in D_k (step 5).

        ``divisors``, shape (N_k,), replace the |B_i|.
        """
        state = self.state
        blocks, picked = self.picks()
        z = self._all_scores(scores, primal, blocks)
        change = np.zeros(len(state.dual))
        step = self._local_step(state.dual[picked], z[picked], picked, step_size, damping)
        self._check_range(state.dual[picked] + step)
        change[picked] = step_size / (state.holders if divisors is None else divisors)[picked] * step
        reply: dict[str, Value] = {"change": self._samples_in("dual").seal(change, blocks)}
        if monitor:
            reply["figures"] = self._figures(self.settings.monitored).seal(self._monitored(z))
        return reply

    def picks(self) -> SampledBlock:
        """Draw D_k of this round, as the server does (:meth:`SampledBlocks.of`)."""
        state = self.state
        return sampled(
            self.settings, self.seed, self.client, self.round, state.groups, state.sizes, state.quotas.tolist()
        )

    @answers("aggregate")
    def aggregate(
        self, dual: Vector | Ciphertexts, blocks: Indices | None = None, figures: Ciphertexts | None = None
    ) -> Values:
        """Set alpha_k <- alpha_0, and send what_k[m] = sum_i alpha_{k,i} x_{k,i,m} (steps 7 and 8, Algorithm 4)."""
        state = self.state
        state.dual = self._samples_in("dual").open(dual, blocks, others=state.dual)
        return {**self._contribution(state.dual), **self._revealed(figures)}

    # Outer line search (docs/specifications/hyfdca.md, section 3.3)

    @answers("propose")
    def propose(
        self, change: Vector | Ciphertexts, blocks: Indices | None = None, figures: Ciphertexts | None = None
    ) -> Values:
        """Store the proposed change delta; send sum_i delta_i x_{k,i} and the terms of the line search."""
        state = self.state
        state.change = self._samples_in("dual").open(change, blocks)
        terms = self._line_terms() / state.samples
        shares = {"terms": self._figures(len(terms)).seal(terms)}
        return {**self._contribution(state.change), **shares, **self._revealed(figures)}

    @answers("curvature")
    def curvature(self, change: Ciphertexts) -> Values:
        """Send shares of w^T v and ||v||^2, where v = A delta, with an encrypted primal."""
        v = self._primal_features.open(change) / self._scale
        w, held_by = self.state.primal, self.state.feature_holders
        terms = np.array([np.sum(w * v / held_by), np.sum(v * v / held_by)])
        return {"terms": self._figures(_CURVATURE_TERMS).seal(terms)}

    @answers("reveal")
    def reveal(self, figures: Ciphertexts, count: int) -> Values:
        """Decrypt ``count`` sums over all clients, which are disclosed to the server.

        A client cannot distinguish such sums from other ciphertexts. It therefore raises ``PayloadError`` for a number
        of sums that the protocol does not need.
        """
        needed = {self.settings.monitored, line_count(self._loss), _CURVATURE_TERMS}
        if count not in needed:
            raise PayloadError(
                f"the server requests the decryption of {count} sums, but the phases of this run need "
                f"{sorted(needed)}; nothing is decrypted{SAME_VERSION}"
            )
        return {"figures": self._figures(count).open(figures)}

    @answers("step")
    def step(self, step_size: float) -> None:
        """Set alpha_k += g delta, with the step size g of the line search."""
        self.state.dual = self._stepped(self.state.dual, self.state.change, step_size)

    @answers("advance")
    def advance(self, step_size: float) -> Values:
        """Apply the step and send the contribution, which the server cannot compute with an encrypted primal."""
        self.step(step_size)
        return self._contribution(self.state.dual)

    @answers("catch_up")
    def catch_up(self, change: Vector | Ciphertexts, step_size: float) -> Values:
        """Apply a step that this client has missed, and send the client's contribution."""
        delta = self._samples_in("dual").open(change)
        self.state.dual = self._stepped(self.state.dual, delta, step_size)
        return self._contribution(self.state.dual)

    # End of the run

    @answers("figures")
    def figures(self, scores: Vector | Ciphertexts | None = None, primal: Vector | Ciphertexts | None = None) -> Values:
        """Send shares of the objective and dual objective of the final model."""
        shares = self._monitored(self._all_scores(scores, primal, None))
        return {"figures": self._figures(len(shares)).seal(shares)}

    @answers("release")
    def release(self, primal: Ciphertexts) -> Values:
        """Decrypt w on the client's features, which discloses the final model to the server."""
        w = np.empty(len(self.state.feature_order))
        w[self.state.feature_order] = self._primal_features.open(primal) / self._scale
        return {"model": w}

    # Local computations

    def _local_step(self, dual: Vector, z: Vector, picked: Indices, step_size: float, damping: float) -> Vector:
        """Return Delta of the sampled entries, by Algorithm 3 or 5 (docs/specifications/hyfdca.md, section 2.6)."""
        problem, state = self._problem, self.state
        loss, targets = self._loss, problem.targets[state.order][picked]
        if self.settings.preset == "theory":
            trust = len(state.dual) / state.samples if self.settings.trust == "share" else 1.0
            return theory_step(loss, dual, z, targets, step_size, trust, problem.l2)
        norms = 1.0 if self.settings.preset == "paper" else state.norms[picked]
        return dual_step(loss, dual, z, targets, damping * norms / (problem.l2 * state.samples))

    def _monitored(self, z: Vector) -> Vector:
        """Return the client's shares of (1/N) sum_i l_i(z_i) and (1/N) sum_i -l_i*(-alpha_i).

        With an encrypted primal also of (lambda/2) ||w||^2, which the server knows otherwise.
        """
        state, targets = self.state, self._problem.targets[self.state.order]
        dual = feasible(self._loss, state.dual, targets)
        weight = 1 / (state.holders * state.samples)
        shares = [np.sum(weight * self._loss.value(z, targets)), np.sum(weight * -self._loss.conjugate(dual, targets))]
        if self.settings.protect_primal:
            shares.append(np.sum(0.5 * self._problem.l2 * state.primal**2 / state.feature_holders))
        return np.array(shares)

    def _revealed(self, figures: Ciphertexts | None) -> Values:
        """Return the monitored sums over all clients, decrypted for the server."""
        return {} if figures is None else {"figures": self._figures(self.settings.monitored).open(figures)}

    def _line_terms(self) -> Vector:
        """Return the client's share of the terms of D(alpha + g delta), before the division by N."""
        state, targets = self.state, self._problem.targets[self.state.order]
        dual = feasible(self._loss, state.dual, targets)
        parabola = line_terms(self._loss, dual, state.change, targets)
        if parabola is not None:
            linear, quadratic = parabola
            return np.array([np.sum(linear / state.holders), np.sum(quadratic / state.holders)])
        total = np.zeros(1 + len(LINE_STEPS))
        steps = np.concatenate([[0.0], LINE_STEPS])
        for held_by in np.unique(state.holders):
            among = state.holders == held_by
            total += dual_values(self._loss, dual[among], state.change[among], targets[among], steps) / held_by
        return total

    def _contribution(self, dual: Vector) -> Values:
        """Return sum_i alpha_{k,i} x_{k,i,m} for the client's features m (Algorithm 4)."""
        features = self._problem.features
        of_rows = np.empty(len(dual))
        of_rows[self.state.order] = dual
        what: Vector = features.T @ of_rows
        if not self.settings.protect_primal:
            return {"contribution": what}
        return {"contribution": self._primal_features.seal(what[self.state.feature_order])}

    def _all_scores(
        self, scores: Vector | Ciphertexts | None, primal: Vector | Ciphertexts | None, blocks: Indices | None
    ) -> Vector:
        """Return z_i = x_i^T w_0, shape (N_k,), from the server's sums, or from w_0 with whole samples."""
        if scores is None:
            if primal is None:
                raise PayloadError(
                    "the request contains neither scores nor the model to compute them from; do both sides run "
                    "the same version of Fenchel?"
                )
            own: Vector = (self._problem.features @ self._primal(primal))[self.state.order]
            return own
        return self._samples_in("score").open(scores, blocks)

    def _primal(self, value: Vector | Ciphertexts) -> Vector:
        """Return w_k in the order of the client's columns; store an encrypted one in aligned order."""
        if isinstance(value, np.ndarray):
            return value
        aligned = self._primal_features.open(value) / self._scale
        self.state.primal = aligned
        w = np.empty(len(aligned))
        w[self.state.feature_order] = aligned
        return w

    def _stepped(self, dual: Vector, change: Vector, step_size: float) -> Vector:
        stepped: Vector = dual + step_size * change
        return feasible(self._loss, stepped, self._problem.targets[self.state.order])

    def _check_range(self, dual: Vector) -> None:
        _, high = self._loss.domain
        limit = self.state.largest_dual
        if math.isinf(high) and self.settings.privacy == "paillier" and len(dual):
            largest = float(np.abs(dual).max())
            if not largest <= limit:
                log.error("%s: a dual variable would become %g, above its limit", self.client, largest)
                raise EncryptionError(
                    f"a dual variable of client {self.client} would exceed its limit of {limit:g}, which follows "
                    "from algorithm.encryption.largest_dual and the largest target. Raise largest_dual, or use "
                    "smaller steps (the client's log has the value)"
                )

    @property
    def _scale(self) -> float:
        """Divisor of contributions: lambda N."""
        return float(self._problem.l2 * self.state.samples)
