"""Settings of CODASCA, CODA+, CODA and NPA, and the stages of their runs (CODASCA specification, section 2).

A stage fixes the step size, the number of local steps in a round, and the centre that the model is pulled towards.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, Self

import numpy as np
from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt, field_validator, model_validator

from common.algorithms import AlgorithmSettings
from common.settings.participation import AllClients, Participation
from common.settings.section import Section

_SMALLEST_STEP = float(np.finfo(np.float32).tiny)
"""Smaller step sizes lose their digits in float32, and then are 0."""

_LONGEST_ROUND = 1 << 31
"""Local steps that no client will ever have taken."""


@dataclass(frozen=True)
class Stage:
    """A stage of a run.

    Attributes
    ----------
    step_size
        eta, of the local steps.
    local_steps
        I, in a round.
    rounds
        R: I R = T local steps in the stage.
    """

    step_size: float
    local_steps: int
    rounds: int


class PracticeSchedule(Section):
    """The schedule of the experiments: step sizes that fall, rounds of one length (section 2.6)."""

    kind: Literal["practice"] = Field(
        "practice",
        description="as in the experiments: every stage has as many local steps, and its step size is a fraction of "
        "that of the stage before",
    )
    stage_steps: PositiveInt = Field(
        2000,
        description="local steps of a stage (T_0); it ends with the first round at which so many are done. The papers "
        "took 1000 to 4000, about a third of the run at most",
    )
    decay: float = Field(
        3.0, ge=1, description="what the step size is divided by from one stage to the next; 1 keeps it"
    )

    def stage(self, number: int, step_size: float, local_steps: int) -> Stage:
        """Return stage ``number``, counted from 1, of a run that begins with this step size."""
        before, after = (-(-stages * self.stage_steps // local_steps) for stages in (number - 1, number))
        return Stage(step_size / self.decay ** (number - 1), local_steps, after - before)


class TheorySchedule(Section):
    """The schedules of the theorems, with the constants of the problem (section 2.6)."""

    kind: Literal["theory"] = Field(
        description="as in the theorems, which set gamma, eta_g, step sizes, local steps and lengths of stages from "
        "the constants below. What follows is orders of magnitude too careful: use it to look at the structure"
    )
    smoothness: PositiveFloat = Field(
        1.0, description="Lipschitz constant of the gradient of f in all variables (ell)"
    )
    primal_smoothness: PositiveFloat = Field(
        1.0, description="Lipschitz constant of the gradient of the primal objective phi (L)"
    )
    polyak: PositiveFloat = Field(0.1, description="Polyak-Lojasiewicz constant of phi (mu)")
    heterogeneous: bool = Field(
        True,
        description="for coda-plus and coda: whether the clients' distributions differ, so that rounds must be short "
        "(D > 0)",
    )
    window: PositiveFloat = Field(
        1.0,
        description="local steps in the rounds of the first stage of codasca (I_0); for coda-plus and coda the free "
        "factor of their number; npa has one step a round",
    )

    @property
    def gamma(self) -> float:
        """2 ell."""
        return 2 * self.smoothness

    @property
    def _primal(self) -> float:
        """L_hat = L + 2 ell."""
        return self.primal_smoothness + 2 * self.smoothness

    def _concavity(self, prior: float) -> float:
        """mu_2 = 2 p (1-p), and min(ell, mu_2)."""
        return 2 * prior * (1 - prior)

    @property
    def rate(self) -> float:
        """c of Theorem 1: the step sizes of CODA+ fall like exp(-c)."""
        ratio = self.polyak / self._primal
        return ratio / (5 + ratio)

    @property
    def growth(self) -> float:
        """rho of Theorem 2: the rounds of CODASCA grow like exp(rho)."""
        c = 4 * self.smoothness + 248 / 53 * self._primal
        return 2 * self.polyak / (c + 2 * self.polyak)

    def longest_step(self, prior: float) -> float:
        """Return the largest eta_0 of Lemma 1."""
        ell = self.smoothness
        return min(1 / (3 * ell + 3 * ell**2 / self._concavity(prior)), 1 / (4 * ell))

    def longest_round(self, prior: float) -> float:
        """Return the largest eta_l eta_g I of Lemma 2."""
        ell, mu2 = self.smoothness, self._concavity(prior)
        return min(1 / (3 * ell + 3 * ell**2 / mu2), mu2 / (40 * ell**2))

    def averaging_stage(
        self, number: int, step_size: float | None, prior: float, clients: int, local_steps: int | None = None
    ) -> Stage:
        """Return stage ``number`` of CODA+ (Theorem 1).

        Parameters
        ----------
        number
            s, counted from 1.
        step_size
            eta_0; ``None``: the largest.
        prior, clients
            p and K.
        local_steps
            I, where it is given (1 for NPA).
        """
        first = self.longest_step(prior) if step_size is None else step_size
        grown = math.exp((number - 1) * self.rate)
        eta = first / grown
        if local_steps is None:
            width = math.sqrt(clients * eta) if self.heterogeneous else clients * eta
            local_steps = max(1, round(self.window / width))
        steps = 212 / (first * min(self.smoothness, self._concavity(prior))) * grown
        return Stage(eta, local_steps, math.ceil(steps / local_steps))

    def controlled_stage(
        self, number: int, round_length: float | None, prior: float, server_step_size: float
    ) -> Stage:
        """Return stage ``number`` of CODASCA (Theorem 2): eta_l eta_g I and R are those of every stage.

        Parameters
        ----------
        number
            s, counted from 1.
        round_length
            eta_l eta_g I; ``None``: the largest.
        prior, server_step_size
            p and eta_g.
        """
        length = self.longest_round(prior) if round_length is None else round_length
        local_steps = max(1, round(self.window * math.exp(self.growth * (number - 1))))
        rounds = math.ceil(1000 / (length * min(self.smoothness, self._concavity(prior))))
        return Stage(length / (server_step_size * local_steps), local_steps, rounds)


Schedule = Annotated[PracticeSchedule | TheorySchedule, Field(discriminator="kind")]


class StagedSettings(AlgorithmSettings):
    """What the algorithms for the area under the ROC curve share."""

    step_size: PositiveFloat | None = Field(
        None,
        description="learning rate of the local steps in the first stage (eta); null: 0.1, or with schedule.kind: "
        "theory the largest that the theorem allows. It goes with the objective's output: 1 to 5 suited networks with "
        "a sigmoid, 0.003 to 0.03 unbounded linear scores",
    )
    schedule: Schedule = Field(
        default_factory=lambda: PracticeSchedule(), description="step sizes and lengths of the stages"
    )
    gamma: NonNegativeFloat | None = Field(
        None,
        description="weight of (gamma/2) ||v - v_0||^2, which keeps the model and a and b near where the stage began; "
        "null: 0.001, or with schedule.kind: theory what the theorem asks for",
    )
    weighting: Literal["uniform", "samples"] = Field(
        "uniform",
        description="how much a client counts, in averages and in the class prior: all the same, as in the paper, or "
        "by samples",
    )
    batch_size: PositiveInt | None = Field(32, description="samples a step (B); null: the whole shard")
    batches: Literal["independent", "passes", "stratified"] = Field(
        "independent",
        description="how batches are drawn. independent: distinct samples, drawn anew for each step; passes: each pass "
        "over the shard in a new random order; stratified: drawn anew, with the same number of positive samples in "
        "each, and at least one if the client has any",
    )
    positive_share: float | None = Field(
        None,
        gt=0,
        lt=1,
        description="with batches: stratified, the share of positive samples in a batch; null: the client's own. It "
        "changes what is minimised, and the class prior with it",
    )
    prior: float | None = Field(
        None,
        gt=0,
        lt=1,
        description="the class prior p; null: from the numbers of samples and of positive samples that each client "
        "tells the server once. Another p than the true one makes another objective",
    )
    initial_dual: float = Field(
        0.0, description="alpha at the start; the authors' library starts at -1, in these terms"
    )
    dual_step: Literal["gradient", "plug-in"] = Field(
        "gradient",
        description="how alpha moves. gradient: along its gradient; plug-in: along 2 (b - a - alpha), as in the "
        "authors' library: another scale, and a and b in place of the batch's mean scores",
    )
    dual_floor: float | None = Field(
        None,
        lt=0,
        description="alpha, which is negative at the saddle, is kept from falling below this in local steps; the "
        "authors' library has -1 (it keeps its own alpha, which is 1 more, from falling below 0); null: nothing",
    )
    gradient_clip: PositiveFloat | None = Field(
        None,
        description="largest absolute value of each entry of a step's direction in the scorer's weights; the authors' "
        "library has 1; null: none",
    )
    weight_decay: NonNegativeFloat = Field(
        0.0,
        description="weights, a and b shrink by this times the step size in each step, outside of clipping and control "
        "variates; the authors' library has 1e-5",
    )

    @model_validator(mode="after")
    def _batches_fit(self) -> Self:
        if self.positive_share is not None and self.batches != "stratified":
            raise ValueError(
                "positive_share says how batches: stratified are drawn; leave it out with others"
            )
        if self.batches == "stratified" and (self.batch_size is None or self.batch_size < 2):
            raise ValueError(
                f"batches: stratified needs a batch_size of at least 2, but it is {self.batch_size}; a whole shard "
                "(null) has its positive samples anyway"
            )
        return self

    @model_validator(mode="after")
    def _dual_begins_above_its_floor(self) -> Self:
        if self.dual_floor is not None and self.initial_dual < self.dual_floor:
            raise ValueError(f"initial_dual is {self.initial_dual:g}, below dual_floor: {self.dual_floor:g}")
        return self

    @property
    def needs_everybody(self) -> str | None:
        """The setting with which all clients must take part in every round, and why; ``None``: they need not."""
        return None

    def participation_problem(self, participation: Participation) -> str | None:
        """Say what would leave clients out where all are needed."""
        reason, sampler = self.needs_everybody, participation.sampler
        if reason is None:
            return None
        if not isinstance(sampler, AllClients):
            return (
                f"participation.sampler.kind: {sampler.kind} given, but algorithm.{reason}, which needs all clients in "
                "every round; use kind: all, or another setting there"
            )
        if participation.on_lost_state == "continue":
            return (
                f"participation.on_lost_state: continue given, but algorithm.{reason}, which needs all clients in "
                "every round: without one the run would have to stop all the same; use stop, or another setting there"
            )
        return None

    @field_validator("schedule", mode="before")
    @classmethod
    def _schedule_of_practice(cls, value: Any) -> Any:
        """Let a schedule that does not say its kind be one of practice."""
        return {"kind": "practice", **value} if isinstance(value, Mapping) else value

    def stage_problem(self, number: int, prior: float, clients: int) -> str | None:
        """Say why stage ``number`` cannot be done: a step that moves nothing, a round that never ends.

        Parameters as for :meth:`stage`; ``None``: it can.
        """
        schedule = self.schedule
        if isinstance(schedule, TheorySchedule):
            what = f"algorithm.schedule.polyak: {schedule.polyak:g}"
            advice = "use a smaller polyak or window, or fewer rounds"
        else:
            what = f"algorithm.schedule.decay: {schedule.decay:g}"
            advice = "use a smaller decay, a larger stage_steps, or fewer rounds"
        try:
            stage = self.stage(number, prior, clients)
        except (OverflowError, ZeroDivisionError):
            return f"{what} makes stage {number} one of numbers beyond all bounds; {advice}"
        if stage.step_size < _SMALLEST_STEP:
            return (
                f"{what} makes the step size {stage.step_size:.3g} in stage {number}, with which nothing moves; "
                f"{advice}"
            )
        if stage.local_steps > _LONGEST_ROUND:
            return (
                f"{what} makes rounds of {stage.local_steps:.3g} local steps in stage {number}, which never end; "
                f"{advice}"
            )
        return None

    def rounds_problem(self, rounds: int, clients: int | None) -> str | None:
        """Say which stage that the run will reach cannot be done.

        Where the class prior is not given it counts as 1/2, with which the stages of the theorems are shortest.
        """
        prior, k = (0.5 if self.prior is None else self.prior), clients or 1
        if isinstance(self.schedule, PracticeSchedule):
            steps = self.stage(1, prior, k).local_steps
            last = (rounds - 1) * steps // self.schedule.stage_steps + 1
            problem = self.stage_problem(last, prior, k)
            return f"rounds: {rounds} given, but {problem}" if problem else None
        number, done = 0, 0
        while done < rounds:
            number += 1
            if problem := self.stage_problem(number, prior, k):
                return f"rounds: {rounds} given, but {problem}"
            done += self.stage(number, prior, k).rounds
        return None

    @property
    def proximal_weight(self) -> float:
        """gamma."""
        if self.gamma is not None:
            return self.gamma
        return self.schedule.gamma if isinstance(self.schedule, TheorySchedule) else 1e-3

    @property
    def first_step(self) -> float:
        """eta of the first stage, of schedules that do not derive it."""
        return 0.1 if self.step_size is None else self.step_size

    @property
    def bends_steps(self) -> bool:
        """Whether a step is not just a stochastic gradient."""
        bent = self.gradient_clip is not None or self.weight_decay > 0 or self.dual_floor is not None
        return bent or self.dual_step != "gradient"

    def positives_of_batch(self, samples: int, positives: int) -> int:
        """Return how many positive samples each stratified batch of a client has."""
        size = self.batch_size or samples
        if positives in (0, samples):
            return size if positives else 0
        share = positives / samples if self.positive_share is None else self.positive_share
        return min(max(1, round(share * size)), size - 1)

    def positive_rate(self, samples: int, positives: int) -> float:
        """Return p_k: which share of the samples that a client draws is positive, in the mean."""
        if self.batches == "stratified" and self.batch_size is not None:
            return self.positives_of_batch(samples, positives) / self.batch_size
        return positives / samples

    @abstractmethod
    def stage(self, number: int, prior: float, clients: int) -> Stage:
        """Return stage ``number``, counted from 1.

        Parameters
        ----------
        number
            s.
        prior, clients
            p and K.
        """


class WindowedSettings(StagedSettings):
    """For those that take several local steps in a round."""

    local_steps: PositiveInt | None = Field(
        None,
        description="local steps in a round (I); null: 32, or with schedule.kind: theory what the theorem asks for, "
        "where nothing else is possible. The longer a round, the smaller the step size must be",
    )

    @model_validator(mode="after")
    def _stages_have_rounds(self) -> Self:
        if isinstance(self.schedule, TheorySchedule):
            if self.local_steps is not None:
                raise ValueError(
                    f"local_steps is {self.local_steps}, but with schedule.kind: theory the length of rounds follows "
                    "from the theorem; leave it out, or use schedule.window"
                )
        elif self.schedule.stage_steps < self.round_steps:
            raise ValueError(
                f"schedule.stage_steps is {self.schedule.stage_steps}, but a round has {self.round_steps} local_steps; "
                "a stage needs at least one round"
            )
        return self

    @property
    def round_steps(self) -> int:
        """I, of schedules that do not derive it."""
        return 32 if self.local_steps is None else self.local_steps


class AveragingSettings(WindowedSettings):
    """What CODA+ and CODA share."""

    output: Literal["average", "last"] = Field(
        "average",
        description="what a stage hands on. average: of all local iterates of all clients, as in the paper; last: the "
        "model after its last round",
    )

    @property
    def needs_everybody(self) -> str | None:
        """The average is over all clients."""
        return "output: average is the mean over all local iterates" if self.output == "average" else None

    def stage(self, number: int, prior: float, clients: int) -> Stage:
        """Return stage ``number``: of the experiments, or of Theorem 1."""
        if isinstance(self.schedule, TheorySchedule):
            return self.schedule.averaging_stage(number, self.step_size, prior, clients)
        return self.schedule.stage(number, self.first_step, self.round_steps)


class CodaPlusSettings(AveragingSettings):
    """Local descent and ascent with periodic averaging (Yuan et al. 2021, Algorithms 1 and 2)."""

    asks: ClassVar[tuple[str, ...]] = ("count", "train", "average")

    name: Literal["coda-plus"] = "coda-plus"


class CodaSettings(AveragingSettings):
    """CODA, which computes alpha anew after each stage (Guo et al. 2020; section 2.4)."""

    asks: ClassVar[tuple[str, ...]] = ("count", "train", "average", "score")

    name: Literal["coda"] = "coda"
    dual_batch_size: PositiveInt | None = Field(
        None, description="samples for the new alpha after a stage (m_s); null: the whole shard"
    )
    dual_estimator: Literal["mixture", "client-means"] = Field(
        "mixture",
        description="how the new alpha is made. mixture: from the mean scores of either class over all clients; "
        "client-means: the mean of the clients' own values, as in the paper, which is another number where clients "
        "differ, and leaves out clients without samples of either class",
    )

    @model_validator(mode="after")
    def _estimator_knows_the_prior(self) -> Self:
        if self.prior is not None and self.dual_estimator == "client-means":
            raise ValueError(
                "dual_estimator: client-means takes differences of mean scores, which maximise the min-max function "
                f"only for the clients' own share of positive samples, but prior: {self.prior:g} is given; use mixture"
            )
        return self


class NaiveSettings(StagedSettings):
    """The naive parallel algorithm: one averaged gradient a round (appendix C of the paper)."""

    asks: ClassVar[tuple[str, ...]] = ("count", "gradient")
    stateless: ClassVar[bool] = True

    name: Literal["npa"] = "npa"
    output: Literal["average", "last"] = Field(
        "average",
        description="what a stage hands on. average: of the model after each of its rounds; last: after the last",
    )

    @property
    def local_steps(self) -> int:
        """I = 1."""
        return 1

    def stage(self, number: int, prior: float, clients: int) -> Stage:
        """Return stage ``number``: of the experiments, or of Theorem 1 with I = 1."""
        if isinstance(self.schedule, TheorySchedule):
            return self.schedule.averaging_stage(number, self.step_size, prior, clients, local_steps=1)
        return self.schedule.stage(number, self.first_step, 1)

    @model_validator(mode="after")
    def _steps_are_the_servers(self) -> Self:
        if self.bends_steps:
            raise ValueError(
                "gradient_clip, weight_decay, dual_floor and dual_step change the steps of clients, but with npa the "
                "server takes them; use coda-plus with local_steps: 1"
            )
        return self

    @model_validator(mode="after")
    def _rounds_have_one_step(self) -> Self:
        if isinstance(self.schedule, TheorySchedule) and (
            self.schedule.window != 1 or not self.schedule.heterogeneous
        ):
            raise ValueError(
                "schedule.window and schedule.heterogeneous say how long rounds are, but those of npa have one step; "
                "leave them out"
            )
        return self


class CodascaSettings(WindowedSettings):
    """CODA+ with control variates on primal and dual variables (Yuan et al. 2021, Algorithms 3 and 4)."""

    asks: ClassVar[tuple[str, ...]] = ("count", "gradient", "train")

    name: Literal["codasca"] = "codasca"
    server_step_size: PositiveFloat | None = Field(
        None,
        description="step size of the server along the mean change (eta_g); null: 1, or with schedule.kind: theory the "
        "square root of the number of clients",
    )
    cv_init: Literal["carry", "zero", "gradient"] = Field(
        "carry",
        description="control variates at the start of a stage. carry: those of the stage before; zero: 0, as in the "
        "paper, which lets clients drift in the first round of every stage; gradient: each client's gradient there, "
        "for one more exchange",
    )
    cv_batch_size: PositiveInt | None = Field(
        None, description="with cv_init: gradient, samples for that gradient; null: the whole shard"
    )
    output: Literal["last", "random"] = Field(
        "last",
        description="what a stage hands on. last: the model after its last round; random: after a random round, as in "
        "the paper; the stage then ends there",
    )
    wire: Literal["paper", "compact"] = Field(
        "compact",
        description="paper: 2 (d + 3) numbers a round and client in each direction; compact: d + 3 each, the same "
        "algorithm, for which all clients must take part in every round",
    )

    @model_validator(mode="after")
    def _wire_fits(self) -> Self:
        if self.wire == "compact" and self.bends_steps:
            raise ValueError(
                "gradient_clip, weight_decay, dual_floor and dual_step: plug-in make steps that do not follow from the "
                "control variates alone, which is all that travels with wire: compact; use wire: paper"
            )
        return self

    @model_validator(mode="after")
    def _first_control_variates_fit(self) -> Self:
        if self.cv_init != "gradient" and self.cv_batch_size is not None:
            raise ValueError(
                f"cv_batch_size belongs to cv_init: gradient, but cv_init is {self.cv_init}; leave it out"
            )
        if self.cv_init == "gradient" and self.batches == "stratified":
            raise ValueError(
                "cv_init: gradient takes gradients on samples as they are, but batches: stratified draws others; use "
                "cv_init: carry, or batches: independent"
            )
        return self

    @model_validator(mode="after")
    def _theory_is_for_all_data(self) -> Self:
        if isinstance(self.schedule, TheorySchedule) and not self.schedule.heterogeneous:
            raise ValueError(
                "schedule.heterogeneous: false shortens the rounds of coda-plus and coda; those of codasca are the "
                "same for all data; leave it out"
            )
        return self

    @property
    def needs_everybody(self) -> str | None:
        """What travels in the compact form are means over all clients."""
        if self.wire == "compact":
            return "wire: compact leaves out what follows from the mean of all clients"
        return None

    def server_step(self, clients: int) -> float:
        """eta_g."""
        if self.server_step_size is not None:
            return self.server_step_size
        return math.sqrt(clients) if isinstance(self.schedule, TheorySchedule) else 1.0

    def stage(self, number: int, prior: float, clients: int) -> Stage:
        """Return stage ``number``: of the experiments, or of Theorem 2."""
        if isinstance(self.schedule, TheorySchedule):
            eta_g = self.server_step(clients)
            length = (
                None
                if self.step_size is None
                else self.step_size * eta_g * max(1, round(self.schedule.window))
            )
            return self.schedule.controlled_stage(number, length, prior, eta_g)
        return self.schedule.stage(number, self.first_step, self.round_steps)
