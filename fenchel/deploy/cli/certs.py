"""Commands that issue, replace, revoke and show certificates."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path
from typing import Annotated

import typer

from fenchel.common.errors import SettingsError
from fenchel.common.tls.credentials import AUTHORITY, KEY
from fenchel.deploy.cli.options import JsonOption
from fenchel.deploy.cli.printing import print_json, say

certs = typer.Typer(help="Certificates: an authority, the server's, the clients'.", no_args_is_help=True)

Folder = Annotated[Path, typer.Argument(help="folder to write to")]
Authority = Annotated[Path, typer.Option("--authority", help="folder of the authority")]
Hosts = Annotated[list[str], typer.Option("--host", help="name or address that clients dial; repeat for several")]
Days = Annotated[int, typer.Option(min=1, help="validity in days")]
Force = Annotated[bool, typer.Option("--force", help="replace existing files")]

_YEAR = 365 * 24 * 60  # in minutes


@certs.command("all")
def make_everything(
    folder: Folder,
    hosts: Hosts,
    clients: Annotated[int, typer.Option(min=1, help="number of client identities")],
    force: Force = False,
) -> None:
    """Make an authority, a server certificate, and client certificates client-000, client-001, ... in one folder."""
    from fenchel.deploy.certificates.making import make_all
    from fenchel.deploy.launch.names import client_names

    make_all(folder, hosts, client_names(clients), force=force)
    say(f"{folder}: authority, server, and {clients} clients. Keep {folder / 'authority'} to yourself.")


@certs.command()
def authority(
    folder: Folder,
    name: Annotated[str, typer.Option(help="name of the authority")] = "Fenchel authority",
    days: Days = 3650,
    force: Force = False,
) -> None:
    """Make a certificate authority, whose key signs the certificates of all participants."""
    from fenchel.deploy.certificates.authority import make_authority

    make_authority(folder, name, days=days, force=force)
    say(f"{folder}: authority {name!r}. Its authority-key.pem never leaves this machine.")


@certs.command()
def server(authority: Authority, folder: Folder, hosts: Hosts, days: Days = 397, force: Force = False) -> None:
    """Make a server's certificate."""
    from fenchel.deploy.certificates.making import make_server

    make_server(authority, folder, hosts, days=days, force=force)
    say(f"{folder}: certificate of the server at {', '.join(hosts)}")


@certs.command()
def client(
    authority: Authority,
    folder: Folder,
    name: Annotated[str, typer.Option(help="the client's id")],
    days: Days = 397,
    force: Force = False,
) -> None:
    """Make a client's certificate, whose name is the client's identity."""
    from fenchel.deploy.certificates.making import make_client

    make_client(authority, folder, name, days=days, force=force)
    say(f"{folder}: certificate of client {name!r}")


@certs.command()
def invite(
    authority: Authority,
    names: Annotated[list[str], typer.Option("--name", help="id of a client to invite; repeat for several")],
    at: Annotated[str, typer.Option(metavar="HOST:PORT", help="address at which clients reach this machine")],
    listen: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="address to listen on; default: all addresses, at the port of --at"),
    ] = None,
    minutes: Annotated[int, typer.Option(min=1, max=_YEAR, help="validity of the tokens in minutes")] = 60,
    days: Days = 397,
) -> None:
    """Print a token for each invited client, and sign the certificate request that comes with a token.

    Give each client its token over a private channel, for fenchel client --token. A token is valid once, while this
    command runs. Each client makes its own private key and keeps it.
    """
    from fenchel.deploy.address import Address, everywhere
    from fenchel.deploy.certificates.authority import Authority as Signer
    from fenchel.deploy.cli.conduct import interruptible
    from fenchel.deploy.invitations.signing import inviting

    async def served() -> None:
        signer, address = Signer.load(authority), Address.parse(at, "--at")
        where = Address(everywhere(address.host), address.port) if listen is None else Address.parse(listen, "--listen")
        async with inviting(signer, names, address, listen=where, days=days, on_event=say) as (service, invitations):
            for invitation in invitations:
                say(f"{invitation.name}  {invitation.token}")
            until = datetime.now() + timedelta(minutes=minutes)
            dialled = invitations[0].address
            say(f"waiting at {dialled} until {until:%Y-%m-%d %H:%M}; Ctrl-C ends this, and the tokens with it")
            await service.wait(60 * minutes)
            say("all have their certificates; ask each client whether its key is the one above, before it joins")

    interruptible(served())


@certs.command()
def monitor(
    authority: Authority,
    folder: Folder,
    name: Annotated[str, typer.Option(help="name of the monitor, for the server's log")] = "monitor",
    days: Days = 397,
    force: Force = False,
) -> None:
    """Make a monitor's certificate, which permits checks of the server's health but no participation in a run."""
    from fenchel.deploy.certificates.making import make_monitor

    make_monitor(authority, folder, name, days=days, force=force)
    say(f"{folder}: certificate of monitor {name!r}")


@certs.command()
def renew(
    authority: Authority,
    folder: Annotated[Path, typer.Argument(help="folder with the certificate to replace")],
    days: Days = 397,
) -> None:
    """Replace a certificate and its key by new ones for the same name or hosts.

    A server or client with this folder uses the new pair from its next connection on, without a restart. The old
    certificate remains valid until it expires or is revoked by the serial number that this command prints.
    """
    from fenchel.deploy.certificates.description import describe
    from fenchel.deploy.certificates.making import renew as replace

    old = describe(folder)["serial"]
    replace(authority, folder, days=days)
    about = describe(folder)
    say(f"{folder}: new certificate of {about['subject']!r}, until {about['expires'][:10]}; the old one is {old}")


@certs.command()
def revoke(
    authority: Authority,
    names: Annotated[
        list[str] | None, typer.Option("--name", help="client whose certificates are revoked; repeat for several")
    ] = None,
    serials: Annotated[
        list[str] | None,
        typer.Option(
            "--serial",
            metavar="HEX",
            help="serial number of a certificate, which certs show prints; repeat for several",
        ),
    ] = None,
    to: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="DIR", help="also copy the list into this folder of the server or of a client; repeat for several"
        ),
    ] = None,
) -> None:
    """Revoke certificates: write the authority's list, revoked.pem, for the folders of the server and the clients.

    A running server reads revoked.pem in its --certs folder every few seconds. It ends the streams of revoked clients
    and accepts no new ones; the run continues without these clients. A client with the list in its --certs folder
    shares no secrets with revoked clients, even if the server requests it.
    """
    from fenchel.common.tls.revocation import REVOKED
    from fenchel.deploy.certificates.revocation import check_trust, copy_list
    from fenchel.deploy.certificates.revocation import revoke as add

    if not names and not serials:
        raise SettingsError("no certificate given; give --name CLIENT or --serial HEX")
    for folder in to or ():
        if not (folder / AUTHORITY).is_file():
            raise SettingsError(
                f"not a folder of certificates, because it has no {AUTHORITY}; give the folder that the server or "
                "client was given with --certs",
                key=f"--to {folder}",
            )
        check_trust(authority, folder)
    new = add(authority, names=names or (), serials=[_number(serial) for serial in serials or ()])
    say(f"{authority / REVOKED}: {len(new)} more revoked" + "".join(f"\n  {serial:x}" for serial in new))
    if not to:
        say("copy it into the folders that the server and the clients were given with --certs")
    for folder in to or ():
        copy_list(authority, folder)
        say(f"{folder / REVOKED}: copied")


def _number(serial: str) -> int:
    try:
        number = int(serial, 16)
    except ValueError:
        number = 0
    if number <= 0:
        raise SettingsError(
            "not a hexadecimal number; fenchel certs show prints the serial number", key=f"--serial {serial}"
        )
    return number


@certs.command()
def show(folder: Folder, as_json: JsonOption = False) -> None:
    """Show the purpose and expiry of a folder's certificate, and verify it against its authority."""
    from fenchel.common.tls.credentials import Credentials
    from fenchel.deploy.certificates.description import describe
    from fenchel.deploy.certificates.pairs import check_pair

    about = describe(folder)
    if (folder / KEY).exists():
        check_pair(Credentials.load(folder))
    if as_json:
        print_json(about, indent=2)
        return
    width = max(map(len, about))
    for key, value in about.items():
        if value:
            say(f"{key:{width}}  {', '.join(value) if isinstance(value, list) else value}")
