"""HyFDCA, server half.

Overman, Blum, Klabjan, "A Primal-Dual Algorithm for Hybrid Federated Learning", arXiv:2210.08106v3. Numbers
of algorithms and steps are the paper's; corrections are those of the specification, which
docs/algorithms/hyfdca.md lists. What the server holds of dual variables and inner products is encrypted, and nothing
in a server process can decrypt it; with ``privacy: none`` the same code computes with numbers.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, cast

import numpy as np
from numpy.typing import NDArray

from common.algorithms.hyfdca import (
    LINE_STEPS,
    HyFDCASettings,
    entries_of,
    layout_numbers,
    picked_units,
)
from common.arrays import Indices, Vector
from common.errors import EncryptionError, FenchelError, PayloadError, RunStoppedError, SettingsError
from common.expectation import ArraySpec, CipherSpec, Expected
from common.objectives.linear import LinearObjective
from common.objectives.losses import MarginLoss
from common.paillier.key import PublicKey
from common.paillier.packing import Layout
from common.payload import Value
from common.randomness import generator
from server.algorithm import Algorithm, Conduct
from server.aligned import ClearVectors, EncryptedVectors, Stored, Vectors, cipher_sum
from server.alignment import Alignment, Arrangement, Holding, Slice, align, align_features, check_cells
from server.fleet import Cohort, Each
from server.replies import Replies

log = logging.getLogger("fenchel.server")

_LINE_STEPS = 1 + len(
    LINE_STEPS
)  # values of the dual objective that clients share for a loss without a closed form
_SPARE = 2.0  # of the range of dual variables: rounding and averaging may lead a little out of it


@dataclass(frozen=True)
class Picked:
    """What a client picks in a round.

    Attributes
    ----------
    blocks
        Places of the picked blocks among its own; ``None`` if it picks single samples.
    entries
        Places of the picked samples in its aligned order.
    """

    blocks: Indices | None
    entries: Indices


class HyFDCA(Algorithm):
    """Dual coordinate ascent on data whose samples and features are both spread over the clients."""

    @dataclass
    class State(Algorithm.State):
        """The server's state.

        Attributes
        ----------
        pseudonyms, features, cells_checked
            What each client holds (setup S1).
        key
            The public key's n, big-endian bytes; empty in plaintext.
        norm_bits
            Of each client: its longest part of a row has a squared norm of at most ``2^norm_bits``.
        dual
            enc(alpha_0), aligned; ``None`` where the line search keeps it with the clients only.
        scores
            For each client, its last inner products enc(ip_k) (Algorithm 2's cache).
        contributions
            For each client, its last what_k (Algorithm 4's cache), numbers or ciphertexts.
        synced
            Clients that have done the last aggregation: all others are "returning" in their next round.
        missed
            Line search: steps that somebody missed, each {"step": g, "change": enc(delta)}.
        away
            Line search: from which of them on a client missed them.
        figures
            The latest objective, dual objective and gap.
        """

        pseudonyms: dict[str, NDArray[np.uint8]] = field(default_factory=dict)
        features: dict[str, Indices] = field(default_factory=dict)
        key: NDArray[np.uint8] = field(default_factory=lambda: np.empty(0, np.uint8))
        norm_bits: dict[str, int] = field(default_factory=dict)
        dual: Stored | None = None
        scores: dict[str, Stored] = field(default_factory=dict)
        contributions: dict[str, Stored] = field(default_factory=dict)
        synced: list[str] = field(default_factory=list)
        missed: list[dict[str, float | Stored]] = field(default_factory=list)
        away: dict[str, int] = field(default_factory=dict)
        figures: dict[str, float] = field(default_factory=dict)

    Settings = HyFDCASettings
    settings: HyFDCASettings
    state: State
    figures: ClassVar[tuple[str, ...]] = ("primal_objective", "dual_objective", "gap", "outer_step")

    def __init__(self, conduct: Conduct) -> None:
        super().__init__(conduct)
        self._expected_key = conduct.public_key
        self._sampler = self.fleet.participation.sampler.kind
        problem = conduct.objective
        if not isinstance(problem, LinearObjective) or problem.outputs != 1:
            raise SettingsError(
                "objective.kind: HyFDCA works with linear models of one score: hinge, smoothed-hinge, "
                "squared-hinge, logistic, squared"
            )
        if problem.l2 <= 0:
            raise SettingsError(
                "objective.l2: HyFDCA needs a positive weight of the ridge (lambda), such as 0.01"
            )
        if problem.dtype != np.float64:
            raise SettingsError("objective.dtype: HyFDCA computes in float64; leave dtype out")
        self._l2 = problem.l2
        assert isinstance(problem.score_loss, MarginLoss)
        self._loss = problem.score_loss
        if self.settings.preset == "linesearch" and self._sampler != "all":
            raise SettingsError(
                f"algorithm.preset: linesearch needs everybody in every round, but participation.sampler is "
                f"{self._sampler}; use safe or exact"
            )

    # Setup (specification, section 2.2)

    async def start(self) -> None:
        """S1 to S5: learn who holds what, align, agree on numbers, start from zero."""
        everybody = self.fleet.all()
        clients = list(everybody)
        introduced = await everybody.ask(
            "introduce",
            returns={
                "samples": ArraySpec(np.uint8, (None, 32)),
                "features": ArraySpec(np.int64, (None,)),
                "cells": ArraySpec(np.uint8, (None, 16)),
                "key": ArraySpec(np.uint8, (None,)),
                "norm_bits": int,
            },
            min_replies=len(clients),
        )
        self._take_in(introduced)
        await self._share_norms(everybody)
        state = self.state
        state.synced = clients
        if not self._searches_line:
            state.dual = self._duals.zeros()
        state.contributions = {client: self._primals.own_zeros(client) for client in clients}
        if self._needs_inner_products:
            state.scores = {client: self._scores.own_zeros(client) for client in clients}

    def _take_in(self, introduced: Replies) -> None:
        state = self.state
        keys = {client: cast(NDArray[np.uint8], reply["key"]) for client, reply in introduced.items()}
        state.key = _agreed(keys, self._expected_key, encrypted=self.settings.privacy == "paillier")
        for client, reply in introduced.items():
            state.pseudonyms[client] = cast(NDArray[np.uint8], reply["samples"]).copy()
            state.features[client] = cast(Indices, reply["features"]).copy()
            norm_bits = cast(int, reply["norm_bits"])
            if not -1024 <= norm_bits <= 1024:
                raise PayloadError(f"client {client}: rows of squared norm 2^{norm_bits} cannot be")
            state.norm_bits[client] = norm_bits
        if self.settings.layout == "ragged" and self.settings.check_cells:
            check_cells({c: cast(NDArray[np.uint8], reply["cells"]) for c, reply in introduced.items()})
        alignment = self._alignment
        for warning in alignment.warnings:
            log.warning("%s", warning)
        log.info(
            "aligned %d samples, held by %d to %d clients each, in %d groups and %d blocks",
            alignment.samples,
            alignment.sample_holders.min(),
            alignment.sample_holders.max(),
            len(alignment.groups),
            alignment.blocks,
        )

    async def _share_norms(self, everybody: Cohort) -> None:
        """S3 and S4: tell each client where its entries lie; add up ||x_{k,i}||^2 over the holders."""
        slices = self._alignment.slices
        features = self._feature_slices
        quotas = {client: np.array(self._quotas(client), np.int64) for client in everybody}
        layouts: dict[str, Any] = {
            f"{name}_layout": layout_numbers(layout) for name, layout in self._layouts.items()
        }
        norms = self._vectors("norm")
        shared = await everybody.ask(
            "align",
            returns={"norms": Each({client: norms.expected(client) for client in everybody})},
            min_replies=len(everybody),
            samples=self._alignment.samples,
            order=Each({c: slices[c].order for c in everybody}),
            sizes=Each({c: slices[c].sizes for c in everybody}),
            holders=Each({c: slices[c].holders for c in everybody}),
            groups=Each({c: slices[c].group for c in everybody}),
            quotas=Each(quotas),
            feature_order=Each({c: features[c][0] for c in everybody}),
            feature_sizes=Each({c: features[c][1] for c in everybody}),
            feature_holders=Each({c: features[c][2] for c in everybody}),
            **layouts,
        )
        total = norms.total({client: cast(Stored, reply["norms"]) for client, reply in shared.items()})
        told = await everybody.ask(
            "take_norms",
            returns={"long_rows": int},
            min_replies=len(everybody),
            norms=Each({client: norms.part(total, client) for client in everybody}),
        )
        long = sum(cast(int, reply["long_rows"]) for reply in told.values())
        if long and self.settings.preset in ("paper", "theory"):
            log.warning(
                "%d of the clients' rows are longer than 1, but the preset %s rests on rows of norm 1 at most and may "
                "diverge; set data.scale: unit-rows, or another preset. The clients' logs have the numbers",
                long,
                self.settings.preset,
            )

    # Algorithm 1

    async def round(self, t: int) -> None:
        """One outer iteration of Algorithm 1."""
        cohort = self.sample()
        cohort = await self._welcome_back(cohort)  # steps 2 and 3
        picked = {client: self._picked(client, t) for client in cohort}
        if self._needs_inner_products:
            scores, cohort = await self._inner_product(cohort, picked)  # step 4
            inputs: dict[str, Any] = {
                "scores": Each({c: self._scores.part(scores, c, picked[c].blocks) for c in cohort})
            }
        else:
            inputs = {"primal": Each({client: self._primal_part(client) for client in cohort})}
        complete = len(cohort) == len(self.fleet.members) and not self.state.away
        searches = self._searches_line and complete
        step_size = 1.0 if self._searches_line else self.settings.step_size_at(t)
        divisors = self._divisors(cohort, picked)
        damping = 1.0 if searches else self._damping(picked, divisors, cohort, step_size)
        monitor = self._monitors(t) and complete
        returns: dict[str, Expected | Each[Expected]] = {
            "change": Each({c: self._duals.expected(c, picked[c].blocks) for c in cohort})
        }
        if monitor:
            returns["figures"] = self._figures_expected(self._monitored)
        if self.settings.averaging != "all":
            inputs["divisors"] = Each({client: divisors[client] for client in cohort})
        changed = await cohort.ask(  # step 5
            "change_dual", returns=returns, step_size=step_size, damping=damping, monitor=monitor, **inputs
        )
        monitor = monitor and len(changed) == len(cohort)
        figures = self._sum(changed, "figures") if monitor else None
        changes = {client: reply["change"] for client, reply in changed.items()}
        if self._searches_line:
            await self._search_line(changed.cohort, changes, picked, figures, searches=searches)
        else:
            await self._aggregate(changed.cohort, changes, picked, figures)  # steps 6 to 8

    async def _welcome_back(self, cohort: Cohort) -> Cohort:
        """Steps 2 and 3: alpha_0 to returning clients, and their contributions to the primal.

        Returns the cohort without those that did not answer: their dual variables are old.
        """
        if self._searches_line:
            await self._catch_up(cohort.only(self.state.away.__contains__))
            return cohort.only(lambda client: client not in self.state.away)
        returning = cohort.only(lambda client: client not in self.state.synced)
        if not len(returning):
            return cohort
        assert self.state.dual is not None
        back = await returning.ask(
            "resume",
            returns={"contribution": Each({c: self._primals.expected(c) for c in returning})},
            dual=Each({client: self._duals.part(self.state.dual, client) for client in returning}),
        )
        self._take_contributions(back)
        return cohort.only(lambda client: client in self.state.synced or client in back)

    async def _inner_product(self, cohort: Cohort, picked: Mapping[str, Picked]) -> tuple[Stored, Cohort]:
        """Algorithm 2: enc(z_i) = sum over k in B_i of ip_{k,i}, cached for those that are absent."""
        wanted = self._touched(cohort, picked)
        values: dict[str, Any] = {"primal": Each({client: self._primal_part(client) for client in cohort})}
        if all(blocks is not None for blocks in wanted.values()):
            values["blocks"] = Each({client: wanted[client] for client in cohort})
        shared = await cohort.ask(
            "inner_product",
            returns={"share": Each({c: self._scores.expected(c, wanted[c]) for c in cohort})},
            **values,
        )
        cached = self.state.scores
        for client, reply in shared.items():
            share, blocks = reply["share"], wanted[client]
            if blocks is None:
                cached[client] = cast(Stored, share)
            else:
                cached[client] = self._scores.replaced(cached[client], share, client, blocks)
        return self._scores.total(cached), shared.cohort

    async def _aggregate(
        self,
        cohort: Cohort,
        changes: Mapping[str, Value],
        picked: Mapping[str, Picked],
        figures: Value | None,
    ) -> None:
        """Steps 6 to 8: alpha_0 += the changes; alpha_0 to the cohort; PrimalAggregation(cohort)."""
        state = self.state
        assert state.dual is not None
        blocks = {client: picked[client].blocks for client in changes}
        state.dual = self._duals.added(state.dual, changes, _given(blocks))
        touched = self._touched(cohort, picked)
        values: dict[str, Any] = {
            "dual": Each({c: self._duals.part(state.dual, c, touched[c]) for c in cohort})
        }
        if self.settings.messages == "sparse":
            values["blocks"] = Each({client: touched[client] for client in cohort})
        returns: dict[str, Expected | Each[Expected]] = {
            "contribution": Each({client: self._primals.expected(client) for client in cohort})
        }
        self._have_revealed(figures, values, returns)
        state.synced = []  # unless they answer
        aggregated = await cohort.ask("aggregate", returns=returns, **values)
        self._record(_revealed(aggregated, figures), 1.0)
        self._take_contributions(aggregated)
        state.synced = list(aggregated)

    def _take_contributions(self, replies: Replies) -> None:
        """Algorithm 4: what_{0,k} <- what_k; w_0[m] = (1/(lambda N)) sum over k in K_m of what_{0,k}[m]."""
        for client, reply in replies.items():
            self.state.contributions[client] = cast(Stored, reply["contribution"])
        self._update_model()

    def _update_model(self) -> None:
        if not self.settings.protect_primal:
            total = cast(Vector, self._primals.total(self.state.contributions))
            self.model = total / self._scale

    # Outer line search (specification, section 3.3)

    async def _search_line(
        self,
        cohort: Cohort,
        changes: Mapping[str, Value],
        picked: Mapping[str, Picked],
        figures: Value | None,
        *,
        searches: bool,
    ) -> None:
        """Replace step 6 to 8: find the g that maximises D(alpha + g delta), then everybody steps."""
        state = self.state
        blocks = {client: picked[client].blocks for client in changes}
        delta = self._duals.added(self._duals.zeros(), changes, _given(blocks))
        values: dict[str, Any] = {"change": Each({c: self._duals.part(delta, c) for c in cohort})}
        returns: dict[str, Expected | Each[Expected]] = {
            "contribution": Each({client: self._primals.expected(client) for client in cohort}),
            "terms": self._figures_expected(self._line_terms),
        }
        self._have_revealed(figures, values, returns)
        proposed = await cohort.ask("propose", returns=returns, **values)
        complete = len(proposed) == len(self.fleet.members)
        shares = {client: cast(Stored, reply["contribution"]) for client, reply in proposed.items()}
        terms = await self._reveal(self._sum(proposed, "terms"), self._line_terms, proposed.cohort)
        g = 1.0
        if searches:
            # Somebody who is lost in the middle leaves sums that are not D's: better no step than a wrong one.
            g = await self._best_step(shares, terms, proposed.cohort) if complete else 0.0
        self._record(_revealed(proposed, figures), g)
        if g == 0.0:
            return
        stepped = proposed.cohort
        if self.settings.protect_primal:  # ciphertexts cannot be multiplied by g, so they are asked for anew
            answers = await stepped.ask(
                "advance",
                returns={"contribution": Each({c: self._primals.expected(c) for c in stepped})},
                step_size=g,
            )
            state.contributions |= {c: cast(Stored, reply["contribution"]) for c, reply in answers.items()}
            stepped = answers.cohort
        else:
            await stepped.tell("step", step_size=g)
            for client, share in shares.items():
                state.contributions[client] = cast(Vector, state.contributions[client]) + g * cast(
                    Vector, share
                )
        self._note_missed(stepped, delta, g)
        self._update_model()

    async def _best_step(self, shares: Mapping[str, Stored], terms: Vector, cohort: Cohort) -> float:
        """Return g* = argmax of D(alpha + g delta) on [0, 1]."""
        if self.settings.protect_primal:
            total = self._primals.total(shares)
            shared = await cohort.ask(
                "curvature",
                returns={"terms": self._figures_expected(2)},
                change=Each({client: self._primals.part(total, client) for client in cohort}),
            )
            if len(shared) < len(self.fleet.members):
                return 0.0
            wv, vv = await self._reveal(self._sum(shared, "terms"), 2, cohort)
        else:
            v = cast(Vector, self._primals.total(shares)) / self._scale
            wv, vv = float(self.model @ v), float(v @ v)
        return best_step(float(wv), float(vv), terms, self._l2)

    def _note_missed(self, cohort: Cohort, delta: Stored, g: float) -> None:
        """Keep a step for those who are away."""
        state = self.state
        for client in self.fleet.members:
            if client not in cohort.clients:
                state.away.setdefault(client, len(state.missed))
        if state.away:
            state.missed.append({"step": g, "change": delta})

    async def _catch_up(self, returning: Cohort) -> None:
        """Have returning clients do the steps that they missed."""
        state = self.state
        for client in returning:
            alone = returning.only(client.__eq__)
            for missed in state.missed[state.away[client] :]:
                change = cast(Stored, missed["change"])
                back = await alone.ask(
                    "catch_up",
                    returns={"contribution": self._primals.expected(client)},
                    change=self._duals.part(change, client),
                    step_size=cast(float, missed["step"]),
                )
                self._take_contributions(back)
            del state.away[client]
        if not state.away:
            state.missed = []

    # End

    async def finish(self) -> None:
        """Finalise (E17): bring everybody up to date, so that w_0 = A alpha_0; measure; release the model."""
        everybody = self.fleet.all()
        await self._welcome_back(everybody)
        if self.settings.monitor:
            await self._final_figures(everybody)
        if not self.settings.protect_primal:
            return
        released = await everybody.ask(
            "release",
            returns={
                "model": Each({c: ArraySpec(np.float64, (len(self.state.features[c]),)) for c in everybody})
            },
            primal=Each({client: self._primal_part(client) for client in everybody}),
        )
        model = np.zeros_like(self.model)
        for client, reply in released.items():
            model[self.state.features[client]] = cast(Vector, reply["model"])
        self.model = model

    async def _final_figures(self, everybody: Cohort) -> None:
        if self._needs_inner_products:
            nothing = dict.fromkeys(everybody, Picked(None, np.empty(0, np.int64)))
            scores, answered = await self._inner_product(everybody, nothing)
            given: dict[str, Any] = {
                "scores": Each({client: self._scores.part(scores, client) for client in answered})
            }
        else:
            answered = everybody
            given = {"primal": Each({client: self._primal_part(client) for client in answered})}
        shared = await answered.ask(
            "figures", returns={"figures": self._figures_expected(self._monitored)}, **given
        )
        if len(shared) == len(self.fleet.members):  # else they are not sums over all samples
            self._record(
                await self._reveal(self._sum(shared, "figures"), self._monitored, shared.cohort), math.nan
            )

    @property
    def model_is_known(self) -> bool:
        """Whether the server knows the model before the end."""
        return not self.settings.protect_primal

    def metrics(self) -> dict[str, float]:
        """Return objective, dual objective and gap of the model that the round began with."""
        return dict(self.state.figures)

    # Sums over clients that the server may know

    def _sum(self, replies: Replies, name: str) -> Value:
        shares = replies.values_of(name)
        if self._key is not None:
            return cipher_sum(shares, self._key).to_wire()
        total: Vector = np.sum(cast(list[Vector], shares), axis=0)
        return total

    async def _reveal(self, sums: Value, count: int, cohort: Cohort) -> Vector:
        """Have a client decrypt sums over all clients."""
        if self._key is None:
            return cast(Vector, sums)
        asked = cohort.only(cohort.clients[0].__eq__)
        replies = await asked.ask(
            "reveal", returns={"figures": ArraySpec(np.float64, (count,))}, figures=sums, count=count
        )
        return cast(Vector, replies[asked.clients[0]]["figures"])

    def _have_revealed(
        self, figures: Value | None, values: dict[str, Any], returns: dict[str, Expected | Each[Expected]]
    ) -> None:
        """Have the monitored figures decrypted along with a phase that is asked anyway."""
        if figures is not None and self._key is not None:
            values["figures"], returns["figures"] = figures, ArraySpec(np.float64, (self._monitored,))

    def _figures_expected(self, count: int) -> Expected:
        if self._key is None:
            return ArraySpec(np.float64, (count,))
        layout = self._layouts["figure"]
        return CipherSpec(self._key, layout, layout.ciphertexts(count) * layout.slots)

    def _record(self, sums: Vector | None, g: float) -> None:
        """Objective P(w) and dual objective D(alpha) from the sums of losses and conjugates; w = A alpha.

        ``None``: they were not measured in this round.
        """
        self.state.figures = {"outer_step": g}
        if sums is None:
            return
        ridge = float(sums[2]) if len(sums) > 2 else 0.5 * self._l2 * float(self.model @ self.model)
        loss, conjugate = float(sums[0]), float(sums[1])
        self.state.figures = {
            "primal_objective": loss + ridge,
            "dual_objective": conjugate - ridge,
            "gap": loss - conjugate + 2 * ridge,
            "outer_step": g,
        }

    # Who picks what, and how far steps go

    def _picked(self, client: str, t: int) -> Picked:
        """D_k, as the client draws it too."""
        held = self._alignment.slices[client]
        in_blocks = self.settings.picks_blocks
        groups = held.group if in_blocks else np.repeat(held.group, held.sizes)
        units = picked_units(self.settings, self.fleet.seed, client, t, groups, self._quotas(client))
        return Picked(units, entries_of(held.sizes, units)) if in_blocks else Picked(None, units)

    def _quotas(self, client: str) -> list[int]:
        """How many units the client picks: of all, or with common picks of each of its groups."""
        held, wanted = self._alignment.slices[client], self.settings.picks
        if wanted is None:
            return []
        if self.settings.picking == "independent":
            return [wanted]
        quotas = []
        for group in np.unique(held.group):
            here = self._alignment.groups[group]
            size = int(self._alignment.block_sizes[here.blocks].sum())
            # In proportion to the group's part of the largest of its holders, so that nobody picks more than H.
            most = max(len(self._alignment.slices[other].positions) for other in here.clients)
            samples = max(1, round(size * min(1.0, wanted / most)))
            quotas.append(-(-samples // self._block) if self.settings.picks_blocks else samples)
        return quotas

    def _touched(self, cohort: Cohort, picked: Mapping[str, Picked]) -> dict[str, Indices | None]:
        """Of each client, the own blocks in the union of all picks; ``None``: all, as messages are dense."""
        if self.settings.messages == "dense" or any(picked[client].blocks is None for client in cohort):
            return dict.fromkeys(cohort)
        slices = self._alignment.slices
        union = np.zeros(self._alignment.blocks, bool)
        for client in cohort:
            union[slices[client].blocks[cast(Indices, picked[client].blocks)]] = True
        return {client: np.flatnonzero(union[slices[client].blocks]) for client in cohort}

    def _divisors(self, cohort: Cohort, picked: Mapping[str, Picked]) -> dict[str, Indices]:
        """By how many a change of each sample is divided (E9), for each client in aligned order."""
        alignment = self._alignment
        if self.settings.averaging == "all":
            return {client: alignment.slices[client].holders for client in cohort}
        count = np.zeros(alignment.samples, np.int64)
        for client in cohort:
            positions = alignment.slices[client].positions
            active = self.settings.averaging == "active"
            count[positions if active else positions[picked[client].entries]] += 1
        return {client: np.maximum(count[alignment.slices[client].positions], 1) for client in cohort}

    def _damping(
        self,
        picked: Mapping[str, Picked],
        divisors: Mapping[str, Indices],
        cohort: Cohort,
        step_size: float,
    ) -> float:
        """sigma of the presets (2.6); for safe max(1, sigma_t / 2), with sigma_t of section 3.2."""
        if self.settings.preset in ("exact", "paper", "theory"):
            return 1.0
        sigma = sum(float(np.sum(step_size / divisors[c][picked[c].entries])) for c in cohort)
        return max(1.0, sigma / 2)

    def _monitors(self, t: int) -> bool:
        """Whether objective and gap are measured: every sample's score must be known."""
        every = self.settings.monitor
        return every > 0 and self.settings.messages == "dense" and (t - 1) % every == 0

    @property
    def _searches_line(self) -> bool:
        preset = self.settings.preset
        return preset == "linesearch" or (preset == "auto" and self._sampler == "all")

    @property
    def _needs_inner_products(self) -> bool:
        """Whether some client holds only a part of a sample's features."""
        return not self.settings.skip_inner_products or bool((self._alignment.sample_holders > 1).any())

    @property
    def _monitored(self) -> int:
        """How many figures clients share: with an encrypted primal, also that of the ridge."""
        return 3 if self.settings.protect_primal else 2

    @property
    def _line_terms(self) -> int:
        return _LINE_STEPS if self._loss.kind == "logistic" else 2

    # How vectors are laid out

    @cached_property
    def _alignment(self) -> Alignment:
        return align(
            self._holdings,
            features=self.model.size,
            block=self._block,
            ragged=self.settings.layout == "ragged",
            random=generator(self.fleet.seed, "alignment"),
        )

    @cached_property
    def _features(self) -> Arrangement:
        """Where features lie: in their own order, or where they are encrypted in blocks with equal holders."""
        features, held = self.model.size, self.state.features
        if not self.settings.protect_primal:
            return in_own_order(held, features)
        return align_features(self._holdings, features=features, block=self._layouts["primal"].slots)

    @cached_property
    def _holdings(self) -> dict[str, Holding]:
        state = self.state
        return {
            client: Holding(state.pseudonyms[client], state.features[client]) for client in state.features
        }

    @property
    def _feature_slices(self) -> dict[str, tuple[Indices, Indices, Indices]]:
        """Order, block sizes and holders of each client's features; empty unless the primal is encrypted."""
        nothing = np.empty(0, np.int64)
        if not self.settings.protect_primal:
            return dict.fromkeys(self.state.features, (nothing, nothing, nothing))
        return {c: (held.order, held.sizes, held.holders) for c, held in self._features.slices.items()}

    @cached_property
    def _key(self) -> PublicKey | None:
        return PublicKey(int.from_bytes(self.state.key.tobytes(), "big")) if len(self.state.key) else None

    @cached_property
    def _block(self) -> int:
        """Samples in a block."""
        wanted, picks = self.settings.block, self.settings.picks
        fits = min(self._slots(name) for name in ("score", "dual", "norm")) if self._key else 1024
        if wanted is not None:
            if wanted > fits:
                raise SettingsError(
                    f"algorithm.block: {wanted} given, but a ciphertext has room for {fits} values"
                )
            return wanted
        if self.settings.messages == "sparse":
            if self.settings.picking == "independent":
                return 1
            return min(fits, picks or fits)
        return fits

    def _slots(self, name: str) -> int:
        return self._fitted(name, None).slots

    @cached_property
    def _layouts(self) -> dict[str, Layout]:
        names = ("score", "dual", "figure", "norm", "primal")
        if self._key is None:
            return dict.fromkeys(names, Layout(2, 0, 1, 1))  # no ciphertexts
        slots = {"score": self._block, "dual": self._block, "norm": self._block}
        return {name: self._fitted(name, slots.get(name)) for name in names}

    def _fitted(self, name: str, slots: int | None) -> Layout:
        """Return the layout of one kind of vector: how large its values can be, and how many are added up."""
        chosen, state = self.settings.encryption, self.state
        assert self._key is not None
        # A row is held by so many clients at most; its squared norm is the sum of theirs.
        clients, holders = len(state.features), self._most_holders
        norm = holders * 2.0 ** max(state.norm_bits.values())
        dual = 1.0 if math.isfinite(self._loss.domain[1]) else chosen.largest_dual
        score = chosen.largest_score or dual * norm / self._l2
        samples = sum(len(held) for held in state.pseudonyms.values())
        largest, additions = {
            "score": (score, holders),
            "dual": (_SPARE * dual, holders + 1),
            "norm": (chosen.largest_norm, holders),
            # |sum_i alpha_i x_im| <= N max |alpha| max |x|, and the sum over clients of as much.
            "primal": (samples * dual * math.sqrt(norm), clients),
            "figure": (self._largest_figure(score, dual, norm), clients),
        }[name]
        try:
            return Layout.fit(self._key.bits, chosen.fraction_bits, largest, additions, slots)
        except EncryptionError as error:
            raise SettingsError(
                f"algorithm.encryption: {name}s: {error}. The range of scores follows from the longest row and "
                "objective.l2 unless encryption.largest_score is given"
            ) from None

    def _largest_figure(self, score: float, dual: float, norm: float) -> float:
        """Bound what is summed over clients: mean losses, and products of w where it is encrypted."""
        loss = 1 + (score**2 if self._loss.kind.startswith("squared") else score)
        return max(loss, norm * dual**2 / self._l2**2) if self.settings.protect_primal else loss

    @cached_property
    def _most_holders(self) -> int:
        """Clients that hold the same sample, at most."""
        every = np.concatenate(list(self.state.pseudonyms.values()))
        return int(np.unique(every.view(np.dtype((np.void, every.shape[1]))), return_counts=True)[1].max())

    def _vectors(self, name: str) -> Vectors:
        """Vectors over samples."""
        if self._key is None:
            return ClearVectors(self._alignment)
        return EncryptedVectors(self._alignment, self._key, self._layouts[name])

    @cached_property
    def _duals(self) -> Vectors:
        return self._vectors("dual")

    @cached_property
    def _scores(self) -> Vectors:
        return self._vectors("score")

    @cached_property
    def _primals(self) -> Vectors:
        """Vectors over features."""
        if self.settings.protect_primal:
            assert self._key is not None
            return EncryptedVectors(self._features, self._key, self._layouts["primal"])
        return ClearVectors(self._features)

    def _primal_part(self, client: str) -> Value:
        """w_0 on the client's features; lambda N times as much if it is encrypted."""
        if self.settings.protect_primal:
            return self._primals.part(self._primals.total(self.state.contributions), client)
        part: Vector = self.model[self.state.features[client]]
        return part

    @property
    def _scale(self) -> float:
        """lambda N."""
        return self._l2 * self._alignment.samples


def best_step(wv: float, vv: float, terms: Vector, l2: float) -> float:
    """Return the g in [0, 1] with the largest D(alpha + g delta) (specification, section 3.3).

    Parameters
    ----------
    wv, vv
        w^T v and ||v||^2, where v = A delta.
    terms
        Two numbers a and c, if (1/N) sum_i -l_i*(-(alpha_i + g delta_i)) grows by g a - g^2 c / 2; else
        its values at g = 0 and at each of ``LINE_STEPS``.
    l2
        lambda.
    """
    if len(terms) == 2:
        rise, bend = float(terms[0]) - l2 * wv, float(terms[1]) + l2 * vv
        if bend <= 0:
            return 1.0 if rise > 0 else 0.0
        return min(max(rise / bend, 0.0), 1.0)
    steps = np.concatenate([[0.0], LINE_STEPS])
    values = terms - l2 * (steps * wv + steps**2 * vv / 2)
    return float(steps[int(np.argmax(values))])


def in_own_order(held: Mapping[str, Indices], features: int) -> Arrangement:
    """Return the arrangement in which every feature stands in its own place, in blocks of one client each."""
    slices = {}
    for client, positions in held.items():
        one, count = np.zeros(1, np.int64), len(positions)
        slices[client] = Slice(
            np.arange(count), positions, one, np.array([count]), np.zeros(count, np.int64), one
        )
    return Arrangement(features, np.array([features]), np.zeros(features, np.int64), (), slices)


def _revealed(replies: Replies, figures: Value | None) -> Vector | None:
    """Return the monitored figures: as clients decrypted them, or as they were summed in plaintext."""
    decrypted = next(iter(replies.values())).get("figures", figures)
    return cast(Vector | None, decrypted)


def _given(blocks: Mapping[str, Indices | None]) -> dict[str, Indices] | None:
    """Return the blocks of each client, or ``None`` where all of them are meant."""
    given = {client: own for client, own in blocks.items() if own is not None}
    return given if len(given) == len(blocks) else None


def _agreed(
    keys: Mapping[str, NDArray[np.uint8]], expected: PublicKey | None, *, encrypted: bool
) -> NDArray[np.uint8]:
    """Return the public key that all clients have; refuse clients that have another."""
    prints = {client: _fingerprint(client, key) for client, key in keys.items()}
    first = min(prints)
    if not encrypted:
        return np.empty(0, np.uint8)
    for client in sorted(prints):
        if expected is not None and prints[client] != expected.fingerprint:
            raise RunStoppedError(
                f"client {client} has the key {prints[client]}, but the server was given {expected.fingerprint} "
                "(--public-key): give every client the secrets that belong to it"
            )
        if prints[client] != prints[first]:
            raise RunStoppedError(
                f"clients {first} and {client} have different keys ({prints[first]} and {prints[client]}); all "
                "clients of a federation share one file of secrets, which fenchel keys makes"
            )
    return keys[first].copy()


def _fingerprint(client: str, key: NDArray[np.uint8]) -> str:
    if not len(key):
        return "none"
    try:
        return PublicKey(int.from_bytes(key.tobytes(), "big")).fingerprint
    except FenchelError as error:
        raise RunStoppedError(f"client {client} has no usable public key: {error}") from None
