"""Certificates for clients that exchange secrets."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fenchel.common.tls.credentials import Credentials
from fenchel.deploy.certificates.making import make_all
from fenchel.keys.identity import Identity


def identities(folder: Path, names: Sequence[str]) -> dict[str, Identity]:
    """Return identities of one authority, those of the clients and that of the server."""
    make_all(folder, ["localhost"], names)
    found = {name: Identity(name, Credentials.load(folder / name)) for name in names}
    return found | {"server": Identity("fenchel server", Credentials.load(folder / "server"))}
