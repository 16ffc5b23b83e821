"""Creation of a session from a participant and the server's reply to its request to join.

All clients are created here: over a network, in one process, and in tests. No settings of a server therefore reach a
session without a check against the trust limits of the client's operator.
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
    """Identity, data and limits with which a client is started.

    Attributes
    ----------
    name
        Client id.
    local_data
        Source of the client's data.
    server
        Address of the server, ``host:port``; empty without a network.
    retry_for
        Seconds after which the client gives up on a server that does not answer.
    credentials
        Certificate and key of the client; ``None`` without TLS.
    state_folder
        Folder of journals, which has subfolders by run and client; ``None`` keeps them in memory.
    trust_limits
        Code that the server may run, files that it may read, and resources that it may use on this client.
    secrets
        Secrets that all clients share, if the client was started with any.
    peers
        Clients with which the client exchanges secrets in sealed boxes; ``None`` allows all clients of its authority.
    solver
        Local solver in place of the run's.
    policy
        Differential privacy that the client requires of every run.
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
            Random identifier of this process, which distinguishes it from another client of the same name.
        """
        return pb.JoinRequest(
            protocol=PROTOCOL,
            client=self.name,
            instance=instance,
            software=software(),
            own_data=self.local_data.own is not None,
        )


def prepare(who: Participant, reply: pb.JoinReply) -> None:
    """Check the settings and load the data as far as possible while the server waits for other clients.

    Raises the errors of :func:`session_of`.
    """
    who.local_data.load(_agreed_settings(who, reply))


def session_of(
    who: Participant, reply: pb.JoinReply, quota: DiskQuota | None = None, make: Callable[..., Session] = Session
) -> Session:
    """Check the run's settings, and create the session of a client in the run to which the server has admitted it.

    Parameters
    ----------
    reply
        The server's reply, with the run's settings and the client's index.
    quota
        Quota for the client's journals of all runs; ``None``: a quota for this run alone.
    make
        Class of the session.

    Raises
    ------
    FenchelError
        If the settings exceed the client's trust limits, or do not suit its data or secrets.
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
    """Return the settings of the run after checking them against the client's trust limits."""
    check_run(reply.run)
    settings = who.trust_limits.settings(reply.settings, who.local_data.own)
    given = "--secrets" if who.secrets is not None else "--peer" if who.peers is not None else None
    who.trust_limits.check_encryption(settings, given)
    return settings


def _account(who: Participant, policy: Policy, run: str, settings: RunSettings) -> Account:
    """Return the privacy account of the client's data, which covers all its runs."""
    path = policy.ledger
    if path is None and who.state_folder is not None:
        path = who.state_folder / POLICY_LEDGER
    data = who.local_data.identity(settings, who.name)
    return Account(who.name, run, data, None if path is None else path.resolve(), who.state_folder)


def _secret_exchange(who: Participant, run: str, settings: RunSettings, folder: Path | None) -> SecretExchange | None:
    """Return the client's side of the secret exchange, if the run has one."""
    bits = settings.algorithm.key_bits
    if not settings.seals_secrets or bits is None or who.credentials is None:
        return None
    if who.secrets is not None:
        raise SettingsError(
            f"client {who.name} was started with a file of secrets, but the clients of this run make their own "
            "(secrets.source: sealed); start it without --secrets"
        )
    from fenchel.keys.identity import Identity
    from fenchel.keys.secret_exchange import SecretExchange

    identity = Identity(who.name, who.credentials)
    implementation = settings.algorithm.encryption_implementation
    return SecretExchange(
        run,
        identity,
        bits,
        designated=settings.secrets.designated,
        peers=who.peers,
        folder=folder,
        implementation=implementation,
    )
