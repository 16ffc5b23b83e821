"""Assignment of client identities to replicated containers, which differ only in their host names."""

from __future__ import annotations

import secrets
from contextlib import suppress
from pathlib import Path

from fenchel.common.errors import CredentialError, SettingsError
from fenchel.common.tls.credentials import CERTIFICATE, CLAIMS, KEY
from fenchel.common.tls.roles import Role, role_of


def claim(pool: Path, holder: str) -> str:
    """Claim a free identity in a shared folder, or return the one that the holder has claimed before.

    A claim is the file ``claims/<client>`` in the pool, which contains the name of the holder. The folders of the
    identities are not changed.

    Parameters
    ----------
    pool
        Folder with one folder for each client, as written by :func:`fenchel.deploy.certificates.making.make_all`.
    holder
        Unique name of the replica, which stays the same after a restart.

    Returns
    -------
    str
        Client id, which is also the name of the folder in the pool with its credentials.

    Raises
    ------
    SettingsError
        If the pool has no unclaimed identity.
    CredentialError
        If a claim cannot be stored.
    """
    claims = pool / CLAIMS
    try:
        names = sorted(path.name for path in pool.iterdir() if path.name != "server" and _is_of_client(path))
        claims.mkdir(mode=0o700, exist_ok=True)
        for name in names:
            if (claims / name).exists() and (claims / name).read_text() == holder:
                return name
        # A hard link is created atomically, so no reader sees an incomplete claim.
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
            f"the claims of identities cannot be stored ({error.strerror}); make {pool} writable for this process",
            source=claims,
        ) from None
    if not names:
        raise SettingsError("no folder of a client in this folder; make identities with fenchel certs all", source=pool)
    raise SettingsError(
        f"all {len(names)} identities are claimed; make more with fenchel certs client, or remove from {claims} "
        "the files of clients that will not return",
        source=pool,
    )


def _is_of_client(folder: Path) -> bool:
    """Return whether a folder has the key of a client, and not that of a monitor."""
    certificate = folder / CERTIFICATE
    if not (folder / KEY).is_file():
        return False
    return not certificate.is_file() or role_of(certificate.read_bytes()) is Role.PARTICIPANT
