"""The server halves of the algorithms."""

from __future__ import annotations

from collections.abc import Mapping

from fenchel.algorithms.server_half import Algorithm
from fenchel.common.algorithm_registry import attribute, is_outside
from fenchel.common.errors import SettingsError

_BUILTIN: Mapping[str, str] = {
    "fedavg": "fenchel.algorithms.fedavg:FedAvg",
    "fedprox": "fenchel.algorithms.fedprox:FedProx",
    "scaffold": "fenchel.algorithms.scaffold:Scaffold",
    "feddyn": "fenchel.algorithms.feddyn:FedDyn",
    "fedpd": "fenchel.algorithms.fedpd:FedPD",
    "mb-sgd": "fenchel.algorithms.mb_sgd:MiniBatchSGD",
    "hybrid-fedavg": "fenchel.algorithms.hybrid.hybrid_fedavg:HybridFedAvg",
    "hyfem-like": "fenchel.algorithms.hybrid.hyfem_like:HyFEMLike",
    "hyfdca": "fenchel.algorithms.hyfdca.server:HyFDCA",
    "feddcd": "fenchel.algorithms.feddcd.feddcd:FedDCD",
    "fedpdm": "fenchel.algorithms.fedpdm:FedPDM",
    "acc-feddcd": "fenchel.algorithms.feddcd.acc_feddcd:AccFedDCD",
    "drdm": "fenchel.algorithms.robust.drdm:DRDM",
    "drfa": "fenchel.algorithms.robust.drfa:DRFA",
    "scaff-pd": "fenchel.algorithms.robust.scaff_pd:ScaffPD",
    "codasca": "fenchel.algorithms.auc.codasca:Codasca",
    "coda-plus": "fenchel.algorithms.auc.coda:CodaPlus",
    "coda": "fenchel.algorithms.auc.coda:Coda",
    "npa": "fenchel.algorithms.auc.npa:Naive",
}


def server_half(name: str) -> type[Algorithm]:
    """Return the server half of an algorithm, by the name in the settings.

    Raises
    ------
    SettingsError
        There is no such algorithm.
    """
    found = attribute(name if is_outside(name) else _BUILTIN[name])
    if not issubclass(found, Algorithm):
        raise SettingsError(f"algorithm.name: {name!r} must derive from fenchel.Algorithm")
    half: type[Algorithm] = found
    return half


def builtin() -> dict[str, type[Algorithm]]:
    """Return the server halves of the algorithms that come with Fenchel, by name."""
    return {name: server_half(name) for name in _BUILTIN}
