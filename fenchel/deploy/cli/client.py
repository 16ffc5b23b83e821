"""Command ``fenchel client``: one or more clients in one process, which connect to a server until the run ends."""

from __future__ import annotations

import os
import resource
import stat
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from fenchel.common.data.limits import ORDINARY, DataLimits
from fenchel.common.defects import describe_defect
from fenchel.common.errors import CredentialError, FenchelError, SettingsError
from fenchel.common.untrusted_text import sanitize
from fenchel.deploy.certificates.keys import SECRETS_VARIABLE
from fenchel.deploy.cli import options
from fenchel.deploy.cli.conduct import check_credentials, interruptible
from fenchel.deploy.cli.printing import say, warn_of

if TYPE_CHECKING:
    from fenchel.common.tls.credentials import Credentials
    from fenchel.deploy.launch.bundle import ReceivedBundle


def client(
    server: Annotated[str, typer.Argument(metavar="HOST:PORT", help="address of the server")],
    certs: options.CertsOption = None,
    token: Annotated[
        str | None,
        typer.Option(
            help="token of fenchel certs invite: make a key in the --certs folder (default certs) and get its "
            "certificate, if the folder has none; also as FENCHEL_TOKEN in the environment"
        ),
    ] = None,
    claim: Annotated[
        Path | None,
        typer.Option(help="folder of identities, of which this client claims one for its host (containers)"),
    ] = None,
    name: Annotated[str | None, typer.Option(help="client id, with --insecure; else the certificate's name")] = None,
    sessions: Annotated[
        int | None,
        typer.Option(
            min=1, help="number of clients in this process: client-000, client-001, ... below the --certs folder"
        ),
    ] = None,
    first: Annotated[int, typer.Option(min=0, help="number of the first client of --sessions")] = 0,
    data: Annotated[
        list[Path] | None,
        typer.Option(help="data file of this client; repeat it for each of several clients, in their order"),
    ] = None,
    label: options.LabelOption = None,
    identifier: options.IdentifierOption = None,
    max_features: options.MaxFeaturesOption = ORDINARY.features,
    max_data_bytes: options.MaxDataBytesOption = ORDINARY.bytes,
    state: Annotated[Path, typer.Option(help="folder for journals, which survive a restart")] = Path("state"),
    allow: Annotated[
        list[str] | None,
        typer.Option(metavar="MODULE:CLASS", help="code from outside Fenchel that this client may run for the server"),
    ] = None,
    allow_file: Annotated[
        list[Path] | None, typer.Option(metavar="FILE", help="file of this machine that the server's settings may name")
    ] = None,
    allow_data: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="only data set of this machine that the server's settings may name; default: any public one",
        ),
    ] = None,
    max_message_bytes: Annotated[
        int, typer.Option(min=1, help="limit on network.max_message_bytes in the server's settings")
    ] = 8 << 30,
    least_group: Annotated[
        int,
        typer.Option(
            min=1,
            help="smallest group of samples for which the client sends scores, if the server's settings request scores "
            "by groups",
        ),
    ] = 5,
    max_journal_bytes: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="limit on the disk space of journals in bytes; default: 4 GiB, or 10,000 times the largest entry if "
            "that is more, and at most nine tenths of the free space",
        ),
    ] = None,
    threads: Annotated[
        int, typer.Option(min=1, help="number of clients of this process that compute at the same time")
    ] = 1,
    retry_for: Annotated[
        float, typer.Option(min=0, help="seconds after which the client gives up on a server that does not answer")
    ] = 600.0,
    secrets: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            envvar=SECRETS_VARIABLE,
            help="file clients.secret of fenchel keys, which all clients share and the server must not have",
        ),
    ] = None,
    peers: Annotated[
        list[str] | None,
        typer.Option(
            "--peer",
            metavar="NAME",
            help="client with which to exchange secrets in sealed boxes; repeat for several; default: all clients of "
            "the same authority",
        ),
    ] = None,
    solver: Annotated[
        str | None,
        typer.Option(
            metavar="KIND",
            help="local solver in place of the run's: a kind, such as lbfgs, or a section in braces (docs/solvers.md)",
        ),
    ] = None,
    allow_plaintext: Annotated[
        bool,
        typer.Option(
            "--allow-plaintext", help="with --secrets or --peer: also take part in a run that encrypts nothing"
        ),
    ] = False,
    any_run: Annotated[
        bool, typer.Option("--any-run", help="take part in whatever run the server conducts, even after another one")
    ] = False,
    privacy_policy: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="file of the client's privacy policy; it takes part only in runs that satisfy the policy "
            "(docs/privacy.md)",
        ),
    ] = None,
    metrics: options.MetricsOption = None,
    insecure: options.InsecureOption = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="show only warnings and errors")] = False,
    log_level: options.LogLevelOption = None,
    bundle: Annotated[
        str | None,
        typer.Option(
            metavar="-|FILE",
            help="read names, certificates, keys and secrets of the clients from standard input, until whose end they "
            "work, or from a file in memory (a mounted Secret); used by fenchel up",
        ),
    ] = None,
    relays: Annotated[list[str] | None, typer.Option("--relay", hidden=True)] = None,
) -> None:
    """Take part in a run: connect to the server and work until the run ends."""
    from fenchel.client.client_process import LifelineError, host
    from fenchel.client.joining import Participant
    from fenchel.client.local_data import DataProvider, LocalData, OwnFile
    from fenchel.client.privacy.policy import load_policy
    from fenchel.client.trust_limits import TrustLimits
    from fenchel.common.settings.solver import parse_solver
    from fenchel.deploy.address import Address
    from fenchel.deploy.monitoring.client_exporters import watching_clients
    from fenchel.keys.shared import Secrets

    if token is None and claim is None and bundle is None and not insecure:
        token = os.environ.get("FENCHEL_TOKEN")
    if token is not None:
        certs = certs or Path("certs")
    if sum((certs is not None, claim is not None, insecure, bundle is not None)) != 1:
        raise SettingsError(
            "the client needs exactly one source of its identity; give --certs DIR, --token TOKEN, --claim DIR, "
            "--bundle - or --insecure"
        )
    if identifier is not None and not data:
        raise SettingsError(
            "--id names the sample identifiers of a client's own file, but no file is given; give it with --data FILE",
            key="--id",
        )
    Address.parse(server, "the server's address")
    metrics_at = None if metrics is None else Address.parse(metrics, "--metrics")
    if token is not None and certs is not None:
        _accept(token, certs, sessions)
    if bundle is not None:
        received = _received(bundle)
        identities = received.identities
        shared = None if received.secrets is None else Secrets.from_text(received.secrets, "--bundle")
    else:
        identities = _identities(certs, claim, sessions, first, name)
        shared = None if secrets is None else Secrets.load(secrets)
    limits = DataLimits(max_features, max_data_bytes)
    if data and len(data) != len(identities):
        raise SettingsError(
            f"{len(data)} files given for {len(identities)} clients; give a file for each", key="--data"
        )
    local_data: list[DataProvider] = [OwnFile(path, label, identifier, limits) for path in data or ()]
    # One shared provider, which loads each data set only once.
    local_data = local_data or [LocalData()] * len(identities)
    trust_limits = TrustLimits(
        frozenset(allow or ()),
        frozenset(allow_file or ()),
        frozenset(allow_data) if allow_data else None,
        max_message_bytes,
        least_group,
        max_journal_bytes,
        plaintext=allow_plaintext,
        any_run=any_run,
        # Texts of errors in outside code may contain data, so they appear only on a terminal or in logs of fenchel up.
        error_texts=bundle is not None or sys.stderr.isatty(),
    )
    # With emulated links, each client dials its own network emulation proxy, which fenchel up starts.
    dialled = relays or [server] * len(identities)
    participants = [
        Participant(
            name=each,
            local_data=brought,
            server=where,
            retry_for=retry_for,
            credentials=credentials,
            state_folder=state,
            trust_limits=trust_limits,
            secrets=shared,
            peers=frozenset(peers) if peers else None,
            solver=None if solver is None else parse_solver(solver, "--solver"),
            policy=None if privacy_policy is None else load_policy(privacy_policy),
        )
        for where, brought, (each, credentials) in zip(dialled, local_data, identities.items(), strict=True)
    ]
    lifeline = sys.stdin.fileno() if bundle == "-" else None
    console = Console(stderr=True)
    last: list[str] = []

    def report(event: str) -> None:
        if event not in last:  # a waiting client repeats the same event
            last[:] = [*last[-50:], event]
            say(sanitize(event), console)

    on_event = (lambda _: None) if quiet else report

    try:
        with _leaving_no_data(LifelineError), watching_clients(metrics_at, on_event, warn_of) as observer:
            farewells = interruptible(
                host(participants, threads=threads, lifeline=lifeline, on_event=on_event, observer=observer)
            )
    except LifelineError:
        raise typer.Exit(0) from None
    stopped = next((farewell.reason for farewell in farewells if not farewell.completed), None)
    if stopped is not None:
        report(f"ended early: {stopped}")
    else:
        on_event("the run is complete")


@contextmanager
def _leaving_no_data(*passing: type[Exception]) -> Iterator[None]:
    """Disable core dumps, and report a defect in a ``with`` block without the text of the error.

    Parameters
    ----------
    *passing
        Errors that the caller handles, besides those of Fenchel.

    Raises
    ------
    typer.Exit
        With exit code 1, after the report of a defect.
    """
    _, most = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, most))
    passed: tuple[type[Exception], ...] = (FenchelError, typer.Exit, *passing)
    try:
        yield
    except passed:
        raise
    except Exception as error:
        Console(stderr=True, soft_wrap=True, highlight=False, markup=False, emoji=False).print(describe_defect(error))
        raise typer.Exit(1) from None


def _accept(token: str, certs: Path, sessions: int | None) -> None:
    """Obtain a certificate in exchange for a token, unless the folder has one."""
    from fenchel.common.tls.credentials import CERTIFICATE, Credentials
    from fenchel.deploy.certificates.description import common_name, key_fingerprint
    from fenchel.deploy.invitations.acceptance import accept
    from fenchel.deploy.invitations.invitation import Invitation

    if sessions is not None:
        raise SettingsError("a token is for one client; leave --sessions out", key="--token")
    invitation = Invitation.parse(token)
    console = Console(stderr=True)
    if (certs / CERTIFICATE).exists():
        name = common_name(Credentials.load(certs))
        if name != invitation.name:
            raise SettingsError(
                f"{certs} has a certificate of {name!r}, but the token is for {invitation.name!r}; give another "
                "folder with --certs",
                key="--token",
            )
        say(f"{certs}: the certificate of {name!r} that is there is used, and no token", console)
        return
    key = interruptible(accept(invitation, certs))
    say(f"{certs}: certificate of client {invitation.name!r}, for the key {key_fingerprint(key)}", console)


def _identities(
    certs: Path | None, claim: Path | None, sessions: int | None, first: int, name: str | None
) -> dict[str, Credentials | None]:
    """Return the identities of this process: credentials by client id, ``None`` with ``--insecure``."""
    from fenchel.common.tls.credentials import Credentials
    from fenchel.deploy.certificates.claims import claim as claim_identity
    from fenchel.deploy.certificates.description import common_name
    from fenchel.deploy.launch.names import client_names

    identities: dict[str, Credentials | None] = {}
    if claim is not None:
        claimed = claim_identity(claim, os.uname().nodename)
        identities[claimed] = Credentials.load(claim / claimed)
    elif sessions is not None:
        for each in client_names(sessions, first):
            identities[each] = None if certs is None else Credentials.load(certs / each)
    elif certs is not None:
        credentials = Credentials.load(certs)
        identities[common_name(credentials)] = credentials
        if name is not None and name not in identities:
            raise SettingsError(
                f"the certificate in {certs} is of client {common_name(credentials)!r}; leave --name out, or give the "
                "folder of the other client with --certs",
                key=f"--name {name}",
            )
    elif name is not None:
        identities[name] = None
    else:
        raise SettingsError("--insecure given without a name; give --name NAME or --sessions N")
    _check_pairs(identities)
    return identities


def _check_pairs(identities: Mapping[str, Credentials | None]) -> None:
    """Reject certificates without a matching key, and warn of keys that other users can read."""
    for pair in identities.values():
        if pair is not None:
            check_credentials(pair, "client")


def _received(bundle: str) -> ReceivedBundle:
    """Read a bundle from standard input, which must be a pipe, or from a file."""
    from fenchel.deploy.launch.bundle import ReceivedBundle

    if bundle != "-":
        try:
            with Path(bundle).open("rb") as file:
                received = ReceivedBundle.read(file, bundle)
        except OSError as error:
            raise CredentialError(
                f"the bundle cannot be read ({error.strerror}); check the path and the permissions of the file",
                source=bundle,
            ) from None
    else:
        kind = os.fstat(sys.stdin.fileno()).st_mode
        if not (stat.S_ISFIFO(kind) or stat.S_ISSOCK(kind)):
            raise CredentialError(
                "standard input is not a pipe; start this command through fenchel up, which ends the client by "
                "closing the pipe",
                source="standard input",
            )
        received = ReceivedBundle.read(sys.stdin.buffer, "standard input")
    _check_pairs(received.identities)
    return received
