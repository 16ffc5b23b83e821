"""The base of the settings of all algorithms."""

from __future__ import annotations

from typing import ClassVar, Literal, TypeAlias

from pydantic import Field

from fenchel.common.crypto.public_key import Implementation
from fenchel.common.settings.participation import Participation, Sampler
from fenchel.common.settings.section import Section
from fenchel.common.settings.uplink import Uplink

Weighting: TypeAlias = Literal["samples", "uniform"]
"""Weights in a sum over clients: equal for each sample, or for each client."""

SMALLEST_STEP = 2.0**-126
"""Smaller step sizes lose their digits in float32, and then are 0."""


class AlgorithmSettings(Section):
    """Base class of an algorithm's settings, the section ``algorithm``.

    A subclass adds the algorithm's hyperparameters as pydantic fields. Its class attributes, properties and ``check_``
    methods declare the settings that the algorithm supports. All others are rejected before a run starts.

    Attributes
    ----------
    name : str
        Name of the algorithm, or ``module:Class`` of its server half.
    splits_features : bool
        Class attribute: support for clients that hold different features of the same samples. Default: false.
    uses_uplink : bool
        Class attribute: support for the sections ``uplink``, ``downlink`` and ``differential_privacy``. Default: false.
    treats_regularizer : bool
        Class attribute: support for ``objective.regularizer``, a term h added to the objective. Default: false.
    treats_nonconvex : bool
        Class attribute: support for ``objective.nonconvex``, for algorithms that use only gradients. Default: false.
    uses_optimizer : bool
        Class attribute: support for local steps by the objective's own optimiser. Default: false.
    phases : tuple[str, ...]
        Class attribute: phases of the client half, for a client half that the server must not import, such as one that
        decrypts. Default: empty, so that they are read from the client half.
    other_problem : str
        Class attribute: description of the problem that the algorithm minimises if
        :meth:`fenchel.AlgorithmSettings.minimises` returns ``None``. Default: empty.
    """

    splits_features: ClassVar[bool] = False
    uses_uplink: ClassVar[bool] = False
    treats_regularizer: ClassVar[bool] = False
    treats_nonconvex: ClassVar[bool] = False
    uses_optimizer: ClassVar[bool] = False
    phases: ClassVar[tuple[str, ...]] = ()
    other_problem: ClassVar[str] = ""

    name: str = Field(description="the algorithm")

    @property
    def key_bits(self) -> int | None:
        """Length in bits of the Paillier key that the clients share. ``None`` for an algorithm without encryption."""
        return None

    @property
    def encryption_implementation(self) -> Implementation:
        """Paillier implementation that creates the key and computes on ciphertexts: ``"fenchel"`` or ``"phe"``."""
        return "fenchel"

    @property
    def hides_model(self) -> bool:
        """True if clients encrypt their contributions to the model, so that the server learns it only at the end."""
        return False

    @property
    def takes_subgradient(self) -> bool:
        """True if clients step along subgradients of the regulariser h, so that h must have subgradients."""
        return self.treats_regularizer and self.prox_penalty is None

    @property
    def prox_penalty(self) -> float | None:
        """Smallest penalty rho with which the proximal operator of h is evaluated. ``None`` if it is not used."""
        return None

    def minimises(self, sampler: Sampler) -> Weighting | None:
        """Return the weighting of the clients' mean losses in the sum that the algorithm minimises.

        Parameters
        ----------
        sampler : Sampler
            Sampler of cohorts (``participation.sampler``), which can change the weights.

        Returns
        -------
        {"samples", "uniform"} or None
            Equal weight of each sample, or of each client. ``None`` for another problem or an unknown one.
        """
        return None

    def check_link(self, uplink: Uplink, *, noisy: bool) -> None:
        """Reject uplink settings that the algorithm does not support. The default accepts all.

        Parameters
        ----------
        uplink : Uplink
            Section ``uplink`` of the settings.
        noisy : bool
            True if clients add noise to what they send, for differential privacy or without it.

        Raises
        ------
        ValueError
            The settings are not supported. The text names the setting as ``algorithm: name: ...``, and the change to
            make.
        """

    def check_participation(self, participation: Participation) -> None:
        """Reject participation settings that the algorithm does not support. The default accepts all.

        Parameters
        ----------
        participation : Participation
            Section ``participation`` of the settings.

        Raises
        ------
        ValueError
            The settings are not supported. The text names the setting to change.
        """

    def check_rounds(self, rounds: int, clients: int | None) -> None:
        """Reject a number of rounds that the algorithm does not support. The default accepts all.

        Parameters
        ----------
        rounds : int
            Number of rounds of the run.
        clients : int or None
            Number of clients. ``None`` if it is not known yet.

        Raises
        ------
        ValueError
            The number is not supported. The text names the setting to change.
        """

    @property
    def mirrors_initial(self) -> bool:
        """True if clients compute the initial model themselves, so that it cannot come from a file of the server."""
        return False

    @property
    def uses_initial(self) -> bool:
        """True if a run begins at the initial model, so that ``objective.initial`` has an effect."""
        return True

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings to print prominently before a run with these settings."""
        return ()
