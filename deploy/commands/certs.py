"""Commands that make certificates: all at once, or an authority, a server's, a client's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from common.credentials import KEY
from deploy.commands.run import JsonOption

app = typer.Typer(help="Certificates: an authority, the server's, the clients'.", no_args_is_help=True)

Folder = Annotated[Path, typer.Argument(help="folder to write to")]
Authority = Annotated[Path, typer.Option("--authority", help="folder of the authority")]
Hosts = Annotated[
    list[str], typer.Option("--host", help="name or address that clients dial; repeat for several")
]
Days = Annotated[int, typer.Option(min=1, help="validity in days")]
Force = Annotated[bool, typer.Option("--force", help="replace what is there")]


def _say(words: str) -> None:
    Console(highlight=False, markup=False, emoji=False).print(words, soft_wrap=True)


@app.command("all")
def make_everything(
    folder: Folder,
    hosts: Hosts,
    clients: Annotated[int, typer.Option(min=1, help="number of client identities")],
    force: Force = False,
) -> None:
    """Make an authority, a server certificate, and client-000, client-001, ... in one folder."""
    from deploy.certificates import make_all
    from deploy.names import client_names

    make_all(folder, hosts, client_names(clients), force=force)
    _say(f"{folder}: authority, server, and {clients} clients. Keep {folder / 'authority'} to yourself.")


@app.command()
def authority(
    folder: Folder,
    name: Annotated[str, typer.Option(help="name of the authority")] = "Fenchel authority",
    days: Days = 3650,
    force: Force = False,
) -> None:
    """Make a certificate authority; its key signs who may take part."""
    from deploy.certificates import make_authority

    make_authority(folder, name, days=days, force=force)
    _say(f"{folder}: authority {name!r}. Its authority-key.pem never leaves this machine.")


@app.command()
def server(
    authority: Authority, folder: Folder, hosts: Hosts, days: Days = 397, force: Force = False
) -> None:
    """Make a server's certificate."""
    from deploy.certificates import make_server

    make_server(authority, folder, hosts, days=days, force=force)
    _say(f"{folder}: certificate of the server at {', '.join(hosts)}")


@app.command()
def client(
    authority: Authority,
    folder: Folder,
    name: Annotated[str, typer.Option(help="the client's id")],
    days: Days = 397,
    force: Force = False,
) -> None:
    """Make a client's certificate; its name is the client's identity."""
    from deploy.certificates import make_client

    make_client(authority, folder, name, days=days, force=force)
    _say(f"{folder}: certificate of client {name!r}")


@app.command()
def show(folder: Folder, as_json: JsonOption = False) -> None:
    """Tell what a folder's certificate is for, until when, and check it against its authority."""
    from common.credentials import Credentials
    from deploy.certificates import check_pair, describe

    about = describe(folder)
    if (folder / KEY).exists():
        check_pair(Credentials.load(folder))
    if as_json:
        print(json.dumps(about, indent=2, default=str))  # noqa: T201
        return
    for key, value in about.items():
        _say(f"{key:12} {value}")
