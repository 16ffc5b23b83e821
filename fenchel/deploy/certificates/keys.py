"""The two files of a key pair, and the rule of who is given which.

``clients.secret`` holds what all clients share: each of them gets a copy. ``server.public`` holds the public
key: the server may have it. A server that is offered the other one refuses to start.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from fenchel.common.crypto.public_key import DEFAULT_BITS, Implementation, PublicKey, looks_private
from fenchel.common.errors import CredentialError, SettingsError
from fenchel.common.storage.store import make_private_folder

CLIENTS = "clients.secret"
SERVER = "server.public"

SECRETS_VARIABLE = "FENCHEL_SECRETS"
"""Names the file for ``fenchel client --secrets`` in the environment."""
PUBLIC_KEY_VARIABLE = "FENCHEL_PUBLIC_KEY"
"""Names the file for ``fenchel server --public-key`` in the environment."""
MOUNTED_SECRETS = Path("/run/secrets")
"""Where containers find the secrets that they are given."""

_LONGEST = 1 << 20  # bytes of a file that are looked at; a key is shorter


def make_keys(
    folder: Path, bits: int = DEFAULT_BITS, implementation: Implementation = "fenchel", *, force: bool = False
) -> PublicKey:
    """Make a key pair: ``clients.secret`` (mode 0600) and ``server.public``.

    Parameters
    ----------
    folder
        Where; if it is missing it is made, for its owner alone.
    implementation
        What makes it.
    force
        Replace what is there. What was encrypted with it can no longer be read.
    """
    # Only here: a process that is a server must not even have this code.
    from fenchel.keys.shared import Secrets

    paths = folder / CLIENTS, folder / SERVER
    for path in paths:
        if path.exists() and not force:
            raise SettingsError(
                "is there already; --force replaces it, and what was encrypted with it can then no longer be read",
                source=path,
            )
    secrets = Secrets.generate(bits, implementation)
    public = secrets.private_key.public
    try:
        make_private_folder(folder)
        for path in paths:
            path.unlink(missing_ok=True)
        secrets.save(paths[0])
        paths[1].write_text(public.to_text())
    except OSError as error:
        raise CredentialError(f"cannot be written ({error.strerror})", source=folder) from None
    return public


async def make_keys_apart(folder: Path, bits: int, implementation: Implementation) -> PublicKey:
    """Make a key pair in another process, so that this one, which is to be a server, never has the private key."""
    words = ("keys", str(folder), "--bits", str(bits), "--implementation", implementation)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", "fenchel", *words),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    _, said = await process.communicate()
    if process.returncode != 0:
        raise SettingsError(said.decode(errors="replace").strip().removeprefix("error: "))
    return read_public(folder / SERVER)


def read_public(path: Path) -> PublicKey:
    """Read a public key."""
    try:
        text = path.read_text(errors="replace")
    except OSError as error:
        raise CredentialError(f"cannot be read ({error.strerror}); fenchel keys makes {SERVER}", source=path) from None
    return PublicKey.from_text(text, str(path))


def refuse_private_keys(
    certificates: Path | None, environment: Mapping[str, str], mounted: Path = MOUNTED_SECRETS
) -> None:
    """Refuse to be a server within reach of what decrypts.

    Parameters
    ----------
    mounted
        Where containers find their secrets.
    """
    for place, text in _offered(certificates, environment, mounted):
        if looks_private(text):
            raise CredentialError(
                f"holds the clients' private key, and this would be the server: whoever runs it could read "
                f"what the clients hide. Give the server {SERVER} only, and remove this. If others than the clients "
                "have had access to it, make new keys (fenchel keys)",
                source=place,
            )


def _offered(certificates: Path | None, environment: Mapping[str, str], mounted: Path) -> Iterator[tuple[str, str]]:
    """Yield all that a server is given besides its settings: where it is, and what it says."""
    for name, value in environment.items():
        yield f"the variable {name} of the environment", value
    files = [Path(environment[name]) for name in (SECRETS_VARIABLE, PUBLIC_KEY_VARIABLE) if environment.get(name)]
    for folder in (certificates, mounted):
        if folder is not None and folder.is_dir():
            files += sorted(folder.iterdir())
    for path in files:
        if path.is_file() and (text := _beginning(path)):
            yield str(path), text


def _beginning(path: Path) -> str:
    """Return the beginning of a file; nothing of one that this process cannot read, which is not within its reach."""
    try:
        with path.open(errors="replace") as file:
            return file.read(_LONGEST)
    except OSError:
        return ""
