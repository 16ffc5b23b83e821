"""What the two halves of an algorithm share: its settings, and mathematics that both sides need.

An algorithm is found by name: one of :data:`_BUILTIN`, or ``package.module:Class`` for one from outside
the project, whose module holds both halves (``Class`` and ``ClassClient``).
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import Field

from common.errors import SettingsError
from common.settings.section import Section


class AlgorithmSettings(Section):
    """Base of the settings of all algorithms; a subclass adds the parameters of its paper.

    Attributes
    ----------
    splits_features
        Whether the algorithm works where clients hold different features of the same samples.
    """

    splits_features: ClassVar[bool] = False

    name: str = Field(description="the algorithm")

    @property
    def key_bits(self) -> int | None:
        """Length of the Paillier key that the clients must share; ``None``: the algorithm needs none."""
        return None

    @property
    def warnings(self) -> tuple[str, ...]:
        """What people should be told, loudly, before such a run."""
        return ()


_BUILTIN: Mapping[str, str] = {
    "fedavg": "common.algorithms.fedavg:FedAvgSettings",
    "fedprox": "common.algorithms.fedprox:FedProxSettings",
    "scaffold": "common.algorithms.scaffold:ScaffoldSettings",
    "mb-sgd": "common.algorithms.mbsgd:MiniBatchSGDSettings",
    "hybrid-fedavg": "common.algorithms.hybrid_fedavg:HybridFedAvgSettings",
    "hyfem-like": "common.algorithms.hyfem:HyFEMLikeSettings",
    "hyfdca": "common.algorithms.hyfdca:HyFDCASettings",
    "feddcd": "common.algorithms.feddcd:FedDCDSettings",
    "acc-feddcd": "common.algorithms.feddcd:AccFedDCDSettings",
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


def builtin_settings() -> dict[str, type[AlgorithmSettings]]:
    """Return the settings classes of the algorithms that come with Fenchel, by name."""
    return {name: algorithm_settings(name) for name in _BUILTIN}
