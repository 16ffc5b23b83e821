"""Command ``fenchel server``: a server that waits for clients and conducts one run."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fenchel.common.errors import FenchelError, SettingsError, TooManyFilesError
from fenchel.common.settings.run import RunSettings
from fenchel.common.storage.run_folder import RunFolder
from fenchel.common.storage.store import write_text
from fenchel.deploy.certificates.keys import PUBLIC_KEY_VARIABLE, read_public, refuse_private_keys
from fenchel.deploy.cli import options
from fenchel.deploy.cli.conduct import (
    check_credentials,
    chosen_settings,
    conducted,
    interruptible,
    show_outcome,
    show_warnings,
)
from fenchel.deploy.cli.printing import console_for, warn_of
from fenchel.deploy.launch.data import ensure

if TYPE_CHECKING:
    from fenchel.common.tls.credentials import Credentials


def server(
    settings: options.SettingsArgument = None,
    listen: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help=f"address to listen on; default: {options.DEFAULT_LISTEN}, with --insecure "
            f"{options.DEFAULT_LISTEN_INSECURE}",
        ),
    ] = None,
    certs: options.CertsOption = None,
    overrides: options.SetOption = None,
    clients: options.ClientsOption = None,
    runs: options.RunsOption = Path("runs"),
    resume: options.ResumeOption = None,
    previous: options.PreviousOption = False,
    dashboard: options.DashboardOption = False,
    dashboard_at: options.DashboardAtOption = None,
    metrics: options.MetricsOption = None,
    track: options.TrackOption = None,
    insecure: options.InsecureOption = False,
    as_json: options.JsonOption = False,
    quiet: options.QuietOption = False,
    log_level: options.LogLevelOption = None,
    public_key: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            envvar=PUBLIC_KEY_VARIABLE,
            help="file server.public of fenchel keys, whose key clients must use; default: the clients' choice",
        ),
    ] = None,
    linger: Annotated[
        float, typer.Option(min=0, help="seconds to stay after an error, so that clients that connect learn the reason")
    ] = 0.0,
    keep_clients: Annotated[
        bool, typer.Option("--keep-clients", help="when interrupted, keep the clients waiting for the next server")
    ] = False,
) -> None:
    """Coordinate one run of the clients that connect to this server."""
    from fenchel.common.tls.credentials import Credentials
    from fenchel.deploy.address import Address
    from fenchel.deploy.monitoring.display import Display
    from fenchel.deploy.monitoring.exporters import MonitoringOptions
    from fenchel.fleet.metering.open_files import raise_limit
    from fenchel.server.coordinator import Coordinator, open_resumed
    from fenchel.server.telemetry.observer import Observers
    from fenchel.server.transport.service import serve

    raise_limit()
    listen = listen or (options.DEFAULT_LISTEN_INSECURE if insecure else options.DEFAULT_LISTEN)
    address = Address.parse(listen, "--listen")
    exporters = MonitoringOptions.parse(dashboard, dashboard_at, metrics, track)
    refuse_private_keys(certs, os.environ)
    if (certs is None) != insecure:
        given = "both --certs and --insecure" if insecure else "no certificates"
        raise SettingsError(f"{given} given; give either --certs DIR (fenchel certs makes the folder) or --insecure")
    if insecure and not address.is_loopback:
        warn_of(
            f"--listen {listen}: without TLS, anyone who reaches this address can join and read all messages; "
            "use --certs DIR, or an address of this machine alone"
        )
    credentials = None if certs is None else Credentials.load(certs)
    if credentials is not None:
        check_credentials(credentials, "server")
    with _explaining(listen, credentials, linger):
        key = None if public_key is None else read_public(public_key)
        chosen, folder = chosen_settings(settings, overrides, clients, resume, previous)
        if chosen.seals_secrets and insecure:
            raise SettingsError(
                "sealed needs certificates of the clients; start the server with --certs DIR, or use "
                "secrets.source: file",
                key="secrets.source",
            )
        chosen = _without_links(chosen)
        show_warnings(chosen)
        checkpoint = None if folder is None else open_resumed(folder, previous=previous)
        console = console_for(as_json, quiet)
        ensure(chosen.data, console)
        folder = folder or RunFolder.create(runs, chosen.name)
        write_text(folder.settings, chosen.to_yaml(), sync=chosen.checkpoint.sync)
        with (
            conducted(folder, chosen, exporters, console) as watchers,
            Display(console, folder.id, chosen.rounds) as display,
        ):
            observer = Observers(display, watchers)
            coordinator = Coordinator(
                chosen, folder, resume=checkpoint, observer=observer, public_key=key, keeps_clients=keep_clients
            )

            def listening(port: int) -> None:
                display.say(f"listening on {listen.rpartition(':')[0]}:{port}; waiting for clients")
                if checkpoint is not None and checkpoint.round >= chosen.rounds:
                    display.say("all rounds are done: what is left is to tell clients that have not heard so")

            summary = interruptible(serve(coordinator, listen, credentials, listening))
        show_outcome(console, folder, summary, as_json=as_json, quiet=quiet)


@contextmanager
def _explaining(listen: str, credentials: Credentials | None, seconds: float) -> Iterator[None]:
    """After an error, send the reason to connecting clients for ``seconds`` seconds, then raise the error."""
    try:
        yield
    except FenchelError as error:
        # After a TooManyFilesError, a supervisor restarts the server, so clients just reconnect.
        if seconds and not isinstance(error, TooManyFilesError):
            from fenchel.server.coordinator import reason_for_clients
            from fenchel.server.transport.refusal import refuse

            warn_of(f"the server ends by an error; for {seconds:g} s it answers clients that dial in with the reason")
            with suppress(asyncio.CancelledError, KeyboardInterrupt):  # Ctrl-C only ends the wait
                interruptible(refuse(listen, credentials, reason_for_clients(error), seconds))
        raise


def _without_links(settings: RunSettings) -> RunSettings:
    """Return the settings without links, which only ``fenchel up`` emulates."""
    if settings.links is None:
        return settings
    warn_of(
        "links: left out, since only fenchel up imposes them; here the network is what it is. "
        "fenchel relay puts a link in front of clients on other machines (docs/network.md)"
    )
    return settings.model_copy(update={"links": None})
