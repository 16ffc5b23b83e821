"""Differential privacy of what clients send: the mechanism, its noise, its limits.

Source: docs/specifications/fedpdm.md, section 3.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Literal, Self, TypeAlias

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from fenchel.common.accounting import paper, sensitivity
from fenchel.common.accounting.accountant import LARGEST_NOISE, SMALLEST_NOISE, SMALLEST_RATE, Method, calibrate
from fenchel.common.accounting.public_facts import PrivacyFacts
from fenchel.common.accounting.sensitivity import DualDifference, LocalMap
from fenchel.common.errors import PrivacyBudgetError, SettingsError
from fenchel.common.settings.section import Section

Mechanism: TypeAlias = Literal["paper", "recursive", "contractive", "batch", "clip-update"]


class DifferentialPrivacy(Section):
    """Gaussian noise on every upload, and its privacy guarantee.

    The guarantee is for each sample of each client, against any reader of all messages. Two data sets are
    neighbours if one sample is replaced. The guarantee covers the uploads of the client, and no other use of its data.
    """

    mechanism: Mechanism = Field(
        description="bound on the sensitivity of an upload. contractive: a sample counts once, in its own batch, which "
        "needs the least noise; batch: a sample counts like its whole batch. Both need a public dual variable. "
        "recursive: for a private dual variable. clip-update: the update itself is clipped, whatever computed it, "
        "which protects all samples of a client together. paper: the published formula, for reproduction only, without "
        "any guarantee"
    )
    noise_multiplier: PositiveFloat | None = Field(
        None, description="standard deviation of the noise over the sensitivity (z)"
    )
    epsilon_per_round: PositiveFloat | None = Field(
        None, description="sets the noise by the paper's formula: z = sqrt(2 ln(1.25 / delta)) / epsilon"
    )
    budget: PositiveFloat | None = Field(
        None,
        description="largest epsilon of a client for all its uploads. With uploads, it determines the noise; with "
        "noise_multiplier, a client stops before it would exceed the budget",
    )
    uploads: PositiveInt | None = Field(
        None,
        le=10**12,
        description="most uploads of a client (R), for which budget sets the noise; for mechanism: paper, the mean "
        "number of uploads (p T)",
    )
    delta: float = Field(
        1e-5,
        ge=1e-10,
        lt=1,
        description="delta of every epsilon here; keep it well below one over a client's samples (the paper has 1e-4)",
    )
    clip: PositiveFloat = Field(
        description="largest norm: of every sample's gradient (G), or with clip-update of what is sent, as a distance "
        "from the global model (C)"
    )
    feature_norm: PositiveFloat | None = Field(
        None,
        description="largest norm of a sample's features, including the constant one. It is public, and clients scale "
        "longer samples down. It bounds the smoothness of the loss; for contractive",
    )
    accountant: Method = Field(
        "pld-wor",
        description="accountant of epsilon. pld-wor: privacy loss distributions, batches without replacement; tight. "
        "rdp-wor: Rényi divergences; higher, as a cross-check. pld-poisson, rdp-poisson: for Poisson batches, which "
        "are not drawn here, to compare with other software; for mechanism: paper only",
    )
    total_law: paper.Law = Field(
        "printed",
        description="Theorem 2 of the paper, as printed (q^2) or as its proof has it (q), for the total that is shown "
        "as claimed, and for budget with mechanism: paper",
    )

    fixed_seeds: bool = Field(
        False,
        description="noise and batches follow from the run's seed, so that a run can be repeated. For tests, with "
        "mechanism: paper only: with the seed the noise can be subtracted",
    )

    @model_validator(mode="after")
    def _one_way_to_give_the_noise(self) -> Self:
        if self.noise_multiplier is not None and self.epsilon_per_round is not None:
            raise ValueError("noise_multiplier and epsilon_per_round both set the noise; give one of them")
        if self.budget is not None and self.epsilon_per_round is not None:
            raise ValueError(
                f"budget: {self.budget:g} given, but epsilon_per_round: {self.epsilon_per_round:g} already sets the "
                "noise. Leave budget out, or replace epsilon_per_round by uploads (budget then sets the noise) or by "
                "noise_multiplier (budget then limits the total privacy loss)"
            )
        calibrated = self.noise_multiplier is None and self.epsilon_per_round is None
        if calibrated and (self.budget is None or self.uploads is None):
            raise ValueError(
                "nothing sets the noise; give noise_multiplier, or epsilon_per_round, or budget with uploads"
            )
        if not calibrated and self.uploads is not None:
            given = "epsilon_per_round" if self.noise_multiplier is None else "noise_multiplier"
            raise ValueError(
                f"uploads: {self.uploads} is used only to derive the noise from budget, but {given} sets the noise; "
                "leave uploads out"
            )
        return self

    def sampling_rate(self, facts: PrivacyFacts) -> float:
        """Return ``q = Q b / n_i`` where the drawing of batches counts for privacy (amplification), else 1.

        A smaller one than can be accounted for is raised to what can: the larger, the dearer.
        """
        share = max(SMALLEST_RATE, min(1.0, facts.drawn / facts.samples))
        if self.mechanism == "paper":
            return share
        counts = self.mechanism in ("contractive", "batch") and facts.batches == "epoch"
        return share if counts and facts.dual != "private" else 1.0

    def noise(self, facts: PrivacyFacts) -> float:
        """Return the noise multiplier ``z`` of a client's uploads; raise ``SettingsError`` if it is out of range."""
        z = self._noise(facts)
        if not SMALLEST_NOISE <= z <= LARGEST_NOISE:
            raise SettingsError(
                f"the noise would be {z:.4g} times the sensitivity; expected {SMALLEST_NOISE:g} to "
                f"{LARGEST_NOISE:g}. Change noise_multiplier, epsilon_per_round or budget, which determine it",
                key="differential_privacy",
            )
        return z

    def _noise(self, facts: PrivacyFacts) -> float:
        if self.noise_multiplier is not None:
            return self.noise_multiplier
        if self.epsilon_per_round is not None:
            return paper.noise_multiplier(self.epsilon_per_round, self.delta)
        assert self.budget is not None
        assert self.uploads is not None
        rate = self.sampling_rate(facts)
        if self.mechanism != "paper":
            return calibrate(rate, self.uploads, self.delta, self.budget, self.accountant)
        if rate >= 1:
            raise SettingsError(
                f"Theorem 2 of FedPDM holds only if a round draws fewer samples than a client has, but it draws "
                f"{facts.drawn} of {facts.samples}; draw fewer, or give epsilon_per_round in place of budget",
                key="differential_privacy.budget",
            )
        each = paper.per_round(self.budget, rate, self.uploads, self.delta, self.total_law)
        return paper.noise_multiplier(each, self.delta)

    def claimed(self, facts: PrivacyFacts, uploads: float) -> float:
        """Return the paper's total for so many uploads: Theorem 2, without any guarantee; infinite for ``q >= 1``."""
        share = min(1.0, facts.drawn / facts.samples)
        each = paper.epsilon_of(self.noise(facts), self.delta)
        return paper.total(each, share, uploads, self.delta, self.total_law)

    def smoothness(self, facts: PrivacyFacts) -> float | None:
        """Return ``L = curvature feature_norm^2 + 2 beta`` of every admissible sample's loss, if it is known."""
        if self.feature_norm is None or facts.curvature is None:
            return None
        return facts.curvature * self.feature_norm * self.feature_norm + 2 * facts.beta

    def sensitivity(
        self, local: LocalMap, facts: PrivacyFacts, difference: DualDifference
    ) -> tuple[float, DualDifference]:
        """Return the sensitivity of an upload, and the difference of the dual variables after it.

        Parameters
        ----------
        difference
            What the upload before returned; ``DualDifference()`` for the first. It is infinite after an upload that
            does not bound the difference of private dual variables.

        Raises
        ------
        PrivacyBudgetError
            If the sensitivity needs a bound on the difference, and earlier uploads had a mechanism without one.
        """
        after = DualDifference(math.inf) if facts.dual == "private" else difference
        if self.mechanism == "clip-update":
            return sensitivity.clip_update(self.clip), after
        if self.mechanism == "paper":
            return sensitivity.whole_batch(local, self.clip), after
        if difference.value == math.inf or (difference.value > 0 and self.mechanism != "recursive"):
            raise PrivacyBudgetError(
                f"nothing is sent, because the dual variable of this client comes from rounds under other settings of "
                f"differential_privacy, which mechanism: {self.mechanism} does not cover. Give the run the settings of "
                "its first round again, or begin a new run"
            )
        if self.mechanism == "recursive":
            return difference.step(local, self.clip, facts.penalty)
        if self.mechanism == "contractive":
            smoothness = self.smoothness(facts)
            assert smoothness is not None
            bound = sensitivity.contractive(
                local, self.clip, smoothness, convex_scalar=facts.convex_scalar, beta=facts.beta
            )
            return bound, difference
        return sensitivity.whole_batch(local, self.clip, beta=facts.beta), difference

    def problems(self, facts: PrivacyFacts) -> list[str]:
        """Return the reasons why the run violates its stated privacy guarantee, with remedies; empty if there are none.

        ``mechanism: paper`` states no guarantee; see :meth:`warnings`.
        """
        return [] if self.mechanism == "paper" else [*_leaks(facts), *self._unmet(facts)]

    def warnings(self, facts: PrivacyFacts) -> list[str]:
        """Return caveats for readers of this run's epsilon."""
        found = []
        if self.mechanism == "paper":
            found.append(
                "mechanism: paper reproduces published formulas and guarantees nothing; its epsilon is the one claimed "
                "by the paper's formula"
            )
            found += [*_leaks(facts), *_gaps_of_the_paper(facts)]
        if self.epsilon_per_round is not None and self.epsilon_per_round >= 1:
            found.append(
                f"the formula of epsilon_per_round is proved below 1 only, given {self.epsilon_per_round:g}, and "
                "promises too much above 8; the accountant says what the noise is worth"
            )
        if self.delta * facts.samples >= 1:
            found.append(
                f"delta is {self.delta:g}, and a client has {facts.samples} samples: one of them could be published "
                "in full; keep delta well below one over the samples"
            )
        return found

    def _unmet(self, facts: PrivacyFacts) -> Iterator[str]:
        """Yield the conditions of this mechanism that the run does not meet."""
        if self.accountant in ("pld-poisson", "rdp-poisson"):
            yield (
                f"accountant: {self.accountant} is for batches that take each sample by a coin of its own, which no "
                "algorithm here draws; set pld-wor or rdp-wor"
            )
        if self.mechanism in ("contractive", "batch") and facts.dual == "private":
            yield (
                f"mechanism: {self.mechanism} needs a public dual variable: a private one carries earlier rounds into "
                "the upload; set the dual variable to public, or mechanism to recursive or clip-update"
            )
        if self.mechanism == "recursive" and facts.beta > 0:
            yield (
                f"mechanism: recursive bounds clipped gradients only, and the regulariser is not clipped (beta = "
                f"{facts.beta:g}); set beta to 0, or a public dual variable with mechanism contractive or batch"
            )
        if self.mechanism == "recursive" and facts.dual == "private" and facts.penalty == 0:
            yield (
                "mechanism: recursive follows a dual variable with a penalty, and this algorithm keeps a private state "
                "without one; set that state to public, or mechanism to clip-update"
            )
        if self.mechanism != "contractive":
            return  # the other conditions are on the smoothness, and that a sample counts once a round
        if facts.batches != "epoch":
            yield (
                f"mechanism: contractive counts a sample once a round, but batches: {facts.batches} may use it in "
                "every step; set batches to epoch, or mechanism to batch"
            )
        if self.feature_norm is None:
            yield (
                "mechanism: contractive needs the smoothness of the loss, for which feature_norm must be given: a "
                "public norm, never the largest of the data themselves; or set mechanism to batch"
            )
        if facts.curvature is None:
            yield (
                "mechanism: contractive needs a bound on the curvature of the loss, and none is known for this "
                "objective; set mechanism to batch, recursive or clip-update"
            )


def _leaks(facts: PrivacyFacts) -> Iterator[str]:
    """Yield what no noise on the values can make good, whatever the mechanism (sections 2.1, 2.7, 3.3 and 3.4)."""
    if facts.support == "top-k":
        yield (
            "the indices of a top-k upload follow from the data and are sent as they are, so no noise on the values "
            "hides them; set the sparsifier's support to shared-random, random or public-top-k, or send everything"
        )
    if facts.error_feedback:
        yield (
            "error feedback (EF21) sends later, and without a bound, what was not sent before; its indices follow from "
            "the data, too; set error feedback off"
        )
    if not facts.fixed_steps:
        yield (
            "the number of local steps depends on the data, and the server sees how long a client takes; set a fixed "
            "number of steps, without a stopping rule"
        )
    if facts.batches == "epoch" and facts.drawn > facts.samples:
        yield (
            f"{facts.steps} steps with batches of {facts.batch_size} draw {facts.drawn} samples, but a client has only "
            f"{facts.samples}, and none may be drawn twice in a round; set fewer steps or smaller batches"
        )
    if facts.fixed_seeds:
        yield (
            "noise and batches follow from the run's seed, so the noise can be subtracted with it; set "
            "fixed_seeds to false"
        )
    if facts.aggregator == "hybrid" and facts.dual == "private":
        yield (
            "aggregator: hybrid needs a public dual variable: with noise, a private one drifts away from what the "
            "server keeps of it; set the dual variable to public, or the aggregator to sampled"
        )


def _gaps_of_the_paper(facts: PrivacyFacts) -> Iterator[str]:
    """Yield what the paper's formulas leave out for this run (section 3.3)."""
    if facts.dual == "private":
        yield (
            "the paper's sensitivity leaves the private dual variable out of account, which makes it too small, by "
            "more in every round; a public dual variable mends it"
        )
    if facts.beta > 0:
        yield (
            f"the paper's sensitivity leaves out the regulariser, which is not clipped (beta = {facts.beta:g}); it has "
            "been seen four times too small"
        )
    if facts.batches != "epoch":
        yield (
            f"the paper's total counts on batches that draw a sample at most once a round, but batches are "
            f"{facts.batches}; set them to epoch"
        )
