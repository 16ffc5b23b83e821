"""Setup of HyFDCA's server half: alignment of samples and features, layouts of ciphertexts.

The paper assumes the setup; it is specified in docs/specifications/hyfdca.md, section 2.2.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from fenchel.algorithms.hyfdca.aligned import Stored
from fenchel.algorithms.hyfdca.alignment import (
    CELL_BYTES,
    LABEL_BYTES,
    PSEUDONYM_BYTES,
    HeldEntries,
    check_cells,
    check_labels,
)
from fenchel.algorithms.hyfdca.partitioned_problem import Hybrid, agreed_key, checked_norm_bits
from fenchel.algorithms.hyfdca.settings import HyFDCASettings, layout_numbers, norm_bits, target_bits
from fenchel.algorithms.server_half import Algorithm, ServerContext
from fenchel.common.arrays import Indices, squared_norms
from fenchel.common.crypto.public_key import LARGEST_BITS, PublicKey
from fenchel.common.data.source import DataSource
from fenchel.common.errors import RunStoppedError, SettingsError
from fenchel.common.objectives.linear import LinearObjective, require_one_score
from fenchel.common.objectives.losses import MarginLoss
from fenchel.common.wire.schema import ArraySpec, Expected, NumberSpec
from fenchel.common.wire.values import Value
from fenchel.fleet.cohort import Cohort, Replies
from fenchel.fleet.question import Each
from fenchel.proto import fenchel_pb2 as pb

log = logging.getLogger("fenchel.server")

# Approximate peak memory per pseudonym of a sample or a value during alignment, in bytes
_SAMPLE_BYTES, _VALUE_BYTES = 256, 128
_LARGEST_TARGET_BITS = 128


class HyFDCASetup(Algorithm):
    """Base class of HyFDCA's server half, with the setup before the first round."""

    @dataclass
    class State(Algorithm.State):
        """State of the server half.

        Attributes
        ----------
        pseudonyms, features
            Pseudonyms of samples and positions of features by client id (setup step S1).
        key
            n of the public key, big-endian bytes; empty in plaintext.
        norm_bits
            For each client, an exponent such that squared norms of its parts of rows are at most ``2^norm_bits``.
        target_bits
            For each client, an exponent such that its targets are at most ``2^target_bits`` in magnitude.
        dual
            enc(alpha_0), aligned; ``None`` with the line search, which keeps alpha on the clients only.
        scores
            Last inner products enc(ip_k) of each client (cache of Algorithm 2).
        contributions
            Last contribution what_k of each client (cache of Algorithm 4), numbers or ciphertexts.
        synced
            Clients that took part in the last aggregation. All others are "returning" in their next round.
        missed
            Line search: steps that a client missed, each {"step": g, "change": enc(delta)}.
        away
            Line search: index of the first missed step of each absent client.
        figures
            Latest objective, dual objective and gap.
        stalled
            Line search: number of consecutive rounds without a step, as a client did not answer all phases.
        released
            Whether the encrypted model has been disclosed to the server at the end of the run.
        """

        pseudonyms: dict[str, NDArray[np.uint8]] = field(default_factory=dict)
        features: dict[str, Indices] = field(default_factory=dict)
        key: NDArray[np.uint8] = field(default_factory=lambda: np.empty(0, np.uint8))
        norm_bits: dict[str, int] = field(default_factory=dict)
        target_bits: dict[str, int] = field(default_factory=dict)
        dual: Stored | None = None
        scores: dict[str, Stored] = field(default_factory=dict)
        contributions: dict[str, Stored] = field(default_factory=dict)
        synced: list[str] = field(default_factory=list)
        missed: list[dict[str, float | Stored]] = field(default_factory=list)
        away: dict[str, int] = field(default_factory=dict)
        figures: dict[str, float] = field(default_factory=dict)
        stalled: int = 0
        released: bool = False

    settings: HyFDCASettings
    state: State
    fixed_fleet = "it is settled at the start which clients hold parts of which samples and features"

    def __init__(self, context: ServerContext) -> None:
        super().__init__(context)
        self._is_prepared = False
        self._expected_key = context.public_key
        self._sampler = self.fleet.participation.sampler.kind
        if self.settings.key_bits is not None:
            self.settings.backend()  # raises an error if this machine lacks the encryption backend
        problem = context.objective
        require_one_score(problem, "hyfdca")
        assert isinstance(problem, LinearObjective)
        if problem.l2 <= 0:
            raise SettingsError(
                "lambda, the weight of the ridge, must be above 0 for HyFDCA; set it to, for example, 0.01",
                key="objective.l2",
            )
        if problem.dtype != np.float64:
            raise SettingsError("HyFDCA computes in float64 only; leave dtype out", key="objective.dtype")
        self._l2 = problem.l2
        assert isinstance(problem.score_loss, MarginLoss)
        self._loss = problem.score_loss
        if self._searches_line and (self.settings.step_size, self.settings.step_decay) != (1.0, "constant"):
            raise SettingsError(
                f"{self.settings.step_size:g} with step_decay: {self.settings.step_decay} given, but the line "
                "search chooses the step size; leave both out, or set preset: safe, exact, paper or theory",
                key="algorithm.step_size",
            )
        if self.settings.preset == "linesearch" and self._sampler != "all":
            raise SettingsError(
                f"linesearch needs all clients in every round, but participation.sampler is {self._sampler}; use "
                "preset: safe or exact, or kind: all",
                key="algorithm.preset",
            )

    def check(self, data: DataSource | None) -> None:
        """Reject settings for which the numbers of these data do not fit into ciphertexts."""
        if data is None or self.settings.key_bits is None:
            return
        held, norms, targets = {}, {}, {}
        for number, client in enumerate(self.fleet.members):
            # shards are loaded one at a time because they may be large
            shard = data.shard(number, len(self.fleet.members))
            exponent = norm_bits(float(squared_norms(shard.features).max()))
            try:
                norms[client] = checked_norm_bits(exponent, client, self.settings.encryption)
            except RunStoppedError as error:
                raise SettingsError(str(error), key="algorithm.encryption.largest_norm") from None
            targets[client] = target_bits(self._loss.targets(shard.labels, shard.classes, np.dtype(np.float64)))
            names = np.ascontiguousarray(shard.samples_held, np.int64).view(np.uint8).reshape(-1, 8)
            held[client] = HeldEntries(names, np.empty(0, np.int64))  # row numbers stand in for pseudonyms
        ranges = self._hybrid(held, norms, targets, None).ranges
        _ = ranges.block, ranges.layouts

    async def start(self) -> None:
        """Collect samples and features, align them, agree on layouts, and start from zero (steps S1 to S5)."""
        all_clients = self.fleet.all()
        clients = list(all_clients)
        # a run begins when all clients have described their data
        shards = {client: cast(pb.ShardDescription, self.fleet.members[client].shard) for client in clients}
        samples = {client: shard.samples for client, shard in shards.items()}
        features = {client: shard.features_held for client, shard in shards.items()}
        # Check memory before clients send pseudonyms. Only the pseudonyms of ragged data reveal its number of cells.
        self._check_memory("samples and features", {c: samples[c] + features[c] for c in clients}, _SAMPLE_BYTES)

        def pseudonyms(rows: int | None, width: int, most: int | None = None) -> ArraySpec:
            return ArraySpec(np.uint8, (rows, width), form="pseudonyms", most=most)

        introduced = await all_clients.ask(
            "introduce",
            returns={
                "samples": Each({c: pseudonyms(samples[c], PSEUDONYM_BYTES) for c in clients}),
                "labels": Each({c: pseudonyms(samples[c], LABEL_BYTES) for c in clients}),
                "features": Each({c: ArraySpec(np.int64, (features[c],)) for c in clients}),
                "cells": Each(
                    {
                        c: pseudonyms(None, CELL_BYTES, samples[c] * features[c] * self.settings.compares_cells)
                        for c in clients
                    }
                ),
                "key": ArraySpec(np.uint8, (None,), most=LARGEST_BITS // 8),
                "norm_bits": int,
                "target_bits": NumberSpec(int, 0, _LARGEST_TARGET_BITS, "divide the targets by their largest"),
            },
            min_replies=len(clients),
        )
        self._check_memory("values", {c: len(cast(Indices, r["cells"])) for c, r in introduced.items()}, _VALUE_BYTES)
        self._take_in(introduced)
        await self._prepare()
        await asyncio.to_thread(self._compare, introduced)
        self._tell_alignment()
        await self._share_norms(all_clients)
        state = self.state
        state.synced = clients
        if not self._searches_line:
            state.dual = self.hybrid.duals.zeros()
        state.contributions = {client: self.hybrid.primals.own_zeros(client) for client in clients}
        if self.hybrid.shares_samples:
            state.scores = {client: self.hybrid.scores.own_zeros(client) for client in clients}

    def _check_memory(self, what: str, held: Mapping[str, int], bytes_each: int) -> None:
        """Raise ``SettingsError`` if the alignment needs more memory than ``network.in_flight_bytes``."""
        needed, limit = bytes_each * sum(held.values()), self.fleet.memory_budget.limit
        if needed > limit:
            most = max(held, key=held.__getitem__)
            raise SettingsError(
                f"the comparison of the {what} of {len(held)} clients needs about {needed:,} bytes, above "
                f"network.in_flight_bytes ({limit:,}); client {most} alone has {held[most]:,} {what}. The run does "
                "not begin. Check that client's data, or raise network.in_flight_bytes if the machine has the "
                "memory"
            )

    async def _prepare(self) -> None:
        """Compute the alignment after the setup or a restart, in a thread, as the event loop serves clients."""
        if not self._is_prepared:
            await asyncio.to_thread(self.hybrid.prepare)
            self._is_prepared = True

    def _take_in(self, introduced: Replies) -> None:
        state = self.state
        keys = {client: cast(NDArray[np.uint8], reply["key"]) for client, reply in introduced.items()}
        state.key = agreed_key(keys, self.settings.key_bits, self._expected_key)
        for client, reply in introduced.items():
            state.pseudonyms[client] = cast(NDArray[np.uint8], reply["samples"]).copy()
            state.features[client] = cast(Indices, reply["features"]).copy()
            state.norm_bits[client] = checked_norm_bits(cast(int, reply["norm_bits"]), client, self.settings.encryption)
            state.target_bits[client] = cast(int, reply["target_bits"])

    def _compare(self, introduced: Replies) -> None:
        """Reject cells with two holders, and samples whose holders have different labels."""
        if self.settings.compares_cells:
            check_cells({c: cast(NDArray[np.uint8], reply["cells"]) for c, reply in introduced.items()})
        check_labels(
            self.hybrid.alignment, {c: cast(NDArray[np.uint8], reply["labels"]) for c, reply in introduced.items()}
        )

    def _tell_alignment(self) -> None:
        if self.settings.layout == "ragged" and not self.settings.check_cells:
            log.warning(
                "check_cells: false skips the check that no value has two holders; a value with two would count twice"
            )
        alignment = self.hybrid.alignment
        for warning in alignment.warnings:
            log.warning("%s", warning)
        log.info(
            "aligned %d samples, held by %d to %d clients each, in %d groups and %d blocks",
            alignment.samples,
            alignment.item_holders.min(),
            alignment.item_holders.max(),
            len(alignment.groups),
            alignment.blocks,
        )

    async def _share_norms(self, all_clients: Cohort) -> None:
        """Send each client its alignment, and sum ||x_{k,i}||^2 over the holders (steps S3 and S4)."""
        slices = self.hybrid.alignment.slices
        # Features have blocks only if their weights are encrypted. Otherwise these arrays are empty.
        features = self.hybrid.feature_arrangement.slices
        quotas = {client: np.array(self.hybrid.picks.quotas(client), np.int64) for client in all_clients}
        layouts: dict[str, Any] = {
            f"{name}_layout": layout_numbers(layout) for name, layout in self.hybrid.ranges.layouts.items()
        }
        norms = self.hybrid.over_samples("norm")
        shared = await all_clients.ask(
            "align",
            returns={"norms": Each({client: norms.expected(client) for client in all_clients})},
            min_replies=len(all_clients),
            samples=self.hybrid.alignment.samples,
            largest_dual=self.hybrid.ranges.largest_dual,
            order=Each({c: slices[c].order for c in all_clients}),
            sizes=Each({c: slices[c].sizes for c in all_clients}),
            holders=Each({c: slices[c].holders for c in all_clients}),
            groups=Each({c: slices[c].group for c in all_clients}),
            quotas=Each(quotas),
            feature_order=Each({c: features[c].order for c in all_clients}),
            feature_sizes=Each({c: features[c].sizes for c in all_clients}),
            feature_holders=Each({c: features[c].holders for c in all_clients}),
            **layouts,
        )
        total = norms.total({client: cast(Stored, reply["norms"]) for client, reply in shared.items()})
        received = await all_clients.ask(
            "take_norms",
            returns={"long_rows": int},
            min_replies=len(all_clients),
            norms=Each({client: norms.part(total, client) for client in all_clients}),
        )
        long = sum(cast(int, reply["long_rows"]) for reply in received.values())
        if long and self.settings.preset in ("paper", "theory"):
            log.warning(
                "%d of the clients' rows have a norm above 1, so the preset %s, which assumes norms of at most 1, "
                "may diverge. Set data.scale: unit-rows, or use another preset; the clients' logs have the norms",
                long,
                self.settings.preset,
            )

    # Derived settings

    @property
    def _searches_line(self) -> bool:
        preset = self.settings.preset
        return preset == "linesearch" or (preset == "auto" and self._sampler == "all")

    @cached_property
    def hybrid(self) -> Hybrid:
        """Partitioned problem, known after the setup."""
        state = self.state
        n = int.from_bytes(state.key.tobytes(), "big")
        key = PublicKey(n, self.settings.backend()) if n else None
        held = {c: HeldEntries(state.pseudonyms[c], state.features[c]) for c in state.pseudonyms}
        return self._hybrid(held, state.norm_bits, state.target_bits, key)

    def _hybrid(
        self,
        held: Mapping[str, HeldEntries],
        norms: Mapping[str, int],
        targets: Mapping[str, int],
        key: PublicKey | None,
    ) -> Hybrid:
        problem, ascends = (self._loss, self._l2, self.model.size), self._searches_line
        return Hybrid(self.settings, self.fleet.seed, *problem, held, norms, targets, key, ascends=ascends)

    # Encodings of vectors in messages

    def _contributions(self, cohort: Cohort) -> dict[str, Expected | Each[Expected]]:
        """Return the schema of the contribution what_k in a reply."""
        return {"contribution": Each({client: self.hybrid.primals.expected(client) for client in cohort})}

    def _dual_parts(
        self, dual: Stored, cohort: Cohort, touched: Mapping[str, Indices | None] | None = None
    ) -> Each[Value]:
        """Return enc(alpha_0), or its change, on each client's samples, or on the blocks in ``touched``."""
        blocks = touched or {}
        return Each({client: self.hybrid.duals.part(dual, client, blocks.get(client)) for client in cohort})

    def _primal_parts(self, cohort: Cohort) -> Each[Value]:
        """Return w_0 on each client's features, multiplied by lambda N if it is encrypted."""
        if not self.settings.protect_primal:
            return Each({client: self.model[self.state.features[client]] for client in cohort})
        primals = self.hybrid.primals
        total = primals.total(self.state.contributions)
        return Each({client: primals.part(total, client) for client in cohort})
