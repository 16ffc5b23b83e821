"""What the two halves of an algorithm share: its settings, and mathematics that both sides need.

An algorithm is found by name: one of :data:`_BUILTIN`, or ``package.module:Class`` for one from outside
the project, whose module holds both halves (``Class`` and ``ClassClient``).
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any, ClassVar, Literal, TypeAlias

from pydantic import Field

from fenchel.common.errors import SettingsError
from fenchel.common.settings.participation import Participation, Sampler
from fenchel.common.settings.section import Section
from fenchel.common.settings.uplink import Uplink

Weighting: TypeAlias = Literal["samples", "uniform"]
"""What counts alike in a sum over clients: each sample, or each client."""

SMALLEST_STEP = 2.0**-126
"""Smaller step sizes lose their digits in float32, and then are 0."""


class AlgorithmSettings(Section):
    """Base of the settings of all algorithms; a subclass adds the parameters of its paper.

    Attributes
    ----------
    splits_features
        Whether the algorithm works where clients hold different features of the same samples.
    treats_regularizer
        Whether the algorithm minimises h too, the term ``objective.regularizer``.
    treats_nonconvex
        Whether the algorithm works with nothing but gradients of the clients' objectives, so that a term that
        is not convex (``objective.nonconvex``) does no harm.
    uses_uplink
        Whether clients send their vectors through the uplink, and take the model from the downlink.
    asks
        The phases that the server half asks. For an algorithm from outside the project its client half says it.
    stateless
        Whether the client half keeps nothing from one instruction to the next. For an algorithm from outside the
        project its client half says it.
    other_problem
        What the algorithm minimises where :meth:`minimises` has no name for it; empty: it does not say.
    """

    splits_features: ClassVar[bool] = False
    uses_uplink: ClassVar[bool] = False
    treats_regularizer: ClassVar[bool] = False
    treats_nonconvex: ClassVar[bool] = False
    asks: ClassVar[tuple[str, ...]] = ()
    stateless: ClassVar[bool] = False
    other_problem: ClassVar[str] = ""

    name: str = Field(description="the algorithm")

    @property
    def key_bits(self) -> int | None:
        """Length of the Paillier key that the clients must share; ``None``: the algorithm needs none."""
        return None

    @property
    def takes_subgradient(self) -> bool:
        """Whether clients step along subgradients of h, so that h must have some."""
        return False

    @property
    def prox_penalty(self) -> float | None:
        """The smallest penalty rho with which the proximal operator of h is taken; ``None``: it never is."""
        return None

    def minimises(self, sampler: Sampler) -> Weighting | None:
        """Return how the clients' mean losses are weighted in the sum that the algorithm minimises.

        Parameters
        ----------
        sampler
            How cohorts are drawn: who is drawn more often may count for more.

        Returns
        -------
        Weighting or None
            ``"samples"``: each sample counts alike; ``"uniform"``: each client does; ``None``: it minimises
            something else, or does not say what.
        """
        return None

    def link_problem(self, uplink: Uplink, *, noisy: bool) -> str | None:
        """Say why the algorithm does not work if its vectors are changed on their way so; ``None``: it does.

        Parameters
        ----------
        uplink
            What is done to what clients send.
        noisy
            Whether noise is added, for differential privacy or not.
        """
        return None

    def participation_problem(self, participation: Participation) -> str | None:
        """Say why the algorithm does not work if clients take part so; ``None``: it does."""
        return None

    def rounds_problem(self, rounds: int, clients: int | None) -> str | None:
        """Say why the algorithm cannot do so many rounds; ``None``: it can. ``clients`` is ``None`` if not known."""
        return None

    @property
    def mirrors_initial(self) -> bool:
        """Whether clients, too, begin from the initial model, which they must then be able to make."""
        return False

    @property
    def warnings(self) -> tuple[str, ...]:
        """What people should be told, loudly, before such a run."""
        return ()


_BUILTIN: Mapping[str, str] = {
    "fedavg": "fenchel.algorithms.fedavg:FedAvgSettings",
    "fedprox": "fenchel.algorithms.fedprox:FedProxSettings",
    "scaffold": "fenchel.algorithms.scaffold:ScaffoldSettings",
    "feddyn": "fenchel.algorithms.feddyn:FedDynSettings",
    "fedpd": "fenchel.algorithms.fedpd:FedPDSettings",
    "mb-sgd": "fenchel.algorithms.mb_sgd:MiniBatchSGDSettings",
    "hybrid-fedavg": "fenchel.algorithms.hybrid.hybrid_fedavg:HybridFedAvgSettings",
    "hyfem-like": "fenchel.algorithms.hybrid.hyfem_like:HyFEMLikeSettings",
    "hyfdca": "fenchel.algorithms.hyfdca.settings:HyFDCASettings",
    "feddcd": "fenchel.algorithms.feddcd.settings:FedDCDSettings",
    "fedpdm": "fenchel.algorithms.fedpdm:FedPDMSettings",
    "acc-feddcd": "fenchel.algorithms.feddcd.settings:AccFedDCDSettings",
    "drdm": "fenchel.algorithms.robust.settings:DRDMSettings",
    "drfa": "fenchel.algorithms.robust.settings:DRFASettings",
    "scaff-pd": "fenchel.algorithms.robust.settings:ScaffPDSettings",
    "codasca": "fenchel.algorithms.auc.codasca:CodascaSettings",
    "coda-plus": "fenchel.algorithms.auc.coda:CodaPlusSettings",
    "coda": "fenchel.algorithms.auc.coda:CodaSettings",
    "npa": "fenchel.algorithms.auc.npa:NaiveSettings",
}
"""Settings of the algorithms that come with Fenchel, by name."""


def attribute(reference: str) -> Any:
    """Import ``package.module:Name``.

    Raises
    ------
    SettingsError
        The module or the name in it does not exist.
    """
    module_name, _, name = reference.partition(":")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise SettingsError(
            f"algorithm.name: {reference!r}: there is no module {error.name!r}; is it installed, or in this folder?"
        ) from None
    if not hasattr(module, name):
        raise SettingsError(f"algorithm.name: {reference!r}: the module {module_name!r} has no {name!r}")
    return getattr(module, name)


def is_outside(name: str) -> bool:
    """Whether an algorithm's name refers to code outside the project."""
    return ":" in name


def algorithm_settings(name: str) -> type[AlgorithmSettings]:
    """Return the settings class of an algorithm.

    Raises
    ------
    ValueError
        No such algorithm (pydantic turns it into an error that names the key).
    """
    if is_outside(name):
        found = attribute(name).Settings
    elif name in _BUILTIN:
        found = attribute(_BUILTIN[name])
    else:
        raise ValueError(
            f"there is no algorithm {name!r}; known: {', '.join(_BUILTIN)}; "
            "one of your own is named package.module:Class"
        )
    if not issubclass(found, AlgorithmSettings):
        raise ValueError(f"{name}: Settings must derive from fenchel.AlgorithmSettings")
    settings: type[AlgorithmSettings] = found
    return settings


def asked_phases(settings: AlgorithmSettings) -> tuple[str, ...]:
    """Return the phases that an algorithm asks; of one from outside the project, all that its client half answers.

    Raises
    ------
    SettingsError
        It is from outside, and its module has no client half.
    """
    if not is_outside(settings.name):
        return settings.asks
    half = attribute(settings.name + "Client")
    marks = (getattr(getattr(half, name), "answers_phase", None) for name in dir(half))
    return tuple(sorted(mark for mark in marks if mark is not None))


def keeps_no_state(settings: AlgorithmSettings) -> bool:
    """Whether the client half of an algorithm keeps no state, as far as it is known here without a client's word."""
    if not is_outside(settings.name):
        return settings.stateless
    module_name, _, name = settings.name.partition(":")
    half = getattr(importlib.import_module(module_name), f"{name}Client", None)
    return half is not None and bool(half.stateless())


def builtin_settings() -> dict[str, type[AlgorithmSettings]]:
    """Return the settings classes of the algorithms that come with Fenchel, by name."""
    return {name: algorithm_settings(name) for name in _BUILTIN}
