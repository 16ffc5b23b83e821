"""The client halves of the algorithms."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from client.algorithm import ClientAlgorithm
from common.algorithms import attribute, is_outside
from common.errors import SettingsError

_BUILTIN: Mapping[str, str] = {
    "fedavg": "client.algorithms.fedavg:FedAvgClient",
    "fedprox": "client.algorithms.fedprox:FedProxClient",
    "scaffold": "client.algorithms.scaffold:ScaffoldClient",
    "feddyn": "client.algorithms.feddyn:FedDynClient",
    "fedpd": "client.algorithms.fedpd:FedPDClient",
    "mb-sgd": "client.algorithms.mbsgd:MiniBatchSGDClient",
    "hybrid-fedavg": "client.algorithms.hybrid_fedavg:HybridFedAvgClient",
    "hyfem-like": "client.algorithms.hyfem:HyFEMLikeClient",
    "hyfdca": "client.algorithms.hyfdca:HyFDCAClient",
    "feddcd": "client.algorithms.feddcd:FedDCDClient",
    "fedpdm": "client.algorithms.fedpdm:FedPDMClient",
    "acc-feddcd": "client.algorithms.acc_feddcd:AccFedDCDClient",
    "drdm": "client.algorithms.drdm:DRDMClient",
    "drfa": "client.algorithms.drdm:DRFAClient",
    "scaff-pd": "client.algorithms.scaff_pd:ScaffPDClient",
    "codasca": "client.algorithms.codasca:CodascaClient",
    "coda-plus": "client.algorithms.coda:CodaPlusClient",
    "coda": "client.algorithms.coda:CodaClient",
    "npa": "client.algorithms.npa:NaiveClient",
}


def client_half(name: str, allowed: Collection[str] = ()) -> type[ClientAlgorithm]:
    """Return the client half of an algorithm.

    Parameters
    ----------
    name
        As in the settings, which come from the server.
    allowed
        Algorithms from outside the project that the person who started this client agreed to run.

    Raises
    ------
    SettingsError
        The name is unknown, or it is not allowed here.
    """
    if not is_outside(name):
        if name not in _BUILTIN:
            raise SettingsError(
                f"the server runs the algorithm {name!r}, which this version does not have "
                f"(it has {', '.join(_BUILTIN)}); install the server's version"
            )
        found = attribute(_BUILTIN[name])
    else:
        require_allowed(name, allowed)
        found = attribute(name + "Client")
    if not issubclass(found, ClientAlgorithm):
        raise SettingsError(f"{name}Client must derive from fenchel.ClientAlgorithm")
    half: type[ClientAlgorithm] = found
    return half


def require_allowed(name: str, allowed: Collection[str]) -> None:
    """Refuse code from outside the project that nobody on this side agreed to run.

    Raises
    ------
    SettingsError
        ``package.module:Class`` is not among ``allowed``: a server must not choose what code a client
        imports.
    """
    if name not in allowed:
        raise SettingsError(
            f"the server's settings name {name!r}, which is code from outside Fenchel; if you trust it, "
            f"start this client with --allow {name}"
        )
