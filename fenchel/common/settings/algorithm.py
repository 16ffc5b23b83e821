"""The base of the settings of all algorithms."""

from __future__ import annotations

from typing import ClassVar, Literal, TypeAlias

from pydantic import Field

from fenchel.common.crypto.public_key import Implementation
from fenchel.common.settings.participation import Participation, Sampler
from fenchel.common.settings.section import Section
from fenchel.common.settings.uplink import Uplink

Weighting: TypeAlias = Literal["samples", "uniform"]
"""What counts alike in a sum over clients: each sample, or each client."""

SMALLEST_STEP = 2.0**-126
"""Smaller step sizes lose their digits in float32, and then are 0."""


class AlgorithmSettings(Section):
    """Base of the settings of all algorithms; a subclass adds the parameters of its paper."""

    splits_features: ClassVar[bool] = False  # whether clients may hold different features of the same samples
    uses_uplink: ClassVar[bool] = False  # whether vectors are sent through the uplink, the model through the downlink
    treats_regularizer: ClassVar[bool] = False  # whether it minimises h too, the term ``objective.regularizer``
    treats_nonconvex: ClassVar[bool] = False
    """Whether it takes nothing but gradients of the clients' objectives, which ``objective.nonconvex`` does no harm."""
    uses_optimizer: ClassVar[bool] = False
    """True where local steps may be those of an optimiser that the objective brings."""
    phases: ClassVar[tuple[str, ...]] = ()
    """Phases that the client half answers, where it cannot be asked: the halves of HyFDCA lie apart, because a server
    must not import what decrypts."""
    other_problem: ClassVar[str] = ""
    """What the algorithm minimises where :meth:`minimises` has no name for it; empty: it does not say."""

    name: str = Field(description="the algorithm")

    @property
    def key_bits(self) -> int | None:
        """Length of the Paillier key that the clients must share; ``None``: the algorithm needs none."""
        return None

    @property
    def encryption_implementation(self) -> Implementation:
        """Maker of that key, which computes on ciphertexts, too."""
        return "fenchel"

    @property
    def hides_model(self) -> bool:
        """True if clients encrypt their contributions to the model, which the server then learns only at the end."""
        return False

    @property
    def takes_subgradient(self) -> bool:
        """Whether clients step along subgradients of h, so that h must have some: unless its prox is taken."""
        return self.treats_regularizer and self.prox_penalty is None

    @property
    def prox_penalty(self) -> float | None:
        """The smallest penalty rho with which the proximal operator of h is taken; ``None``: it never is."""
        return None

    def minimises(self, sampler: Sampler) -> Weighting | None:
        """Return how the clients' mean losses are weighted in the sum that the algorithm minimises.

        sampler: how cohorts are drawn: who is drawn more often may count for more.

        Returns: ``None``: it minimises something else, or does not say what.
        """
        return None

    def check_link(self, uplink: Uplink, *, noisy: bool) -> None:
        """Refuse changes of vectors on their way with which the algorithm does not work.

        Parameters
        ----------
        uplink
            What is done to what clients send.
        noisy
            Whether noise is added, for differential privacy or not.

        Raises
        ------
        ValueError
            The text names the setting of the algorithm, as ``algorithm: name: ...``, and what to change.
        """

    def check_participation(self, participation: Participation) -> None:
        """Refuse cohorts of clients with which the algorithm does not work.

        Raises
        ------
        ValueError
            The text names the setting to change.
        """

    def check_rounds(self, rounds: int, clients: int | None) -> None:
        """Refuse more rounds than the algorithm can do; ``clients`` is ``None`` if not known.

        Raises
        ------
        ValueError
            The text names the setting to change.
        """

    @property
    def mirrors_initial(self) -> bool:
        """Whether clients, too, begin from the initial model, which they must then be able to make."""
        return False

    @property
    def warnings(self) -> tuple[str, ...]:
        """What people should be told, loudly, before such a run."""
        return ()
