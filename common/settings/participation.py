"""Who takes part in a round, and how long the server waits for them."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, PositiveFloat, PositiveInt

from common.settings.section import Section


class AllClients(Section):
    """Every client, every round."""

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
    """Each client independently with the same probability; drawn again if nobody was drawn."""

    kind: Literal["bernoulli"] = "bernoulli"
    probability: float = Field(gt=0, le=1, description="probability that a client takes part in a round")


class Cyclic(Section):
    """Groups of clients, equal up to one, in round-robin order."""

    kind: Literal["cyclic"] = "cyclic"
    groups: PositiveInt = Field(description="number of groups (C); group (round - 1) mod C is active")


class Weighted(Section):
    """Clients drawn with probability proportional to their number of samples."""

    kind: Literal["weighted"] = "weighted"
    size: PositiveInt = Field(description="clients drawn a round")
    replacement: bool = Field(False, description="whether a client may be drawn more than once in a round")


Sampler = Annotated[
    AllClients | FixedSize | Fraction | Bernoulli | Cyclic | Weighted, Field(discriminator="kind")
]


class Participation(Section):
    """Who takes part, and what happens when somebody does not answer."""

    sampler: Sampler = Field(default_factory=AllClients, description="how each round's cohort is drawn")
    deadline: PositiveFloat = Field(120.0, description="seconds that a phase waits for its replies")
    min_replies: PositiveInt = Field(
        1, description="a phase with fewer replies than this stops the run (capped at the cohort's size)"
    )
    on_lost_state: Literal["stop", "continue"] = Field(
        "stop",
        description="when a client comes back without its journal: stop the run, or continue without that client",
    )
    late_joiners: Literal["refuse", "admit"] = Field(
        "refuse",
        description="a client that joins after the run has begun: refuse it, or admit it from the next round on. admit "
        "needs clients that bring their own data (data.name: own, fenchel client --data FILE), as of a data set that "
        "was divided at the start nothing is left; and an algorithm that does not align samples or features",
    )
