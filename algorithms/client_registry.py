"""The client halves of the algorithms."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from fenchel.algorithms.client_half import ClientAlgorithm
from fenchel.common.algorithm_registry import attribute, is_outside
from fenchel.common.errors import SettingsError

_BUILTIN: Mapping[str, str] = {
    "fedavg": "fenchel.algorithms.fedavg:FedAvgClient",
    "fedprox": "fenchel.algorithms.fedprox:FedProxClient",
    "scaffold": "fenchel.algorithms.scaffold:ScaffoldClient",
    "feddyn": "fenchel.algorithms.feddyn:FedDynClient",
    "fedpd": "fenchel.algorithms.fedpd:FedPDClient",
    "mb-sgd": "fenchel.algorithms.mb_sgd:MiniBatchSGDClient",
    "hybrid-fedavg": "fenchel.algorithms.hybrid.hybrid_fedavg:HybridFedAvgClient",
    "hyfem-like": "fenchel.algorithms.hybrid.hyfem_like:HyFEMLikeClient",
    "hyfdca": "fenchel.algorithms.hyfdca.client:HyFDCAClient",
    "feddcd": "fenchel.algorithms.feddcd.feddcd:FedDCDClient",
    "fedpdm": "fenchel.algorithms.fedpdm:FedPDMClient",
    "acc-feddcd": "fenchel.algorithms.feddcd.acc_feddcd:AccFedDCDClient",
    "drdm": "fenchel.algorithms.robust.drdm:DRDMClient",
    "drfa": "fenchel.algorithms.robust.drdm:DRFAClient",
    "scaff-pd": "fenchel.algorithms.robust.scaff_pd:ScaffPDClient",
    "codasca": "fenchel.algorithms.auc.codasca:CodascaClient",
    "coda-plus": "fenchel.algorithms.auc.coda:CodaPlusClient",
    "coda": "fenchel.algorithms.auc.coda:CodaClient",
    "npa": "fenchel.algorithms.auc.npa:NaiveClient",
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
