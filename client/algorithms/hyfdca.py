"""HyFDCA, client half.

Overman, Blum, Klabjan, "A Primal-Dual Algorithm for Hybrid Federated Learning", arXiv:2210.08106v3. Numbers
of algorithms are the paper's; corrections are those of the specification, which docs/algorithms/hyfdca.md lists.
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from client.algorithm import ClientAlgorithm, answers
from client.encryption import Clear, Encrypted, Envelope, entries
from client.paillier.cipher import Meter, Paillier
from client.pseudonyms import cell_pseudonyms, pseudonyms
from common.algorithms.hyfdca import (
    LINE_STEPS,
    HyFDCASettings,
    entries_of,
    layout_of,
    picked_units,
)
from common.arrays import Indices, Vector
from common.errors import EncryptionError, PayloadError, SettingsError
from common.objectives.coordinate import (
    dual_step,
    dual_values,
    feasible,
    line_terms,
    theory_step,
)
from common.objectives.linear import LinearObjective
from common.objectives.losses import MarginLoss
from common.payload import Ciphertexts, Value, Values

log = logging.getLogger("fenchel.client")

_PUBLIC_ALIGNMENT_KEY = b"privacy: none"  # pseudonyms of a plaintext run hide nothing
_RANGES = {
    "score": "inner products (algorithm.encryption.largest_score)",
    "dual": "dual variables (algorithm.encryption.largest_dual)",
    "norm": "squared norms of rows (algorithm.encryption.largest_norm)",
    "primal": "contributions to the model (their bound follows from the longest row)",
    "figure": "mean losses (their bound follows from algorithm.encryption.largest_score)",
}
_UNIT_NORM = 1 + 1e-9  # rows that were divided by their norm are as long as rounding makes them


class HyFDCAClient(ClientAlgorithm):
    """Holds some features of some samples; sees dual variables and inner products of its samples only."""

    settings: HyFDCASettings

    @dataclass
    class State:
        """What a client keeps; entries of samples are in aligned order (server/alignment.py).

        Attributes
        ----------
        dual
            alpha_k, shape (N_k,).
        change
            The latest proposed change of alpha_k, shape (N_k,); line search only.
        primal
            w_k, shape (M_k,) in the order of ``feature_order``; encrypted primal only.
        samples
            N, distinct samples of all clients.
        order
            Own rows in aligned order, shape (N_k,).
        sizes
            Samples in each own block, shape (B_k,).
        holders
            |B_n| of each sample, shape (N_k,).
        groups
            Sample group of each own block, shape (B_k,).
        quotas
            How many units are picked a round (:func:`common.algorithms.hyfdca.picked_units`).
        norms
            ||x_i||^2 over all holders, shape (N_k,).
        feature_order, feature_sizes, feature_holders
            The same for features; empty unless the primal is encrypted.
        layouts
            How values lie in ciphertexts, by what they are (:func:`common.algorithms.hyfdca.layout_numbers`).
        """

        dual: Vector
        change: Vector
        primal: Vector
        samples: int
        order: Indices
        sizes: Indices
        holders: Indices
        groups: Indices
        quotas: Indices
        norms: Vector
        feature_order: Indices
        feature_sizes: Indices
        feature_holders: Indices
        layouts: dict[str, Indices]

    def initial_state(self) -> State:
        """Return the state of a client that has not been aligned yet."""
        real, whole = np.empty(0), np.empty(0, np.int64)
        return self.State(
            real, real, real, 0, whole, whole, whole, whole, whole, real, whole, whole, whole, {}
        )

    @property
    def meter(self) -> Meter | None:
        """What was encrypted and decrypted so far; ``None`` in plaintext."""
        return None if self._cipher is None else self._cipher.meter

    # Setup (specification, section 2.2)

    @answers("introduce")
    def introduce(self) -> Values:
        """S1: say by pseudonyms which samples are held, and which features."""
        features = self._problem.features
        if not features.shape[0] or not features.shape[1]:
            raise SettingsError(
                f"client {self.client} has {features.shape[0]} samples of {features.shape[1]} features; "
                "HyFDCA needs some of both"
            )
        norms = _row_norms(features)
        longest = float(norms.max())
        identifiers = self.shard.identifiers
        cells = np.empty((0, 16), np.uint8)
        if self.settings.layout == "ragged" and self.settings.check_cells:
            rows, columns = features.nonzero()
            held = self._problem.features_held
            cells = cell_pseudonyms(
                self._alignment_key, identifiers, held, rows.astype(np.int64), columns.astype(np.int64)
            )
        return {
            "samples": pseudonyms(self._alignment_key, identifiers),
            "features": self._problem.features_held,
            "cells": cells,
            "key": self._public_key_bytes(),
            # The order of magnitude alone: the server needs it to lay out the ciphertexts.
            "norm_bits": math.ceil(math.log2(longest)) if longest else -1,
        }

    @answers("align")
    def align(
        self,
        samples: int,
        order: Indices,
        sizes: Indices,
        holders: Indices,
        groups: Indices,
        quotas: Indices,
        score_layout: Indices,
        dual_layout: Indices,
        figure_layout: Indices,
        norm_layout: Indices,
        primal_layout: Indices,
        feature_order: Indices,
        feature_sizes: Indices,
        feature_holders: Indices,
    ) -> Values:
        """S3, S4: take in where the own entries lie; share the squared norms of the own parts of rows."""
        count = len(order)
        self.state = self.State(
            dual=np.zeros(count),
            change=np.zeros(count),
            primal=np.zeros(len(feature_order)),
            samples=samples,
            order=order.copy(),
            sizes=sizes.copy(),
            holders=holders.copy(),
            groups=groups.copy(),
            quotas=quotas.copy(),
            norms=np.zeros(count),
            feature_order=feature_order.copy(),
            feature_sizes=feature_sizes.copy(),
            feature_holders=feature_holders.copy(),
            layouts={
                "score": score_layout.copy(),
                "dual": dual_layout.copy(),
                "figure": figure_layout.copy(),
                "norm": norm_layout.copy(),
                "primal": primal_layout.copy(),
            },
        )
        return {"norms": self._samples_in("norm").seal(_row_norms(self._problem.features)[order])}

    @answers("take_norms")
    def take_norms(self, norms: Vector | Ciphertexts) -> Values:
        """S4: learn ||x_i||^2 over all holders; report how many rows are longer than 1."""
        self.state.norms = self._samples_in("norm").open(norms)
        long = int(np.count_nonzero(self.state.norms > _UNIT_NORM))
        if long and self.settings.preset in ("paper", "theory"):
            log.warning(
                "%s: %d of %d rows are longer than 1 (the longest has norm %.3g), but the preset %s rests on "
                "rows of norm 1 at most and may diverge; set data.scale: unit-rows, or another preset",
                self.client,
                long,
                len(self.state.norms),
                math.sqrt(float(self.state.norms.max())),
                self.settings.preset,
            )
        return {"long_rows": long if self.settings.preset in ("paper", "theory") else 0}

    # Algorithm 1

    @answers("resume")
    def resume(self, dual: Vector | Ciphertexts) -> Values:
        """Steps 2 and 3, returning client: alpha_k <- alpha_0; contribute to the primal."""
        self.state.dual = self._samples_in("dual").open(dual)
        return self._contribution(self.state.dual)

    @answers("inner_product")
    def inner_product(self, primal: Vector | Ciphertexts, blocks: Indices | None = None) -> Values:
        """Algorithm 2: p_{k,i} = x_{k,i}^T w_k; send enc(p)."""
        w = self._primal(primal)
        p = (self._problem.features @ w)[self.state.order]
        return {"share": self._samples_in("score").seal(p[entries(self.state.sizes, blocks)], blocks)}

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
        """Step 5: Delta = LocalDualMethod(alpha_k, z); send enc(gamma / |B_i| Delta_i) for i in D_k."""
        state = self.state
        units, blocks = self._picked()
        picked = entries_of(state.sizes, units) if blocks is not None else units
        z = self._all_scores(scores, primal, blocks)
        change = np.zeros(len(state.dual))
        step = self._local_step(state.dual[picked], z[picked], picked, step_size, damping)
        self._check_range(state.dual[picked] + step)
        change[picked] = step_size / (state.holders if divisors is None else divisors)[picked] * step
        reply: dict[str, Value] = {
            "change": self._samples_in("dual").seal(change[entries(state.sizes, blocks)], blocks)
        }
        if monitor:
            reply["figures"] = self._figures(self._monitored_count).seal(self._monitored(z))
        return reply

    @answers("aggregate")
    def aggregate(
        self, dual: Vector | Ciphertexts, blocks: Indices | None = None, figures: Ciphertexts | None = None
    ) -> Values:
        """Steps 7 and 8: alpha_k <- alpha_0; what_k[m] = sum_i alpha_{k,i} x_{k,i,m} (Algorithm 4)."""
        state = self.state
        state.dual = state.dual.copy()
        state.dual[entries(state.sizes, blocks)] = self._samples_in("dual").open(dual, blocks)
        return {**self._contribution(state.dual), **self._revealed(figures)}

    # Outer line search (specification, section 3.3)

    @answers("propose")
    def propose(
        self,
        change: Vector | Ciphertexts,
        blocks: Indices | None = None,
        figures: Ciphertexts | None = None,
    ) -> Values:
        """Take in delta, not yet the new alpha; send sum_i delta_i x_{k,i} and what the line search needs."""
        state = self.state
        state.change = np.zeros(len(state.dual))
        state.change[entries(state.sizes, blocks)] = self._samples_in("dual").open(change, blocks)
        terms = self._line_terms() / state.samples
        shares = {"terms": self._figures(len(terms)).seal(terms)}
        return {**self._contribution(state.change), **shares, **self._revealed(figures)}

    @answers("curvature")
    def curvature(self, change: Ciphertexts) -> Values:
        """With an encrypted primal: shares of w^T v and ||v||^2, where v = A delta."""
        v = self._features_in("primal").open(change) / self._scale
        w, held_by = self.state.primal, self.state.feature_holders
        terms = np.array([np.sum(w * v / held_by), np.sum(v * v / held_by)])
        return {"terms": self._figures().seal(terms)}

    @answers("reveal")
    def reveal(self, figures: Ciphertexts, count: int) -> Values:
        """Decrypt ``count`` sums over all clients, which the server may know."""
        return {"figures": self._figures(count).open(figures)}

    @answers("step")
    def step(self, step_size: float) -> None:
        """alpha_k += g delta, with the step size g that the line search chose."""
        self.state.dual = self._stepped(self.state.dual, self.state.change, step_size)

    @answers("advance")
    def advance(self, step_size: float) -> Values:
        """Do the step, with an encrypted primal: its contribution cannot be computed by the server."""
        self.step(step_size)
        return self._contribution(self.state.dual)

    @answers("catch_up")
    def catch_up(self, change: Vector | Ciphertexts, step_size: float) -> Values:
        """Do a step that was made while this client was away."""
        delta = self._samples_in("dual").open(change)
        self.state.dual = self._stepped(self.state.dual, delta, step_size)
        return self._contribution(self.state.dual)

    # End

    @answers("figures")
    def figures(
        self, scores: Vector | Ciphertexts | None = None, primal: Vector | Ciphertexts | None = None
    ) -> Values:
        """Share objective and dual objective of the final model."""
        shares = self._monitored(self._all_scores(scores, primal, None))
        return {"figures": self._figures(len(shares)).seal(shares)}

    @answers("release")
    def release(self, primal: Ciphertexts) -> Values:
        """Decrypt w on the own features: the final model is released to the server."""
        w = np.empty(len(self.state.feature_order))
        w[self.state.feature_order] = self._features_in("primal").open(primal) / self._scale
        return {"model": w}

    # Mathematics

    def _local_step(
        self, dual: Vector, z: Vector, picked: Indices, step_size: float, damping: float
    ) -> Vector:
        """Algorithms 3 and 5, in one kernel (specification, 2.6): Delta for the picked samples."""
        problem, state = self._problem, self.state
        loss, targets = self._loss, problem.targets[state.order][picked]
        if self.settings.preset == "theory":
            trust = len(state.dual) / state.samples if self.settings.trust == "share" else 1.0
            return theory_step(loss, dual, z, targets, step_size, trust, problem.l2)
        norms = 1.0 if self.settings.preset == "paper" else state.norms[picked]
        return dual_step(loss, dual, z, targets, damping * norms / (problem.l2 * state.samples))

    def _monitored(self, z: Vector) -> Vector:
        """This client's share of (1/N) sum_i l_i(z_i) and (1/N) sum_i -l_i*(-alpha_i).

        And of (lambda/2) ||w||^2, if the primal is encrypted; otherwise the server knows it.
        """
        state, targets = self.state, self._problem.targets[self.state.order]
        dual = feasible(self._loss, state.dual, targets)
        weight = 1 / (state.holders * state.samples)
        shares = [
            np.sum(weight * self._loss.value(z, targets)),
            np.sum(weight * -self._loss.conjugate(dual, targets)),
        ]
        if self.settings.protect_primal:
            shares.append(np.sum(0.5 * self._problem.l2 * state.primal**2 / state.feature_holders))
        return np.array(shares)

    def _revealed(self, figures: Ciphertexts | None) -> Values:
        """The monitored figures, summed over all clients, which the server may know."""
        return {} if figures is None else {"figures": self._figures(self._monitored_count).open(figures)}

    def _line_terms(self) -> Vector:
        """This client's share of what D(alpha + g delta) is made of, before the division by N."""
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
            total += (
                dual_values(self._loss, dual[among], state.change[among], targets[among], steps) / held_by
            )
        return total

    def _contribution(self, dual: Vector) -> Values:
        """Algorithm 4: sum_i alpha_{k,i} x_{k,i,m} for the own features."""
        features = self._problem.features
        of_rows = np.empty(len(dual))
        of_rows[self.state.order] = dual
        what: Vector = features.T @ of_rows
        if not self.settings.protect_primal:
            return {"contribution": what}
        return {"contribution": self._features_in("primal").seal(what[self.state.feature_order])}

    def _all_scores(
        self,
        scores: Vector | Ciphertexts | None,
        primal: Vector | Ciphertexts | None,
        blocks: Indices | None,
    ) -> Vector:
        """z_i = x_i^T w_0, shape (N_k,), from what the server summed, or from w_0 where whole samples are held."""
        if scores is None:
            if primal is None:
                raise PayloadError(
                    "neither scores nor the model to compute them from arrived; do both sides run "
                    "the same version of Fenchel?"
                )
            own: Vector = (self._problem.features @ self._primal(primal))[self.state.order]
            return own
        z = np.zeros(len(self.state.dual))
        z[entries(self.state.sizes, blocks)] = self._samples_in("score").open(scores, blocks)
        return z

    def _primal(self, value: Vector | Ciphertexts) -> Vector:
        """w_k in the order of the own columns."""
        if isinstance(value, np.ndarray):
            return value
        aligned = self._features_in("primal").open(value) / self._scale
        self.state.primal = aligned
        w = np.empty(len(aligned))
        w[self.state.feature_order] = aligned
        return w

    def _stepped(self, dual: Vector, change: Vector, step_size: float) -> Vector:
        stepped: Vector = dual + step_size * change
        return feasible(self._loss, stepped, self._problem.targets[self.state.order])

    def _picked(self) -> tuple[Indices, Indices | None]:
        """D_k: picked samples and ``None``, or picked blocks twice."""
        state, blocks = self.state, self.settings.picks_blocks
        groups = state.groups if blocks else np.repeat(state.groups, state.sizes)
        units = picked_units(self.settings, self.seed, self.client, self.round, groups, state.quotas.tolist())
        return units, units if blocks else None

    def _check_range(self, dual: Vector) -> None:
        _, high = self._loss.domain
        limit = self.settings.encryption.largest_dual
        if math.isinf(high) and self.settings.privacy == "paillier" and len(dual):
            largest = float(np.abs(dual).max())
            if not largest <= limit:
                log.error("%s: a dual variable would become %g", self.client, largest)
                raise EncryptionError(
                    f"a dual variable of client {self.client} would exceed "
                    f"algorithm.encryption.largest_dual: {limit:g}; raise "
                    "that setting, or damp the steps (this client's log has the value)"
                )

    @property
    def _scale(self) -> float:
        """lambda N, by which contributions are divided."""
        return float(self._problem.l2 * self.state.samples)

    # How vectors travel

    def _samples_in(self, what: str) -> Envelope:
        if self._cipher is None:
            return Clear(self.state.sizes)
        return Encrypted(self.state.sizes, layout_of(self.state.layouts[what]), self._cipher, _RANGES[what])

    def _features_in(self, what: str) -> Envelope:
        assert self._cipher is not None, "the primal is encrypted only where everything is"
        layout = layout_of(self.state.layouts[what])
        return Encrypted(self.state.feature_sizes, layout, self._cipher, _RANGES[what])

    @property
    def _monitored_count(self) -> int:
        return 3 if self.settings.protect_primal else 2

    def _figures(self, count: int = 2) -> Envelope:
        """A few numbers that are summed over clients."""
        if self._cipher is None:
            return Clear(np.array([count]))
        layout = layout_of(self.state.layouts["figure"])
        whole, rest = divmod(count, layout.slots)
        sizes = np.array([layout.slots] * whole + ([rest] if rest else []))
        return Encrypted(sizes, layout, self._cipher, _RANGES["figure"])

    @cached_property
    def _cipher(self) -> Paillier | None:
        if self.settings.privacy == "none":
            return None
        assert self.secrets is not None, "the session refuses to begin without"
        return Paillier(self.secrets.private_key, self.secrets.obfuscators)

    @property
    def _alignment_key(self) -> bytes:
        return _PUBLIC_ALIGNMENT_KEY if self.secrets is None else self.secrets.alignment_key

    def _public_key_bytes(self) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
        if self._cipher is None:
            return np.empty(0, np.uint8)
        n = self._cipher.key.public.n
        return np.frombuffer(n.to_bytes(-(-n.bit_length() // 8), "big"), np.uint8)

    @cached_property
    def _problem(self) -> LinearObjective:
        if not isinstance(self.objective, LinearObjective) or self.objective.outputs != 1:
            raise SettingsError(
                "objective.kind: HyFDCA works with linear models of one score: hinge, smoothed-hinge, "
                "squared-hinge, logistic, squared"
            )
        return self.objective

    @cached_property
    def _loss(self) -> MarginLoss:
        loss = self._problem.score_loss
        assert isinstance(loss, MarginLoss)
        return loss


def _row_norms(features: object) -> Vector:
    """||x_i||^2 of each row, shape (n,)."""
    if isinstance(features, np.ndarray):
        norms: Vector = np.einsum("ij,ij->i", features, features)
        return norms
    return np.asarray(features.multiply(features).sum(axis=1)).ravel()  # type: ignore[attr-defined]
