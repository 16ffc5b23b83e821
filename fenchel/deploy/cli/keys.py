"""Command ``fenchel keys``, which makes and shows the keys shared by clients."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from fenchel.common.crypto.public_key import BITS_OF_SECURITY, Implementation, PublicKey
from fenchel.common.crypto.residues.choice import backend_of
from fenchel.common.errors import CredentialError, SettingsError
from fenchel.deploy.certificates.keys import CLIENTS, SERVER, make_keys, read_public
from fenchel.deploy.cli.options import JsonOption
from fenchel.deploy.cli.printing import print_json, say

_BITS = {str(security): bits for security, bits in BITS_OF_SECURITY.items()}


def keys(
    words: Annotated[
        list[str], typer.Argument(metavar="FOLDER | show FILE", help="folder to write to, or a file to show")
    ],
    security: Annotated[
        Literal["112", "128", "192"],
        typer.Option(help="security level: length in bits of an equally strong symmetric key"),
    ] = "128",
    bits: Annotated[
        int | None, typer.Option(help="length of the Paillier key in bits, for settings with key_bits")
    ] = None,
    implementation: Annotated[
        Implementation,
        typer.Option(help="implementation that makes the key: fenchel, or phe (algorithm.encryption.implementation)"),
    ] = "fenchel",
    force: Annotated[bool, typer.Option("--force", help="replace existing keys")] = False,
    as_json: JsonOption = False,
) -> None:
    """Make the clients' shared secrets and the server's public key, or describe a key file without its secrets."""
    match words:
        case ["show", file]:
            _show(Path(file), as_json)
        case [folder]:
            _make(Path(folder), _BITS[security] if bits is None else bits, implementation, force, as_json)
        case _:
            raise SettingsError(f"{len(words)} arguments given; give one, the folder for new keys, or two, show FILE")


def _make(folder: Path, bits: int, implementation: Implementation, force: bool, as_json: bool) -> None:
    public = make_keys(folder, bits, implementation, force=force)
    if as_json:
        print_json({"folder": str(folder), **_facts(public)}, indent=2)
        return
    say(f"fingerprint    {public.fingerprint}")
    say(f"length         {public.bits} bits; computed with by the backend {backend_of('fenchel')} on this machine")
    say(f"{CLIENTS} goes to every client over a confidential channel; never to the server")
    say(f"{SERVER}  may go to the server, which then insists on this key")
    say(f"both are in {folder}")


def _show(file: Path, as_json: bool) -> None:
    about = _about(file)
    if as_json:
        print_json(about, indent=2)
        return
    for key, value in about.items():
        say(f"{key:12} {value}")


def _about(file: Path) -> dict[str, str | int]:
    from fenchel.common.crypto.public_key import looks_private
    from fenchel.keys.shared import Secrets

    try:
        private = looks_private(file.read_text(errors="replace"))
    except OSError as error:
        raise CredentialError(
            f"the file cannot be read ({error.strerror}); give clients.secret or server.public, which fenchel keys "
            "made",
            source=file,
        ) from None
    if private:
        secrets = Secrets.load(file)
        public, kind = secrets.private_key.public, "secrets that clients share; never for the server"
    else:
        public, kind = read_public(file), "public key; the server may have it"
    return {"kind": kind, **_facts(public)}


def _facts(public: PublicKey) -> dict[str, str | int]:
    return {"bits": public.bits, "fingerprint": public.fingerprint, "backend": backend_of("fenchel")}
