"""Files of a Paillier key pair, and the check that a server has no private key.

``clients.secret`` has the secrets that all clients share, and each client gets a copy. ``server.public`` has the public
key for the server. A server refuses to start if it is given a private key.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from fenchel.common.crypto.public_key import DEFAULT_BITS, Implementation, PublicKey, looks_private
from fenchel.common.errors import CredentialError, SettingsError
from fenchel.common.storage.store import make_private_folder, replacing, settle

CLIENTS = "clients.secret"
SERVER = "server.public"

SECRETS_VARIABLE = "FENCHEL_SECRETS"
"""Environment variable for ``fenchel client --secrets``."""
PUBLIC_KEY_VARIABLE = "FENCHEL_PUBLIC_KEY"
"""Environment variable for ``fenchel server --public-key``."""
MOUNTED_SECRETS = Path("/run/secrets")
"""Folder of mounted secrets in containers."""

_LONGEST = 1 << 20  # largest part of a file that is inspected, in characters; every key is shorter


def make_keys(
    folder: Path, bits: int = DEFAULT_BITS, implementation: Implementation = "fenchel", *, force: bool = False
) -> PublicKey:
    """Create a key pair: ``clients.secret`` (mode 0600) and ``server.public``.

    Parameters
    ----------
    folder
        Folder of the files, which is created with access for its owner only.
    bits
        Length of the key in bits.
    implementation
        Implementation of key generation.
    force
        Whether to replace existing keys. Values encrypted with them can no longer be decrypted.

    Raises
    ------
    SettingsError
        If a file exists and ``force`` is false.
    CredentialError
        If a file cannot be written.
    """
    # Late import, because server processes must not load the code that decrypts.
    from fenchel.keys.shared import Secrets

    paths = folder / CLIENTS, folder / SERVER
    for path in paths:
        if path.exists() and not force:
            raise SettingsError(
                "the file exists already; choose another folder. With --force new keys replace it, and values "
                "encrypted with the old key can no longer be decrypted",
                source=path,
            )
    secrets = Secrets.generate(bits, implementation)
    public = secrets.private_key.public
    try:
        make_private_folder(folder)
        # Both are written before either replaces its file: a full disk destroys no keys and leaves no half of a pair.
        with replacing(paths[0], private=True, sync=True) as clients, replacing(paths[1], sync=True) as server:
            for file, text in ((clients, secrets.to_text()), (server, public.to_text())):
                file.write(text.encode())
                file.flush()
        settle(folder)
    except OSError as error:
        raise CredentialError(
            f"the keys cannot be written ({error.strerror}); make room on the disk, make the folder writable, or "
            "choose another folder",
            source=folder,
        ) from None
    return public


async def make_keys_apart(folder: Path, bits: int, implementation: Implementation) -> PublicKey:
    """Create a key pair in another process, because this process becomes a server and must not have the private key.

    Raises
    ------
    SettingsError
        If the other process fails, with its message.
    """
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
    """Read a public key. Raise ``CredentialError`` if the file cannot be read."""
    try:
        text = path.read_text(errors="replace")
    except OSError as error:
        raise CredentialError(
            f"the file cannot be read ({error.strerror}); make {SERVER} with fenchel keys", source=path
        ) from None
    return PublicKey.from_text(text, str(path))


def refuse_private_keys(
    certificates: Path | None, environment: Mapping[str, str], mounted: Path = MOUNTED_SECRETS
) -> None:
    """Raise ``CredentialError`` if a server was given a private key: in its environment, or in files that it can read.

    Parameters
    ----------
    certificates
        Folder of the server's certificate. ``None`` without TLS.
    environment
        Environment variables.
    mounted
        Folder of mounted secrets in containers.
    """
    for place, text in _offered(certificates, environment, mounted):
        if looks_private(text):
            raise CredentialError(
                "the folder has the clients' private key, with which the server's operator could decrypt the "
                f"clients' values. Remove it, and give the server {SERVER} only. If anyone but the clients had "
                "access to it, make new keys (fenchel keys)",
                source=place,
            )


def _offered(certificates: Path | None, environment: Mapping[str, str], mounted: Path) -> Iterator[tuple[str, str]]:
    """Yield the source and the content of environment variables, key files, and files in the two folders."""
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
    """Return the beginning of a file, or "" if this process cannot read it."""
    try:
        with path.open(errors="replace") as file:
            return file.read(_LONGEST)
    except OSError:
        return ""
