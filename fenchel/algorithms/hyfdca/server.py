"""HyFDCA, server half.

Overman, Blum, Klabjan, "A Primal-Dual Algorithm for Hybrid Federated Learning", arXiv:2210.08106v3. Numbers of
algorithms and steps are those of the paper. docs/algorithms/hyfdca.md lists the corrections. Dual variables and inner
products are encrypted, and the server process cannot decrypt them. With ``privacy: none`` the same code computes with
numbers. ``what_k`` is the paper's w_k with a hat: the contribution of client k to the model, before the division by
lambda N.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from typing import Any, ClassVar, cast

import numpy as np

from fenchel.algorithms.hyfdca.aligned import Accumulator, Stored
from fenchel.algorithms.hyfdca.server_setup import HyFDCASetup
from fenchel.algorithms.hyfdca.settings import LINE_STEPS, HyFDCASettings, SampledBlock, line_count
from fenchel.common.arrays import Vector
from fenchel.common.crypto.ciphertexts import Ciphertexts
from fenchel.common.errors import RunStoppedError
from fenchel.common.wire.schema import ArraySpec, Expected
from fenchel.common.wire.values import Value, Values
from fenchel.fleet.cohort import Cohort, Replies
from fenchel.fleet.question import Each

log = logging.getLogger("fenchel.server")

_PATIENCE = 3
"""Number of consecutive rounds without a step after which the line search stops the run."""


class HyFDCA(HyFDCASetup):
    """Server half: dual coordinate ascent on data whose samples and features are both spread over clients."""

    Settings = HyFDCASettings
    figures: ClassVar[tuple[str, ...]] = ("primal_objective", "dual_objective", "gap", "outer_step")

    # Algorithm 1

    async def round(self, t: int) -> None:
        """Run one outer iteration of Algorithm 1."""
        await self._prepare()
        cohort = await self._welcome_back(self.sample())  # steps 2 and 3 of Algorithm 1
        picked = {client: self.hybrid.picks.of(client, t) for client in cohort}
        scores, cohort = await self._scores(cohort, picked)  # step 4 of Algorithm 1
        # The line search is exact only with sums over all clients; otherwise the step is damped.
        complete = len(cohort) == len(self.fleet.members) and not self.state.away
        searches = self._searches_line and complete
        monitors = complete and self._monitors(t)
        # Steps 5 and 6 of Algorithm 1: the changes are added as they arrive.
        total, figures, cohort = await self._change_dual(
            t, cohort, picked, scores, damps=not searches, monitors=monitors
        )
        if self._searches_line:
            await self._search_line(cohort, total, picked, figures, searches=searches)
        else:
            await self._aggregate(cohort, total, picked, figures)  # steps 7 and 8 of Algorithm 1

    async def _welcome_back(self, cohort: Cohort) -> Cohort:
        """Update returning clients, and collect their contributions to the primal (steps 2 and 3).

        They receive alpha_0, or with the line search the steps that they missed. Return the cohort without clients that
        did not answer, because their dual variables are outdated.
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
            returns=self._contributions(returning),
            min_replies=0,
            dual=self._dual_parts(self.state.dual, returning),
        )
        self._take_contributions(back)
        return cohort.only(lambda client: client in self.state.synced or client in back)

    async def _scores(
        self, cohort: Cohort, picked: Mapping[str, SampledBlock]
    ) -> tuple[dict[str, Each[Value]], Cohort]:
        """Return the values from which clients compute z_i, and the clients that answered (step 4)."""
        if not self.hybrid.shares_samples:
            return {"primal": self._primal_parts(cohort)}, cohort
        total, answered = await self._inner_product(cohort, picked)
        scores = self.hybrid.scores
        return {"scores": Each({c: scores.part(total, c, picked[c].blocks) for c in answered})}, answered

    async def _inner_product(self, cohort: Cohort, picked: Mapping[str, SampledBlock]) -> tuple[Stored, Cohort]:
        """Return enc(z_i) = sum over k in B_i of ip_{k,i}, and the clients that answered (Algorithm 2).

        Cached values stand in for those of absent clients.
        """
        wanted = self.hybrid.picks.touched(cohort, picked)
        values: dict[str, Any] = {"primal": self._primal_parts(cohort)}
        if all(blocks is not None for blocks in wanted.values()):
            values["blocks"] = Each({client: wanted[client] for client in cohort})
        scores, cached = self.hybrid.scores, dict(self.state.scores)
        total = Accumulator(scores, scores.zeros(), wanted, kept=self.state.scores)

        def take(client: str, reply: Values) -> None:
            share, blocks = cast(Vector | Ciphertexts, reply["share"]), wanted[client]
            total.add(client, share)
            cached[client] = share.copy() if blocks is None else scores.replaced(cached[client], share, client, blocks)

        answered = await cohort.visit(
            "inner_product", take, returns={"share": Each({c: scores.expected(c, wanted[c]) for c in cohort})}, **values
        )
        self.state.scores = cached
        return total.finish(), answered

    async def _change_dual(
        self,
        t: int,
        cohort: Cohort,
        picked: Mapping[str, SampledBlock],
        scores: Mapping[str, Each[Value]],
        *,
        damps: bool,
        monitors: bool,
    ) -> tuple[Stored, Value | None, Cohort]:
        """Add each client's enc(gamma_t / |B_i| Delta_i) and its share of the monitored sums (steps 5 and 6).

        Return alpha_0 with the changes, or with the line search the sum of the changes; the monitored sums, if all
        clients answered; and the clients that answered.
        """
        hybrid, preset = self.hybrid, self.settings.preset
        step_size = 1.0 if self._searches_line else self.settings.step_size_at(t)
        divisors = hybrid.picks.divisors(cohort, picked)
        undamped = not damps or preset in ("exact", "paper", "theory")
        damping = 1.0 if undamped else hybrid.picks.damping(cohort, picked, divisors, step_size)
        values: dict[str, Any] = dict(scores)
        if self.settings.averaging != "all":
            values["divisors"] = Each(divisors)
        returns: dict[str, Expected | Each[Expected]] = {
            "change": Each({c: hybrid.duals.expected(c, picked[c].blocks) for c in cohort})
        }
        if monitors:
            returns["figures"] = hybrid.figures_expected(self.settings.monitored)
        start = hybrid.duals.zeros() if self.state.dual is None else hybrid.duals.copied(self.state.dual)
        total = Accumulator(hybrid.duals, start, {client: picked[client].blocks for client in cohort})
        figures: list[Value] = []

        def take(client: str, reply: Values) -> None:
            total.add(client, reply["change"])
            if monitors:
                figures.append(cast(Vector | Ciphertexts, reply["figures"]).copy())

        changed = await cohort.visit(
            "change_dual", take, returns=returns, step_size=step_size, damping=damping, monitor=monitors, **values
        )
        known = monitors and len(changed) == len(cohort)
        return total.finish(), hybrid.summed(figures) if known else None, changed

    async def _aggregate(
        self, cohort: Cohort, dual: Stored, picked: Mapping[str, SampledBlock], figures: Value | None
    ) -> None:
        """Store the new alpha_0, send it to the cohort, and run PrimalAggregation(cohort) (steps 7 and 8)."""
        state = self.state
        state.dual = dual
        state.synced = []  # refilled below with the clients that answer "aggregate"
        aggregated = await self._spread("aggregate", "dual", dual, cohort, picked, figures, {})
        self._record(_revealed(aggregated, figures), 1.0)
        self._take_contributions(aggregated)
        state.synced = list(aggregated)

    async def _spread(
        self,
        phase: str,
        name: str,
        vector: Stored,
        cohort: Cohort,
        picked: Mapping[str, SampledBlock],
        figures: Value | None,
        returns: Mapping[str, Expected],
    ) -> Replies:
        """Send each client its entries of alpha_0 or of its change, and return the replies.

        A client decrypts the monitored sums in the same phase.
        """
        touched = self.hybrid.picks.touched(cohort, picked)
        values: dict[str, Any] = {name: self._dual_parts(vector, cohort, touched)}
        if self.settings.messages == "sparse":
            values["blocks"] = Each({client: touched[client] for client in cohort})
        expected = {**self._contributions(cohort), **returns}
        if figures is not None and self.hybrid.key is not None:
            values["figures"], expected["figures"] = figures, ArraySpec(np.float64, (self.settings.monitored,))
        return await cohort.ask(phase, returns=expected, **values)

    def _take_contributions(self, replies: Replies) -> None:
        """Set what_{0,k} <- what_k, and w_0[m] = (1/(lambda N)) sum over k in K_m of what_{0,k}[m] (Algorithm 4)."""
        for client, reply in replies.items():
            self.state.contributions[client] = cast(Stored, reply["contribution"])
        self._update_model()

    def _update_model(self) -> None:
        if not self.settings.protect_primal:
            total = cast(Vector, self.hybrid.primals.total(self.state.contributions))
            self.model = total / self.hybrid.scale

    # Outer line search (docs/specifications/hyfdca.md, section 3.3)

    async def _search_line(
        self,
        cohort: Cohort,
        delta: Stored,
        picked: Mapping[str, SampledBlock],
        figures: Value | None,
        *,
        searches: bool,
    ) -> None:
        """Replace steps 6 to 8: find the g that maximises D(alpha + g delta), and step on all clients."""
        terms = {"terms": self.hybrid.figures_expected(line_count(self._loss))}
        proposed = await self._spread("propose", "change", delta, cohort, picked, figures, terms)
        complete = len(proposed) == len(self.fleet.members)
        shares = {client: cast(Stored, reply["contribution"]) for client, reply in proposed.items()}
        g = 1.0
        if searches:
            # If a client is lost here, the sums cover only the other clients: they are not those of D, and decrypting
            # them would disclose these clients' sums. The server then decrypts nothing and takes no step.
            g = await self._best_step(shares, proposed) if complete else 0.0
            self._note_stall(proposed.cohort, complete=complete)
        self._record(_revealed(proposed, figures), g)
        if g != 0.0:
            await self._step(proposed.cohort, shares, delta, g)

    async def _step(self, cohort: Cohort, shares: Mapping[str, Stored], delta: Stored, g: float) -> None:
        """Set alpha_k += g delta on all clients, and update contributions and model."""
        contributions = self.state.contributions
        if self.settings.protect_primal:  # ciphertexts cannot be multiplied by g: each client sends a new one
            answers = await cohort.ask("advance", returns=self._contributions(cohort), step_size=g)
            contributions |= {c: cast(Stored, reply["contribution"]) for c, reply in answers.items()}
            cohort = answers.cohort
        else:
            await cohort.tell("step", step_size=g)
            for client, share in shares.items():
                contributions[client] = cast(Vector, contributions[client]) + g * cast(Vector, share)
        self._note_missed(cohort, delta, g)
        self._update_model()

    def _note_stall(self, cohort: Cohort, *, complete: bool) -> None:
        self.state.stalled = 0 if complete else self.state.stalled + 1
        if complete:
            return
        missing = ", ".join(client for client in self.fleet.members if client not in cohort.clients)
        log.warning(
            "round %d made no step, because the line search needs all clients and %s did not answer. After %d "
            "such rounds in a row the run stops",
            self.fleet.round,
            missing,
            _PATIENCE,
        )
        if self.state.stalled == _PATIENCE:
            raise RunStoppedError(
                f"{_PATIENCE} rounds in a row made no step, because the line search needs all clients and "
                f"{missing} did not answer every phase. See the logs of these clients, and continue with --resume "
                "RUN, or begin a new run with preset: safe"
            )

    async def _best_step(self, shares: Mapping[str, Stored], proposed: Replies) -> float:
        """Return g* = argmax of D(alpha + g delta) on [0, 1], or 0 if a client did not answer."""
        terms = await self._reveal(proposed, "terms", line_count(self._loss))
        if self.settings.protect_primal:
            total = self.hybrid.primals.total(shares)
            shared = await proposed.cohort.ask(
                "curvature",
                returns={"terms": self.hybrid.figures_expected(2)},
                change=Each({client: self.hybrid.primals.part(total, client) for client in shares}),
            )
            if len(shared) < len(self.fleet.members):
                return 0.0
            wv, vv = await self._reveal(shared, "terms", 2)
        else:
            v = cast(Vector, self.hybrid.primals.total(shares)) / self.hybrid.scale
            wv, vv = float(self.model @ v), float(v @ v)
        g = best_step(float(wv), float(vv), terms, self._l2)
        if not math.isfinite(g):
            raise RunStoppedError(
                f"the line search found the step size {g}, because numbers from the clients are too large. The model "
                "is unchanged; begin a new run with data.scale: unit-rows",
                round=self.fleet.round,
            )
        return g

    def _note_missed(self, cohort: Cohort, delta: Stored, g: float) -> None:
        """Store a step for absent clients."""
        state = self.state
        for member in self.fleet.present:
            if member.name not in cohort.clients:
                state.away.setdefault(member.name, len(state.missed))
        if state.away:
            state.missed.append({"step": g, "change": delta})

    async def _catch_up(self, returning: Cohort) -> None:
        """Have returning clients apply the steps that they missed, in order."""
        state = self.state
        for lost in state.away.keys() - {member.name for member in self.fleet.present}:
            del state.away[lost]  # a lost client does not return
        for number, missed in enumerate(state.missed):
            behind = returning.only({client for client in returning if state.away[client] == number}.__contains__)
            if not len(behind):
                continue
            back = await behind.ask(
                "catch_up",
                returns=self._contributions(behind),
                min_replies=0,  # a client that does not answer catches up in a later round
                change=self._dual_parts(cast(Stored, missed["change"]), behind),
                step_size=cast(float, missed["step"]),
            )
            for client in back:
                state.away[client] += 1
            self._take_contributions(back)
        for client in returning:
            if state.away[client] == len(state.missed):
                del state.away[client]
        needed_from = min(state.away.values(), default=len(state.missed))
        state.missed = state.missed[needed_from:]
        state.away = {client: number - needed_from for client, number in state.away.items()}

    # End of the run

    async def finish(self) -> None:
        """Update all clients, so that w_0 = A alpha_0, and measure the final model. Disclose it if it is encrypted.

        Source: docs/specifications/hyfdca.md, section 5.1, E17.
        """
        await self._prepare()
        all_clients = self.fleet.all()
        current = await self._welcome_back(all_clients)
        if len(current) < len(self.fleet.members):
            stale = ", ".join(client for client in self.fleet.members if client not in current.clients)
            log.warning(
                "clients that did not answer in the final step: %s. The final model lacks changes that other clients "
                "made to dual variables of these clients' samples. If these clients still have their state folders and "
                "keys, start all clients and repeat the final step with --resume RUN",
                stale,
            )
        elif self.settings.monitor:
            await self._final_figures(current)
        if not self.settings.protect_primal:
            return
        released = await all_clients.ask(
            "release",
            returns={"model": Each({c: ArraySpec(np.float64, (len(self.state.features[c]),)) for c in all_clients})},
            min_replies=len(all_clients),  # each client decrypts the weights of its features
            primal=self._primal_parts(all_clients),
        )
        model = np.zeros_like(self.model)
        known = np.zeros(model.size, bool)
        for client, reply in released.items():
            model[self.state.features[client]] = cast(Vector, reply["model"])
            known[self.state.features[client]] = True
        missing = int(np.count_nonzero(~known & (self.hybrid.alignment.feature_holders > 0)))
        if missing:
            log.warning(
                "the weights of %d features are 0 in the saved model, because the clients that could decrypt them "
                "are lost. Begin a new run with these clients to learn them",
                missing,
            )
        self.model = model
        self.state.released = True

    async def _final_figures(self, all_clients: Cohort) -> None:
        all_blocks = SampledBlock(None, np.empty(0, np.int64))
        scores, answered = await self._scores(all_clients, dict.fromkeys(all_clients, all_blocks))
        values: dict[str, Any] = dict(scores)
        shared = await answered.ask(
            "figures", returns={"figures": self.hybrid.figures_expected(self.settings.monitored)}, **values
        )
        if len(shared) == len(self.fleet.members):  # partial sums would not cover all samples
            self._record(await self._reveal(shared, "figures", self.settings.monitored), math.nan)

    @property
    def model_is_known(self) -> bool:
        """True if the server knows the model. With an encrypted primal this is only after the end of the run."""
        return self.state.released or not self.settings.protect_primal

    def metrics(self) -> dict[str, float]:
        """Return the outer step and, if measured, objective, dual objective and gap at the start of the round."""
        return dict(self.state.figures)

    # Sums over clients that the run may disclose to the server

    async def _reveal(self, shares: Replies, name: str, count: int) -> Vector:
        """Have a client decrypt sums over all clients, and return them. The first client that answers is used."""
        sums, cohort = self.hybrid.summed(shares.values_of(name)), shares.cohort
        if self.hybrid.key is None:
            return cast(Vector, sums)
        returns = {"figures": ArraySpec(np.float64, (count,))}
        for client in cohort:
            last = client == cohort.clients[-1]
            asked = cohort.only(client.__eq__)
            replies = await asked.ask("reveal", returns=returns, min_replies=int(last), figures=sums, count=count)
            if replies:
                return cast(Vector, replies[client]["figures"])
        raise AssertionError("the last one must answer")

    def _record(self, sums: Vector | None, g: float) -> None:
        """Compute objective P(w) and dual objective D(alpha) from the sums of losses and conjugates, where w = A alpha.

        ``sums`` is ``None`` in rounds without a measurement.
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

    # Derived settings

    def _monitors(self, t: int) -> bool:
        """Return whether objective and gap are measured in round ``t``, which needs the scores of all samples."""
        every = self.settings.monitor
        return every > 0 and self.settings.messages == "dense" and (t - 1) % every == 0


def _revealed(replies: Replies, figures: Value | None) -> Vector | None:
    """Return the monitored sums, as decrypted by a client or summed in plaintext."""
    decrypted = next(iter(replies.values())).get("figures", figures)
    return cast(Vector | None, decrypted)


def best_step(wv: float, vv: float, terms: Vector, l2: float) -> float:
    """Return the g in [0, 1] that maximises D(alpha + g delta) (docs/specifications/hyfdca.md, section 3.3).

    Parameters
    ----------
    wv, vv
        w^T v and ||v||^2, where v = A delta.
    terms
        Numbers a and c if (1/N) sum_i -l_i*(-(alpha_i + g delta_i)) grows by g a - g^2 c / 2; otherwise its values at
        g = 0 and at each of ``LINE_STEPS``.
    l2
        Regularisation parameter lambda.
    """
    if len(terms) == 2:
        rise, bend = float(terms[0]) - l2 * wv, float(terms[1]) + l2 * vv
        if bend <= 0:
            return 1.0 if rise > 0 else 0.0
        return min(max(rise / bend, 0.0), 1.0)
    steps = np.concatenate([[0.0], LINE_STEPS])
    values = terms - l2 * (steps * wv + steps**2 * vv / 2)
    return float(steps[int(np.argmax(values))])
