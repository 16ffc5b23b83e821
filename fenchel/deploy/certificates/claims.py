"""Identities for replicas: containers that differ in nothing but their host names."""

from __future__ import annotations

import secrets
from contextlib import suppress
from pathlib import Path

from fenchel.common.errors import CredentialError, SettingsError
from fenchel.common.tls.credentials import CLAIMS, KEY


def claim(pool: Path, holder: str) -> str:
    """Take an identity that nobody else has, or the one that this holder has taken before.

    Replicas of one container differ in nothing but their host names, so each takes the first identity of a
    shared folder that is free. A claim is the file ``claims/<client>`` in the pool, which names its holder;
    the identities themselves are only read.

    Parameters
    ----------
    pool
        A folder that holds one folder for each client, as :func:`fenchel.deploy.certificates.making.make_all` writes
        them.
    holder
        Who takes it: the same after a restart, and different for each replica.

    Returns
    -------
    str
        The client's name; its credentials are in ``pool / name``.
    """
    claims = pool / CLAIMS
    try:
        names = sorted(path.name for path in pool.iterdir() if (path / KEY).is_file() and path.name != "server")
        claims.mkdir(mode=0o700, exist_ok=True)
        for name in names:
            if (claims / name).exists() and (claims / name).read_text() == holder:
                return name
        # A link comes into being with its content, so no claim is ever half made.
        draft = claims / f".{secrets.token_hex(8)}"
        draft.write_text(holder)
        try:
            for name in names:
                with suppress(FileExistsError):
                    (claims / name).hardlink_to(draft)
                    return name
        finally:
            draft.unlink()
    except OSError as error:
        raise CredentialError(
            f"cannot be used for the claims of identities ({error.strerror}); make {pool} a folder that this "
            "process may write",
            source=claims,
        ) from None
    if not names:
        raise SettingsError("holds no client's folder; make some with fenchel certs all", source=pool)
    raise SettingsError(
        f"all {len(names)} identities are taken; make more with fenchel certs client, or remove the "
        f"files of clients that are gone for good from {claims}",
        source=pool,
    )
