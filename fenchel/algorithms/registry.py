"""Registry of algorithm halves by name, and the check of permission for code from outside Fenchel."""

from __future__ import annotations

from collections.abc import Collection

from fenchel.algorithms.client_half import ClientAlgorithm, handlers_of
from fenchel.algorithms.server_half import Algorithm
from fenchel.common.errors import SettingsError
from fenchel.common.settings.registry import algorithm_settings, half, is_outside, names


def server_half(name: str) -> type[Algorithm]:
    """Return the server half of an algorithm, by the name in the settings.

    Raises
    ------
    ValueError
        If the algorithm is unknown.
    SettingsError
        If its class does not derive from :class:`Algorithm`.
    """
    found = half(name, "server")
    if not issubclass(found, Algorithm):
        raise SettingsError(
            f"{name!r} does not derive from fenchel.Algorithm; make its class a subclass", key="algorithm.name"
        )
    checked: type[Algorithm] = found
    return checked


def client_half(name: str, allowed: Collection[str] = ()) -> type[ClientAlgorithm]:
    """Return the client half of an algorithm.

    Parameters
    ----------
    name
        Name in the settings, which come from the server.
    allowed
        Names of algorithms from outside Fenchel that the client's operator allows.

    Raises
    ------
    SettingsError
        If the algorithm is unknown or not allowed, its class does not derive from :class:`ClientAlgorithm`, or values
        cannot be checked by the annotations of a handler.
    """
    if is_outside(name):
        require_allowed(name, allowed)
    else:
        try:
            algorithm_settings(name)
        except ValueError:
            raise SettingsError(
                f"the server runs the algorithm {name!r}, which this version of Fenchel does not have (it has "
                f"{', '.join(names())}); install the server's version",
                key="algorithm.name",
            ) from None
    found = half(name, "client")
    if not issubclass(found, ClientAlgorithm):
        raise SettingsError(
            f"{name}Client does not derive from fenchel.ClientAlgorithm; make its class a subclass",
            key="algorithm.name",
        )
    checked: type[ClientAlgorithm] = found
    try:
        handlers_of(checked)  # type: ignore[arg-type]  # as in the half's constructor
    except TypeError as error:
        raise SettingsError(str(error), key="algorithm.name") from None
    return checked


def require_allowed(name: str, allowed: Collection[str]) -> None:
    """Reject code from outside Fenchel that the client's operator does not allow."""
    if name not in allowed:
        raise SettingsError(
            f"the server's settings name {name!r}, which is code from outside Fenchel; if you trust that code, "
            f"start this client with --allow {name}",
            key="algorithm.name",
        )
