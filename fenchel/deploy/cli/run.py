"""Commands that take part in a run: up, server, client."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import stat
import sys
from collections.abc import Coroutine, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer
from rich.console import Console

from fenchel.common.data.limits import ORDINARY, DataLimits
from fenchel.common.errors import CheckpointError, CredentialError, FenchelError, SettingsError, TooManyFilesError
from fenchel.common.settings.run import RunSettings, load
from fenchel.common.storage.run_folder import RunFolder
from fenchel.common.storage.store import write_text
from fenchel.common.untrusted_text import plain
from fenchel.deploy.certificates.keys import PUBLIC_KEY_VARIABLE, SECRETS_VARIABLE, read_public, refuse_private_keys
from fenchel.deploy.launch.data import ensure
from fenchel.deploy.launch.logs import log_to_file

if TYPE_CHECKING:
    from fenchel.common.tls.credentials import Credentials
    from fenchel.deploy.launch.bundle import ReceivedBundle
    from fenchel.server.coordinator import Summary

T = TypeVar("T")

DEFAULT_LISTEN = "0.0.0.0:7443"
DEFAULT_LISTEN_INSECURE = "127.0.0.1:7443"

SettingsArgument = Annotated[Path | None, typer.Argument(help="settings file (YAML); see docs/settings.md")]
SetOption = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="override one setting; dotted key, YAML value")
]
ClientsOption = Annotated[
    str | None, typer.Option("--clients", metavar="N|auto", help="number of clients, in place of the settings'")
]
RunsOption = Annotated[Path, typer.Option("--runs", help="folder in which run folders are created")]
ResumeOption = Annotated[
    Path | None, typer.Option("--resume", metavar="RUN", help="run folder of an interrupted run to go on with")
]
PreviousOption = Annotated[
    bool,
    typer.Option(
        "--previous",
        help="with --resume: go back to the checkpoint before the last one, because that one, or a client's journal "
        "of what came after, is damaged",
    ),
]
CertsOption = Annotated[Path | None, typer.Option("--certs", help="folder with authority, certificate and key")]
DashboardOption = Annotated[
    bool, typer.Option("--dashboard", help="serve a page that shows the run while it goes on (127.0.0.1:7444)")
]
DashboardAtOption = Annotated[
    str | None,
    typer.Option("--dashboard-at", metavar="HOST:PORT", help="serve that page here; whoever reaches it can read it"),
]
MetricsOption = Annotated[
    str | None, typer.Option("--metrics", metavar="HOST:PORT", help="serve metrics for Prometheus here, below /metrics")
]
InsecureOption = Annotated[bool, typer.Option("--insecure", help="no TLS; for tests on one machine only")]
MaxFeaturesOption = Annotated[int, typer.Option(min=1, help="features that the samples of a data file may have")]
MaxDataBytesOption = Annotated[
    int,
    typer.Option(
        min=1,
        show_default="a quarter of the memory",
        help="bytes that a data file may have when decompressed, and its values with eight bytes each",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="print a JSON object on standard output, and nothing else")]


def _chosen(
    settings: Path | None, overrides: list[str] | None, clients: str | None, resume: Path | None, previous: bool
) -> tuple[RunSettings, RunFolder | None]:
    """Return the settings of a new run, or those of a run to resume and its folder."""
    chosen = list(overrides or [])
    if clients is not None:
        chosen.append(f"clients={clients}")
    if resume is None:
        if previous:
            raise SettingsError("says where to go on from: give it with --resume RUN", key="--previous")
        if settings is None:
            raise SettingsError("which settings? Give a file, a name such as quickstart, or --resume RUN")
        return load(settings, chosen), None
    if settings is not None or chosen:
        raise SettingsError("a resumed run keeps its settings: give --resume RUN alone")
    folder = RunFolder(resume)
    if not folder.settings.exists():
        raise CheckpointError(f"not a run folder (it has no {folder.settings.name})", source=resume)
    return load(folder.settings), folder


def _interruptible(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine until it is done; SIGTERM ends it as Ctrl-C does."""

    async def guarded() -> T:
        task = asyncio.current_task()
        assert task is not None
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
        return await work

    return asyncio.run(guarded())


@contextmanager
def _kept_if_begun(folder: RunFolder, resumed: bool) -> Iterator[None]:
    """Write a run's log; of a run that ends early say what is saved, or remove its folder if it never began."""
    try:
        with log_to_file(folder.log):
            yield
    except FenchelError:
        # On a full disk the summary is missing, too, and the checkpoint is what the run goes on from.
        if not (resumed or folder.summary.exists() or folder.checkpoint.exists()):
            shutil.rmtree(folder.path)
        _tell_what_is_saved(folder)
        raise
    except (KeyboardInterrupt, asyncio.CancelledError):
        _tell_what_is_saved(folder)
        raise


@contextmanager
def _explaining(listen: str, credentials: Credentials | None, seconds: float) -> Iterator[None]:
    """After an error, answer clients that dial in with the reason for some seconds, before the error is raised."""
    try:
        yield
    except FenchelError as error:
        if seconds and not isinstance(error, TooManyFilesError):  # after which a supervisor starts the server again
            from fenchel.server.coordinator import reason_for_clients
            from fenchel.server.transport.refusal import refuse

            warn_of(f"the server ends by an error; for {seconds:g} s it answers clients that dial in with the reason")
            with suppress(asyncio.CancelledError, KeyboardInterrupt):  # Ctrl-C ends the wait, not the account of it
                _interruptible(refuse(listen, credentials, reason_for_clients(error), seconds))
        raise


def _tell_what_is_saved(folder: RunFolder) -> None:
    if folder.checkpoint.exists():
        Console(stderr=True, soft_wrap=True, highlight=False, markup=False).print(
            f"the run is saved up to its last checkpoint; go on with --resume {folder.path}"
        )


def _warn(settings: RunSettings) -> None:
    """Show, so that nobody overlooks it, what people should know before such a run."""
    from rich.panel import Panel
    from rich.text import Text

    console = Console(stderr=True)
    for warning in settings.algorithm.warnings:
        console.print(Panel(Text(warning, style="bold yellow"), title="Warning", border_style="bold yellow"))


def _without_links(settings: RunSettings) -> RunSettings:
    """Leave out links that nobody would impose, so that a run's settings do not claim them."""
    if settings.links is None:
        return settings
    Console(stderr=True, soft_wrap=True, highlight=False).print(
        "[bold yellow]warning:[/] links: left out, since only fenchel up imposes them; here the network is what it is. "
        "fenchel relay puts a link in front of clients on other machines (docs/network.md)"
    )
    return settings.model_copy(update={"links": None})


def _say(console: Console, words: str) -> None:
    console.print(words, highlight=False, soft_wrap=True)


def warn_of(words: str) -> None:
    """Show a warning that is no error."""
    Console(stderr=True, soft_wrap=True, highlight=False).print(f"[bold yellow]warning:[/] {words}")


def _finished(console: Console, folder: RunFolder, summary: Summary, as_json: bool) -> None:
    """Write the report, and say how it went."""
    from fenchel.report.render.page import write_report
    from fenchel.report.render.terminal import show
    from fenchel.report.run import Run

    run = Run(folder.path)
    write_report([run], folder.report)
    if as_json:
        print(json.dumps(asdict(summary) | {"folder": str(folder.path)}))  # noqa: T201
    else:
        show([run], console)
        console.print(f"run folder  {folder.path}\nreport      {folder.report}", highlight=False, soft_wrap=True)


def up(
    settings: SettingsArgument = None,
    overrides: SetOption = None,
    clients: ClientsOption = None,
    processes: Annotated[
        int | None, typer.Option(min=1, help="client processes; default one for each client, at most 16")
    ] = None,
    runs: RunsOption = Path("runs"),
    on: Annotated[str, typer.Option("--on", metavar="ENGINE", help="where clients run: local, ssh")] = "local",
    hosts: Annotated[
        str | None, typer.Option("--hosts", metavar="A,B,C|FILE", help="hosts of --on ssh, which take turns")
    ] = None,
    engine: Annotated[
        Path | None, typer.Option("--engine", metavar="FILE", help="what the engine needs (YAML); see docs/engines.md")
    ] = None,
    resume: ResumeOption = None,
    previous: PreviousOption = False,
    dashboard: DashboardOption = False,
    dashboard_at: DashboardAtOption = None,
    metrics: MetricsOption = None,
    insecure: InsecureOption = False,
    as_json: JsonOption = False,
) -> None:
    """Bring a federation up: a server on this machine and its clients, over TLS, until the run is done."""
    from fenchel.deploy.cli.display import Display
    from fenchel.deploy.launch.deployment import Deployment
    from fenchel.deploy.launch.launchers.choice import launcher
    from fenchel.deploy.monitoring.exporters import Exporters, watching
    from fenchel.server.coordinator import open_resumed
    from fenchel.server.metering.open_files import raise_limit

    raise_limit()
    engine_launcher = launcher(on, engine=engine, hosts=hosts)
    exporters = Exporters.parse(dashboard, dashboard_at, metrics)
    chosen, folder = _chosen(settings, overrides, clients, resume, previous)
    checkpoint = None if folder is None else open_resumed(folder, previous=previous)
    number = len(checkpoint.members) if checkpoint is not None else chosen.clients
    if not isinstance(number, int):
        raise SettingsError("auto means whoever joins; say how many to start with --clients N", key="clients")
    _warn(chosen)
    console = Console(stderr=as_json)
    ensure(chosen.data, console)
    folder = folder or RunFolder.create(runs, chosen.name)
    with (
        _kept_if_begun(folder, resume is not None),
        watching(folder, chosen, exporters, partial(_say, console), warn_of) as watchers,
        Display(console, folder.id, chosen.rounds) as display,
    ):
        deployment = Deployment(
            chosen,
            folder,
            number,
            processes=processes,
            secure=not insecure,
            launcher=engine_launcher,
            resume=checkpoint,
            observer=display.observer().beside(watchers),
            say=display.say,
        )
        summary = _interruptible(deployment.run())
    _finished(console, folder, summary, as_json)


def server(
    settings: SettingsArgument = None,
    listen: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help=f"address to listen on; default: {DEFAULT_LISTEN}, with --insecure {DEFAULT_LISTEN_INSECURE}",
        ),
    ] = None,
    certs: CertsOption = None,
    overrides: SetOption = None,
    clients: ClientsOption = None,
    runs: RunsOption = Path("runs"),
    resume: ResumeOption = None,
    previous: PreviousOption = False,
    dashboard: DashboardOption = False,
    dashboard_at: DashboardAtOption = None,
    metrics: MetricsOption = None,
    insecure: InsecureOption = False,
    as_json: JsonOption = False,
    public_key: Annotated[
        Path | None,
        typer.Option(
            "--public-key",
            metavar="FILE",
            envvar=PUBLIC_KEY_VARIABLE,
            help="server.public of fenchel keys: the key that clients must use; else they say which",
        ),
    ] = None,
    linger: Annotated[
        float, typer.Option(min=0, help="seconds to stay after an error, so that clients that dial in learn the reason")
    ] = 0.0,
) -> None:
    """Coordinate one run for clients that dial in."""
    from fenchel.common.tls.credentials import Credentials
    from fenchel.deploy.address import Address
    from fenchel.deploy.certificates.pairs import check_pair
    from fenchel.deploy.cli.display import Display
    from fenchel.deploy.monitoring.exporters import Exporters, watching
    from fenchel.server.coordinator import Coordinator, open_resumed
    from fenchel.server.metering.open_files import raise_limit
    from fenchel.server.transport.service import serve

    raise_limit()
    listen = listen or (DEFAULT_LISTEN_INSECURE if insecure else DEFAULT_LISTEN)
    address = Address.parse(listen, "--listen")
    exporters = Exporters.parse(dashboard, dashboard_at, metrics)
    refuse_private_keys(certs, os.environ)
    if (certs is None) != insecure:
        raise SettingsError("give either --certs DIR (fenchel certs makes one) or --insecure")
    if insecure and not address.is_loopback:
        warn_of(
            f"--listen {listen}: without TLS everybody who reaches this address can join, and read what crosses; "
            "use --certs DIR, or an address of this machine alone"
        )
    credentials = None if certs is None else Credentials.load(certs)
    if credentials is not None:
        check_pair(credentials)
        if credentials.key_is_open:
            warn_of(f"{certs}: other users of this machine can read key.pem; run: chmod 600 key.pem")
    with _explaining(listen, credentials, linger):
        key = None if public_key is None else read_public(public_key)
        chosen, folder = _chosen(settings, overrides, clients, resume, previous)
        if chosen.seals_secrets and insecure:
            raise SettingsError(
                "sealed needs the clients' certificates: start the server with --certs DIR, or use "
                "secrets.source: file",
                key="secrets.source",
            )
        chosen = _without_links(chosen)
        _warn(chosen)
        checkpoint = None if folder is None else open_resumed(folder, previous=previous)
        console = Console(stderr=as_json)
        ensure(chosen.data, console)
        folder = folder or RunFolder.create(runs, chosen.name)
        write_text(folder.settings, chosen.to_yaml(), sync=chosen.checkpoint.sync)
        with (
            _kept_if_begun(folder, resume is not None),
            watching(folder, chosen, exporters, partial(_say, console), warn_of) as watchers,
            Display(console, folder.id, chosen.rounds) as display,
        ):
            observer = display.observer().beside(watchers)
            coordinator = Coordinator(chosen, folder, resume=checkpoint, observer=observer, public_key=key)

            def listening(port: int) -> None:
                display.say(f"listening on {listen.rpartition(':')[0]}:{port}; waiting for clients")
                if checkpoint is not None and checkpoint.round >= chosen.rounds:
                    display.say("all rounds are done: what is left is to tell clients that have not heard so")

            summary = _interruptible(serve(coordinator, listen, credentials, listening))
        _finished(console, folder, summary, as_json)


def client(
    server: Annotated[str, typer.Argument(metavar="HOST:PORT", help="address of the server")],
    certs: CertsOption = None,
    claim: Annotated[
        Path | None,
        typer.Option(help="folder of identities, one of which this client claims for its host (containers)"),
    ] = None,
    name: Annotated[str | None, typer.Option(help="client id, with --insecure; else the certificate's name")] = None,
    sessions: Annotated[
        int | None,
        typer.Option(min=1, help="host so many clients: client-000, client-001, ... below the --certs folder"),
    ] = None,
    first: Annotated[int, typer.Option(min=0, help="number of the first of the --sessions")] = 0,
    data: Annotated[Path | None, typer.Option(help="data file of this client's own")] = None,
    label: Annotated[str | None, typer.Option(help="column of the label in --data")] = None,
    identifier: Annotated[
        str | None,
        typer.Option(
            "--id",
            metavar="COLUMN|ARRAY|FILE",
            help="sample identifiers of --data: a column of CSV and Parquet, an array of NumPy archives, a text file "
            "beside LIBSVM, one a line",
        ),
    ] = None,
    max_features: MaxFeaturesOption = ORDINARY.features,
    max_data_bytes: MaxDataBytesOption = ORDINARY.bytes,
    state: Annotated[Path, typer.Option(help="folder for journals, which survive a restart")] = Path("state"),
    allow: Annotated[
        list[str] | None,
        typer.Option(metavar="MODULE:CLASS", help="code from outside Fenchel that the server may have this client run"),
    ] = None,
    allow_file: Annotated[
        list[Path] | None, typer.Option(metavar="FILE", help="file of this machine that the server's settings may name")
    ] = None,
    allow_data: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="data set of this machine that the server may have this client use, and no other; default: any "
            "public one",
        ),
    ] = None,
    max_message_bytes: Annotated[
        int, typer.Option(min=1, help="largest messages that the server's settings may allow")
    ] = 8 << 30,
    least_group: Annotated[
        int,
        typer.Option(
            min=1,
            help="samples that must share a group at least, where the server's settings have scores told in groups",
        ),
    ] = 5,
    max_journal_bytes: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="how much of the disk the journal may take, which the server has this client keep; default: 4 GiB, or "
            "10,000 times the largest entry if that is more, and a tenth of the space that it finds stays free",
        ),
    ] = None,
    threads: Annotated[int, typer.Option(min=1, help="clients of this process that compute at the same time")] = 1,
    retry_for: Annotated[float, typer.Option(min=0, help="seconds to go on trying to reach a silent server")] = 600.0,
    secrets: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            envvar=SECRETS_VARIABLE,
            help="clients.secret of fenchel keys: what all clients share and the server must not have",
        ),
    ] = None,
    peers: Annotated[
        list[str] | None,
        typer.Option(
            "--peer",
            metavar="NAME",
            help="a client with which to exchange secrets in sealed boxes; default: all of the same authority",
        ),
    ] = None,
    solver: Annotated[
        str | None,
        typer.Option(
            metavar="KIND",
            help="local solver that suits this machine, in place of the run's: a kind, such as lbfgs, or a "
            "section in braces (docs/solvers.md)",
        ),
    ] = None,
    allow_plaintext: Annotated[
        bool,
        typer.Option(
            "--allow-plaintext", help="with --secrets or --peer: take part in a run that encrypts nothing, too"
        ),
    ] = False,
    any_run: Annotated[
        bool,
        typer.Option(
            "--any-run", help="go on with whatever run the server has, after this client has taken part in another one"
        ),
    ] = False,
    privacy_policy: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="limits of this client's own: it takes part in no run that protects its samples less "
            "(docs/privacy.md)",
        ),
    ] = None,
    metrics: MetricsOption = None,
    insecure: InsecureOption = False,
    bundle: Annotated[
        str | None,
        typer.Option(
            metavar="-",
            help="read names, certificates, keys and secrets of the clients to host from standard input, with whose "
            "end they end; fenchel up starts its clients so",
        ),
    ] = None,
    relays: Annotated[list[str] | None, typer.Option("--relay", hidden=True)] = None,
) -> None:
    """Take part in a run: dial the server, and work until it says that the run is over."""
    from fenchel.client.client_process import LifelineError, host
    from fenchel.client.joining import Participant
    from fenchel.client.local_data import LocalData, OwnFile
    from fenchel.client.privacy.policy import load_policy
    from fenchel.client.secrets.shared import Secrets
    from fenchel.client.trust_limits import TrustLimits
    from fenchel.common.settings.solver import parse_solver
    from fenchel.deploy.address import Address
    from fenchel.deploy.launch.crash import leaving_no_data
    from fenchel.deploy.monitoring.exporters import watching_clients

    if sum((certs is not None, claim is not None, insecure, bundle is not None)) != 1:
        raise SettingsError("give one of --certs DIR, --claim DIR, --bundle - and --insecure")
    if data is not None and sessions is not None:
        raise SettingsError("--data is the file of one client; leave --sessions out")
    if identifier is not None and data is None:
        raise SettingsError(
            "says where the sample identifiers of a client's own file are; give the file with --data FILE", key="--id"
        )
    Address.parse(server, "the server's address")
    metrics_at = None if metrics is None else Address.parse(metrics, "--metrics")
    if bundle is not None:
        received = _received(bundle)
        identities = received.identities
        shared = None if received.secrets is None else Secrets.from_text(received.secrets, "--bundle")
    else:
        identities = _identities(certs, claim, sessions, first, name)
        shared = None if secrets is None else Secrets.load(secrets)
    limits = DataLimits(max_features, max_data_bytes)
    local_data = LocalData() if data is None else OwnFile(data, label, identifier, limits)
    trust_limits = TrustLimits(
        frozenset(allow or ()),
        frozenset(allow_file or ()),
        frozenset(allow_data) if allow_data else None,
        max_message_bytes,
        least_group,
        max_journal_bytes,
        plaintext=allow_plaintext,
        any_run=any_run,
        error_texts=bundle is not None or sys.stderr.isatty(),  # never into files between organisations
    )
    dialled = relays or [server] * len(identities)  # fenchel up gives each of its clients a relay of its own
    participants = [
        Participant(
            name=each,
            local_data=local_data,
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
        for where, (each, credentials) in zip(dialled, identities.items(), strict=True)
    ]
    lifeline = None if bundle is None else sys.stdin.fileno()
    console = Console(stderr=True, highlight=False)
    last: list[str] = []

    def say(event: str) -> None:
        if event not in last:  # a client that waits would say the same again and again
            last[:] = [*last[-50:], event]
            console.print(plain(event), soft_wrap=True, markup=False)

    try:
        with leaving_no_data(LifelineError), watching_clients(metrics_at, say, warn_of) as observer:
            farewells = _interruptible(
                host(participants, threads=threads, lifeline=lifeline, on_event=say, observer=observer)
            )
    except LifelineError:
        raise typer.Exit(0) from None
    stopped = next((farewell.reason for farewell in farewells if not farewell.completed), None)
    say("the run is complete" if stopped is None else f"ended early: {stopped}")


def _identities(
    certs: Path | None, claim: Path | None, sessions: int | None, first: int, name: str | None
) -> dict[str, Credentials | None]:
    """Return who this process is, by client id, each with its certificate or, with --insecure, without one."""
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
                f"with --certs a client has the name in its certificate, which is "
                f"{common_name(credentials)}; leave --name out, or give the folder of that identity",
                key=f"--name {name}",
            )
    elif name is not None:
        identities[name] = None
    else:
        raise SettingsError("with --insecure, give --name NAME or --sessions N")
    _check_pairs(identities)
    return identities


def _check_pairs(identities: Mapping[str, Credentials | None]) -> None:
    """Refuse certificates that fit no key, and warn of keys that others can read."""
    from fenchel.deploy.certificates.pairs import check_pair

    for pair in identities.values():
        if pair is not None:
            check_pair(pair)
            if pair.key_is_open:
                warn_of(f"{pair.folder}: other users of this machine can read key.pem; run: chmod 600 key.pem")


def _received(bundle: str) -> ReceivedBundle:
    """Read a bundle from standard input, which must be a pipe."""
    from fenchel.deploy.launch.bundle import ReceivedBundle

    if bundle != "-":
        raise SettingsError(f"expected -, which stands for standard input, got {bundle!r:.80}", key="--bundle")
    kind = os.fstat(sys.stdin.fileno()).st_mode
    if not (stat.S_ISFIFO(kind) or stat.S_ISSOCK(kind)):
        raise CredentialError("expected a pipe, whose end is the end of this client", source="standard input")
    received = ReceivedBundle.read(sys.stdin.buffer, "standard input")
    _check_pairs(received.identities)
    return received
