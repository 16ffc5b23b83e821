"""The secret exchange between clients, which the server relays and cannot read.

The server sees each client's X25519 public key and certificate, one sealed box for each receiving client, and
fingerprints of the secrets. A fingerprint reveals only whether two clients have the same secrets. The clients sign and
verify these messages themselves (:mod:`fenchel.keys.secret_exchange`), because the protocol must protect against the
server.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from fenchel.common.errors import RevokedError, RunStoppedError, SettingsError, TooFewRepliesError
from fenchel.common.wire.phases import ACCEPT, ACCEPTED, OFFER, OFFERED, SEAL, sealed_for
from fenchel.common.wire.schema import Expectation
from fenchel.common.wire.values import Value, Values
from fenchel.fleet.fleet import Fleet

log = logging.getLogger("fenchel.server")


async def share_secrets(
    fleet: Fleet, designated: str | None = None, check_certificate: Callable[[bytes], None] = lambda certificate: None
) -> str:
    """Run the secret exchange: one client generates the secrets, and the server relays them in sealed boxes.

    Parameters
    ----------
    fleet
        Fleet of the run.
    designated
        Id of the client that generates the secrets; ``None``: the first by id.
    check_certificate
        Function of a certificate (PEM) that raises ``RevokedError`` if it was revoked. A message with a revoked
        certificate is not relayed.

    Returns
    -------
    str
        Fingerprint of the secrets, the same on all clients.

    Raises
    ------
    RunStoppedError
        If a client did not answer, has a revoked certificate, or has other secrets.
    SettingsError
        If the run has no client named ``designated``.
    """
    clients = fleet.all().clients
    maker = clients[0] if designated is None else designated
    check_designated(maker, clients)
    others = [client for client in clients if client != maker]
    offers = await asyncio.gather(*(_ask(fleet, client, OFFER, OFFERED) for client in others))
    for client, offer in zip(others, offers, strict=True):
        _check(client, str(offer["certificate"]), check_certificate)
    offered = {
        f"{client}/{name}": value for client, offer in zip(others, offers, strict=True) for name, value in offer.items()
    }
    sealed = await _ask(fleet, maker, SEAL, sealed_for(others), offered)
    _check(maker, str(sealed["certificate"]), check_certificate)

    def parcel(client: str) -> Values:
        own = {name: sealed[f"{client}/{name}"] for name in ("box", "signature")}
        return own | {"sender": maker, "certificate": sealed["certificate"]}

    accepted = await asyncio.gather(*(_ask(fleet, client, ACCEPT, ACCEPTED, parcel(client)) for client in others))
    fingerprint = str(sealed["fingerprint"])
    for client, reply in zip(others, accepted, strict=True):
        if reply["fingerprint"] != fingerprint:
            raise RunStoppedError(
                f"client {client} has secrets with fingerprint {reply['fingerprint']}, but {maker} made those with "
                f"{fingerprint}, so the clients could not decrypt each other's values. The run does not begin; "
                f"begin a new one. If this recurs, {client} or {maker} runs other software than the rest"
            )
    log.info(
        "client %s made the secrets and sealed them for %d other clients; fingerprint %s",
        maker,
        len(others),
        fingerprint,
    )
    return fingerprint


def _check(client: str, certificate: str, check_certificate: Callable[[bytes], None]) -> None:
    """Raise ``RunStoppedError`` if the certificate of a client in the exchange was revoked."""
    try:
        check_certificate(certificate.encode())
    except RevokedError as error:
        raise RunStoppedError(
            f"client {client} cannot take part in the secret exchange: {error}. Begin a new run without it"
        ) from None


def check_designated(maker: str, clients: Sequence[str]) -> None:
    """Raise ``SettingsError`` unless the client that generates the secrets is a client of the run."""
    if maker not in clients:
        raise SettingsError(
            f"{maker!r} given, but no client of this run has that name; use one of {', '.join(clients)}, or leave "
            "the key out",
            key="secrets.designated",
        )


async def _ask(
    fleet: Fleet, client: str, phase: str, returns: Expectation, values: Values | None = None
) -> dict[str, Value]:
    """Send a request that changes no state to one client, and return its reply."""
    cohort = fleet.all().only(client.__eq__)
    try:
        replies = await cohort.inspect(phase, returns=returns, **(values or {}))
    except TooFewRepliesError as error:
        reason = f"{client}: {error.failures[client]}" if client in error.failures else ""
        raise RunStoppedError(
            f"the secret exchange failed in phase {phase!r}: {reason or f'client {client} did not answer'}. The "
            "run cannot begin without shared secrets; begin a new one"
        ) from None
    return dict(replies[client])
