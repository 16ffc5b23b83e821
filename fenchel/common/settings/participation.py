"""Settings of participation: sampling of cohorts, deadlines and quorums."""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated, Literal

from pydantic import Field, PositiveFloat, PositiveInt

from fenchel.common.settings.section import Section, did_you_mean
from fenchel.common.wire.phases import RUNTIME


class AllClients(Section):
    """Participation of every client in every round."""

    kind: Literal["all"] = "all"


class FixedSize(Section):
    """A uniform random subset of fixed size, without replacement."""

    kind: Literal["fixed"] = "fixed"
    size: PositiveInt = Field(description="clients a round (tau, m or K in the papers)")


class Fraction(Section):
    """A uniform random subset of max(1, floor(fraction * clients + 1/2)) clients."""

    kind: Literal["fraction"] = "fraction"
    fraction: float = Field(gt=0, le=1, description="share of the clients that take part in a round")


class Bernoulli(Section):
    """Independent draw of each client with the same probability, repeated if no client is drawn."""

    kind: Literal["bernoulli"] = "bernoulli"
    # The lower bound keeps repeated draws few: a tiny probability would occupy the server.
    probability: float = Field(ge=1e-4, le=1, description="probability that a client takes part in a round")


class Cyclic(Section):
    """Groups of clients, equal up to one, in round-robin order."""

    kind: Literal["cyclic"] = "cyclic"
    groups: PositiveInt = Field(description="number of groups (C); group (round - 1) mod C is active")


class Weighted(Section):
    """Clients drawn with probability proportional to their number of samples."""

    kind: Literal["weighted"] = "weighted"
    size: PositiveInt = Field(description="clients drawn a round")
    replacement: bool = Field(False, description="whether a client may be drawn more than once in a round")


OnShortage = Literal["wait", "stop"]

Sampler = Annotated[AllClients | FixedSize | Fraction | Bernoulli | Cyclic | Weighted, Field(discriminator="kind")]


class PhaseTerms(Section):
    """Deadline and quorum of one phase."""

    deadline: PositiveFloat | None = Field(
        None, description="seconds to wait for replies of the phase; null: participation.deadline"
    )
    min_replies: PositiveInt | None = Field(
        None,
        description="number of replies that the phase needs; null: participation.min_replies. The algorithm may need "
        "more",
    )


class Participation(Section):
    """Sampling of cohorts, and treatment of clients that do not answer."""

    sampler: Sampler = Field(default_factory=AllClients, description="sampling of the cohort of each round")
    deadline: PositiveFloat = Field(
        120.0, description="seconds after which a phase with enough replies continues without the others"
    )
    min_replies: PositiveInt = Field(
        1, description="replies that a phase needs, its quorum (all, if fewer clients are asked)"
    )
    on_shortage: OnShortage = Field(
        "wait",
        description="action after the deadline without enough replies: wait for them without limit, with a warning, or "
        "stop the run. Both can be resumed",
    )
    patience: PositiveInt | None = Field(
        3,
        description="number of deadlines missed in a row after which phases with enough replies no longer wait for a "
        "client; it still receives requests. Also the number of rounds without a reply after which other clients take "
        "its place in cohorts. null: every phase waits for all clients, and all can be drawn",
    )
    phases: dict[str, PhaseTerms] = Field(
        {},
        description="deadline and min_replies of single phases, by name: a phase of the algorithm, such as train, or "
        "fenchel.evaluate",
    )
    on_lost_state: Literal["stop", "continue"] = Field(
        "stop",
        description="action if a client cannot continue, because its journal is missing or its backlog too large: stop "
        "the run, or continue without that client",
    )
    late_joiners: Literal["refuse", "admit"] = Field(
        "refuse",
        description="clients that join after the run has begun: refuse them, or admit them from the next round on. "
        "admit needs clients with their own data (data.name: own, fenchel client --data FILE), because a data set that "
        "was divided at the start has no samples left, and an algorithm that does not align samples or features",
    )

    def check_phases(self, algorithm: str, asked: Collection[str]) -> None:
        """Refuse :attr:`phases` that are never asked.

        Raises
        ------
        ValueError
            Neither the algorithm nor Fenchel itself asks a phase of this name.
        """
        known = [*asked, *sorted(RUNTIME)]
        for phase in self.phases:
            if phase not in known:
                meant = did_you_mean(phase, known)
                raise ValueError(
                    f"participation.phases: {algorithm} has no phase {phase!r}{f'; {meant}' if meant else '.'} Its "
                    f"phases are {', '.join(asked)}, and those of Fenchel itself {', '.join(sorted(RUNTIME))}"
                )

    def most_replies(self) -> tuple[str, int]:
        """Return the key that wants the most replies, and how many."""
        keys = {"participation.min_replies": self.min_replies}
        keys |= {
            f"participation.phases.{phase}.min_replies": terms.min_replies or 0 for phase, terms in self.phases.items()
        }
        return max(keys.items(), key=lambda each: each[1])
