"""Setup of HyFDCA's client half: alignment of samples and features, layouts of ciphertexts.

The paper assumes the setup; it is specified in docs/specifications/hyfdca.md, section 2.2.
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from fenchel.algorithms.client_half import ClientAlgorithm, answers
from fenchel.algorithms.hyfdca.client_alignment import check_groups, check_layouts, check_quotas, check_slice
from fenchel.algorithms.hyfdca.client_vectors import Clear, Encrypted
from fenchel.algorithms.hyfdca.settings import HyFDCASettings, layout_numbers, layout_of, norm_bits, target_bits
from fenchel.common.arrays import Indices, Vector, squared_norms
from fenchel.common.crypto.cipher import Cipher
from fenchel.common.crypto.ciphertexts import Ciphertexts
from fenchel.common.crypto.meter import CipherMeter
from fenchel.common.crypto.packing import Layout
from fenchel.common.crypto.pseudonyms import cell_pseudonyms, label_pseudonyms, pseudonyms
from fenchel.common.errors import PayloadError, SettingsError
from fenchel.common.objectives.linear import LinearObjective, require_one_score
from fenchel.common.objectives.losses import MarginLoss
from fenchel.common.version import SAME_VERSION
from fenchel.common.wire.values import Values

log = logging.getLogger("fenchel.client")

# public hash key of pseudonyms in plaintext runs, which hide nothing from the server
_PUBLIC_ALIGNMENT_KEY = b"privacy: none"
_RANGES = {
    "score": "inner products (algorithm.encryption.largest_score)",
    "dual": "dual variables (their bound follows from algorithm.encryption.largest_dual and the largest target)",
    "figure": "mean losses (their bound follows from algorithm.encryption: largest_score, largest_dual)",
    "norm": "squared norms of rows (algorithm.encryption.largest_norm)",
    "primal": "contributions to the model (their bound follows from the longest row)",
}
_UNIT_NORM = 1 + 2e-5  # bound on the squared norm of normalised rows, with the rounding errors of float32


class HyFDCASetupClient(ClientAlgorithm):
    """Base class of HyFDCA's client half, with the setup before the first round."""

    settings: HyFDCASettings

    @dataclass
    class State:
        """State of the client half, with samples in aligned order (:mod:`fenchel.algorithms.hyfdca.alignment`).

        Attributes
        ----------
        dual
            alpha_k, shape (N_k,).
        change
            Latest proposed change of alpha_k, shape (N_k,), for the line search.
        primal
            w_k, shape (M_k,), in the order of ``feature_order``, for an encrypted primal.
        samples
            Number N of distinct samples of all clients.
        largest_dual
            Largest magnitude of a dual variable that fits into ciphertexts, if the loss does not bound it.
        order
            Numbers of the client's rows in aligned order, shape (N_k,).
        sizes
            Number of samples in each of the client's blocks, shape (B_k,).
        holders
            Number |B_n| of holders of each sample, shape (N_k,).
        groups
            Group of each of the client's blocks, shape (B_k,).
        quotas
            Numbers of units sampled in a round (:func:`fenchel.algorithms.hyfdca.settings.picked_units`).
        norms
            ||x_i||^2 over all holders, shape (N_k,).
        feature_order, feature_sizes, feature_holders
            ``order``, ``sizes`` and ``holders`` of features; empty unless the primal is encrypted.
        layouts
            Layouts of ciphertexts by kind of value (:func:`fenchel.algorithms.hyfdca.settings.layout_numbers`).
        """

        dual: Vector
        change: Vector
        primal: Vector
        samples: int
        largest_dual: float
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
        """Return the state before the alignment."""
        real, whole = np.empty(0), np.empty(0, np.int64)
        return self.State(real, real, real, 0, 1.0, whole, whole, whole, whole, whole, real, whole, whole, whole, {})

    @property
    def meter(self) -> CipherMeter | None:
        """Counts and times of encryption and decryption so far; ``None`` in plaintext."""
        return None if self._cipher is None else self._cipher.meter

    # Setup phases of the client

    @answers("introduce")
    def introduce(self) -> Values:
        """Send pseudonyms of samples, labels and cells, feature positions, public key and bounds (step S1)."""
        features = self._problem.features
        if not features.shape[0] or not features.shape[1]:
            raise SettingsError(
                f"client {self.client} has {features.shape[0]} samples of {features.shape[1]} features, but HyFDCA "
                "needs at least one of each; check the client's data file"
            )
        norms = squared_norms(features)
        longest = float(norms.max())
        identifiers = self.shard.identifiers
        cells = np.empty((0, 16), np.uint8)
        if self.settings.compares_cells:
            rows, columns = features.nonzero()
            held = self._problem.features_held
            cells = cell_pseudonyms(
                self._alignment_key, identifiers, held, rows.astype(np.int64), columns.astype(np.int64)
            )
        return {
            "samples": pseudonyms(self._alignment_key, identifiers),
            "labels": label_pseudonyms(self._alignment_key, identifiers, self._problem.targets),
            "features": self._problem.features_held,
            "cells": cells,
            "key": self._public_key_bytes(),
            # Disclose only orders of magnitude, from which the server computes the layouts of ciphertexts.
            "norm_bits": norm_bits(longest),
            "target_bits": target_bits(self._problem.targets),
        }

    @answers("align")
    def align(
        self,
        samples: int,
        largest_dual: float,
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
        """Store the alignment of the client's entries; send squared norms of its parts of rows (steps S3 and S4)."""
        count, columns = self._problem.features.shape
        layouts: dict[str, Layout] = {}
        if self._cipher is not None:
            chosen = (score_layout, dual_layout, figure_layout, norm_layout, primal_layout)  # in the order of _RANGES
            layouts = {name: layout_of(numbers) for name, numbers in zip(_RANGES, chosen, strict=True)}
            check_layouts(layouts, self._cipher.public, self.settings)
        slots = layouts["dual"].slots if layouts else None
        check_slice(
            "samples", count, order=order, sizes=sizes, holders=holders, slots=slots, message_bytes=self.message_bytes
        )
        check_groups(groups, sizes, slots)
        check_quotas(quotas, groups, self.settings)
        check_slice(
            "features",
            columns if self.settings.protect_primal else 0,
            order=feature_order,
            sizes=feature_sizes,
            holders=feature_holders,
            slots=layouts["primal"].slots if layouts else None,
            message_bytes=self.message_bytes,
        )
        if samples < count or largest_dual <= 0:
            raise PayloadError(
                f"the server's alignment is invalid: it has {samples} samples in all (expected at least the "
                f"{count} of this client), and dual variables up to {largest_dual:g} (expected a finite number "
                f"above 0){SAME_VERSION}"
            )
        self.state = self.State(
            dual=np.zeros(count),
            change=np.zeros(count),
            primal=np.zeros(len(feature_order)),
            samples=samples,
            largest_dual=largest_dual,
            order=order.copy(),
            sizes=sizes.copy(),
            holders=holders.copy(),
            groups=groups.copy(),
            quotas=quotas.copy(),
            norms=np.zeros(count),
            feature_order=feature_order.copy(),
            feature_sizes=feature_sizes.copy(),
            feature_holders=feature_holders.copy(),
            layouts={name: layout_numbers(layout) for name, layout in layouts.items()},
        )
        return {"norms": self._samples_in("norm").seal(squared_norms(self._problem.features)[order])}

    @answers("take_norms")
    def take_norms(self, norms: Vector | Ciphertexts) -> Values:
        """Store ||x_i||^2 over all holders (step S4).

        With the presets paper and theory, return the number of rows with a norm above 1, otherwise 0.
        """
        self.state.norms = self._samples_in("norm").open(norms)
        long = int(np.count_nonzero(self.state.norms > _UNIT_NORM))
        if long and self.settings.preset in ("paper", "theory"):
            log.warning(
                "%s: %d of %d rows have a norm above 1 (at most %.6g), so the preset %s, which assumes norms of "
                "at most 1, may diverge; set data.scale: unit-rows, or use another preset",
                self.client,
                long,
                len(self.state.norms),
                math.sqrt(float(self.state.norms.max())),
                self.settings.preset,
            )
        return {"long_rows": long if self.settings.preset in ("paper", "theory") else 0}

    # Encodings of vectors in messages

    def _encoding(self, what: str, sizes: Indices) -> Clear:
        """Return the encoding of values of one kind, in blocks of these sizes."""
        if self._cipher is None:
            return Clear(sizes)
        return Encrypted(sizes, layout_of(self.state.layouts[what]), self._cipher, _RANGES[what])

    def _samples_in(self, what: str) -> Clear:
        return self._encoding(what, self.state.sizes)

    @property
    def _primal_features(self) -> Clear:
        """Encoding of vectors over the client's features, for an encrypted primal."""
        return self._encoding("primal", self.state.feature_sizes)

    def _figures(self, count: int) -> Clear:
        """Return the encoding of ``count`` numbers that are summed over clients."""
        slots = count if self._cipher is None else layout_of(self.state.layouts["figure"]).slots
        return self._encoding("figure", np.diff(np.append(np.arange(0, count, slots), count)))

    @cached_property
    def _cipher(self) -> Cipher | None:
        if self.settings.privacy == "none":
            return None
        assert self.secrets is not None, "the session refuses to begin without"
        cipher: Cipher = self.secrets.cipher(self.settings.backend())
        return cipher

    @property
    def _alignment_key(self) -> bytes:
        return _PUBLIC_ALIGNMENT_KEY if self.secrets is None else self.secrets.alignment_key

    def _public_key_bytes(self) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
        if self._cipher is None:
            return np.empty(0, np.uint8)
        n = self._cipher.public.n
        return np.frombuffer(n.to_bytes(-(-n.bit_length() // 8), "big"), np.uint8)

    @cached_property
    def _problem(self) -> LinearObjective:
        require_one_score(self.objective, "hyfdca")
        assert isinstance(self.objective, LinearObjective)
        return self.objective

    @cached_property
    def _loss(self) -> MarginLoss:
        loss = self._problem.score_loss
        assert isinstance(loss, MarginLoss)
        return loss
