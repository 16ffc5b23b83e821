"""The server halves of the algorithms."""

from __future__ import annotations

from collections.abc import Mapping

from common.algorithms import attribute, is_outside
from common.errors import SettingsError
from server.algorithm import Algorithm

_BUILTIN: Mapping[str, str] = {
    "fedavg": "server.algorithms.fedavg:FedAvg",
    "fedprox": "server.algorithms.fedprox:FedProx",
    "scaffold": "server.algorithms.scaffold:Scaffold",
    "feddyn": "server.algorithms.feddyn:FedDyn",
    "fedpd": "server.algorithms.fedpd:FedPD",
    "mb-sgd": "server.algorithms.mbsgd:MiniBatchSGD",
    "hybrid-fedavg": "server.algorithms.hybrid_fedavg:HybridFedAvg",
    "hyfem-like": "server.algorithms.hyfem:HyFEMLike",
    "hyfdca": "server.algorithms.hyfdca:HyFDCA",
    "feddcd": "server.algorithms.feddcd:FedDCD",
    "fedpdm": "server.algorithms.fedpdm:FedPDM",
    "acc-feddcd": "server.algorithms.acc_feddcd:AccFedDCD",
    "drdm": "server.algorithms.drdm:DRDM",
    "drfa": "server.algorithms.drfa:DRFA",
    "scaff-pd": "server.algorithms.scaff_pd:ScaffPD",
    "codasca": "server.algorithms.codasca:Codasca",
    "coda-plus": "server.algorithms.coda:CodaPlus",
    "coda": "server.algorithms.coda:Coda",
    "npa": "server.algorithms.npa:Naive",
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
