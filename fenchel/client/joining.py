"""Joining a run: from what a client was started with, and the server's answer, to a session.

Every client comes this way: over a network, in one process, and in tests. So no settings of a server reach a session
without having passed the limits of the person who started the client.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from fenchel.client.disk_quota import DiskQuota
from fenchel.client.local_data import DataProvider
from fenchel.client.privacy.ledger import POLICY_LEDGER, Account
from fenchel.client.privacy.policy import Policy
from fenchel.client.session import Session
from fenchel.client.trust_limits import TrustLimits, check_run
from fenchel.common.errors import SettingsError
from fenchel.common.settings.run import RunSettings
from fenchel.common.settings.solver import Solver
from fenchel.common.tls.credentials import Credentials
from fenchel.common.version import PROTOCOL, software
from fenchel.proto import fenchel_pb2 as pb

if TYPE_CHECKING:
    from fenchel.keys.secret_exchange import SecretExchange
    from fenchel.keys.shared import Secrets


@dataclass(frozen=True, kw_only=True)
class Participant:
    """Identity, data and limits that a client is started with.

    Attributes
    ----------
    name
        Its id.
    local_data
        Where its data comes from.
    server
        ``host:port``, where it dials one.
    retry_for
        Seconds that it goes on trying to reach a server that does not answer.
    credentials
        Its certificate and key; ``None``: no TLS.
    state_folder
        Below it journals are kept, by run and client; ``None``: in memory only.
    trust_limits
        What the server may have it run, read and use.
    secrets
        What it was given of what all clients share, if anything.
    peers
        Clients with which it may exchange secrets in sealed boxes; ``None``: every client of its authority.
    solver
        The local solver that suits it, in place of the run's.
    policy
        What it insists on before it sends anything, if anything.
    """

    name: str
    local_data: DataProvider
    server: str = ""
    retry_for: float = 600.0
    credentials: Credentials | None = None
    state_folder: Path | None = None
    trust_limits: TrustLimits = field(default_factory=TrustLimits)
    secrets: Secrets | None = None
    peers: Collection[str] | None = None
    solver: Solver | None = None
    policy: Policy | None = None

    def request(self, instance: bytes) -> pb.JoinRequest:
        """Return the request to join.

        Parameters
        ----------
        instance
            What tells this process from others with the same name.
        """
        return pb.JoinRequest(
            protocol=PROTOCOL,
            client=self.name,
            instance=instance,
            software=software(),
            own_data=self.local_data.own is not None,
        )


def prepare(who: Participant, reply: pb.JoinReply) -> None:
    """Check and load all that does not depend on a client's place, while the server waits for other clients.

    Errors are those of :func:`session_of`.
    """
    who.local_data.load(_agreed_settings(who, reply))


def session_of(
    who: Participant, reply: pb.JoinReply, quota: DiskQuota | None = None, make: Callable[..., Session] = Session
) -> Session:
    """Return the session of a client in the run that the server has admitted it to.

    Raises :class:`fenchel.common.errors.FenchelError` where the settings of the run go beyond what the client agrees
    to, or do not suit its data or secrets.

    Parameters
    ----------
    reply
        The server's answer, with the client's place in the run.
    quota
        What the client's journals of all runs may take; ``None``: this is its only run.
    make
        The class of the session.
    """
    settings = _agreed_settings(who, reply)
    data = who.local_data.of(settings, reply.assignment.index, reply.assignment.clients)
    who.trust_limits.check_model(settings, data.shard)
    folder = None if who.state_folder is None else who.state_folder / reply.run / who.name
    return make(
        who.name,
        settings,
        data,
        journal_folder=folder,
        allowed=who.trust_limits.code,
        secrets=who.secrets,
        secret_exchange=_secret_exchange(who, reply.run, settings, folder),
        solver=who.solver,
        policy=who.policy,
        quota=quota or DiskQuota(who.trust_limits.journal_bytes),
        account=None if who.policy is None else _account(who, who.policy, reply.run, settings),
        shows_errors=who.trust_limits.error_texts,
    )


def _agreed_settings(who: Participant, reply: pb.JoinReply) -> RunSettings:
    """Return the settings of a run, which are within the limits of the client."""
    check_run(reply.run)
    settings = who.trust_limits.settings(reply.settings, who.local_data.own)
    given = "--secrets" if who.secrets is not None else "--peer" if who.peers is not None else None
    who.trust_limits.check_encryption(settings, given)
    return settings


def _account(who: Participant, policy: Policy, run: str, settings: RunSettings) -> Account:
    """Return where all runs of a client are counted."""
    path = policy.ledger
    if path is None and who.state_folder is not None:
        path = who.state_folder / POLICY_LEDGER
    data = who.local_data.identity(settings, who.name)
    return Account(who.name, run, data, None if path is None else path.resolve(), who.state_folder)


def _secret_exchange(who: Participant, run: str, settings: RunSettings, folder: Path | None) -> SecretExchange | None:
    """Return a client's part in the sealed exchange, if there is one."""
    bits = settings.algorithm.key_bits
    if not settings.seals_secrets or bits is None or who.credentials is None:
        return None
    if who.secrets is not None:
        raise SettingsError(
            f"client {who.name} was given secrets in a file, but the clients of this run make their own "
            "(secrets.source: sealed); start it without --secrets"
        )
    from fenchel.keys.identity import Identity
    from fenchel.keys.secret_exchange import SecretExchange

    identity = Identity(who.name, who.credentials)
    implementation = settings.algorithm.encryption_implementation
    return SecretExchange(run, identity, bits, settings.secrets.designated, who.peers, folder, implementation)
