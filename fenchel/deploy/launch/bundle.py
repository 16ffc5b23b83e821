"""Bundle of certificates, keys and secrets, which a client process reads from a pipe or file and keeps in memory.

The first line is a JSON object. It contains the PEM texts of each client, by client id, and the length of the secrets
in bytes. The secrets follow the first line.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from fenchel.common.errors import CredentialError
from fenchel.common.tls.credentials import Credentials

_LONGEST = 64 << 20  # size limit of the first line, and of the secrets, in bytes
_PARTS = ("authority", "certificate", "key")


@dataclass(frozen=True, kw_only=True)
class Bundle:
    """Identities and secrets of the clients of one process.

    Attributes
    ----------
    identities
        Certificate and key of each client, by client id; ``None`` without TLS.
    secrets
        File with the secrets that clients share. ``None`` if the run has no secrets, or clients exchange them in sealed
        boxes. The server's process never reads this file.
    """

    identities: Mapping[str, Credentials | None]
    secrets: Path | None = None

    async def send(self, descriptor: int) -> None:
        """Write the bundle to a pipe, and leave the pipe open. If this method raises an error, it closes the pipe.

        A client process that has exited already is not an error here, because its exit code gives the reason.
        """
        try:
            # A duplicate, because the thread survives a cancellation and must not write to a reused file descriptor.
            await asyncio.to_thread(_write, os.dup(descriptor), self._line())
            if self.secrets is not None:
                # A separate process copies the secrets, because the server's process must not read them.
                copying = await asyncio.create_subprocess_exec("cat", str(self.secrets), stdout=descriptor)
                await copying.wait()
        except BrokenPipeError:
            return
        except BaseException:
            os.close(descriptor)
            raise

    def _line(self) -> bytes:
        """Return the first line of the bundle, which excludes the secrets."""
        texts = {
            name: None if pair is None else {part: getattr(pair, part).decode() for part in _PARTS}
            for name, pair in self.identities.items()
        }
        size = 0 if self.secrets is None else self.secrets.stat().st_size
        return json.dumps({"identities": texts, "secrets": size}).encode() + b"\n"


@dataclass(frozen=True)
class ReceivedBundle:
    """Bundle that a client process has read, with the secrets as text."""

    identities: Mapping[str, Credentials | None]
    secrets: str | None

    @classmethod
    def read(cls, stream: BinaryIO, source: str) -> ReceivedBundle:
        """Read a bundle that :meth:`Bundle.send` wrote.

        Parameters
        ----------
        source
            Origin of the bundle, for errors.

        Raises
        ------
        CredentialError
            If the bundle is incomplete, invalid or without clients.
        """
        try:
            line = json.loads(stream.readline(_LONGEST))
            identities = {str(name): _credentials(texts) for name, texts in line["identities"].items()}
            size = int(line["secrets"])
            if not identities or not 0 <= size <= _LONGEST:
                raise ValueError
            secrets = stream.read(size)
            if len(secrets) < size:
                raise ValueError
            return cls(identities, secrets.decode("ascii") if size else None)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            raise CredentialError(
                "no complete bundle of certificates and keys; start this command through fenchel up, which sends one",
                source=source,
            ) from None


def read_whole(stream: BinaryIO) -> bytes:
    """Read the bytes of one bundle from a pipe, and do not wait for the pipe to close.

    Raises
    ------
    CredentialError
        If the stream ends before the end of the bundle.
    """
    line = stream.readline(_LONGEST)
    # After a truncated line, the stream has ended, so that the check below fails for any size above 0.
    size = int(json.loads(line)["secrets"]) if line.endswith(b"\n") else 1
    secrets = stream.read(size)
    if len(secrets) < size:
        raise CredentialError(
            "the bundle of certificates and keys is incomplete, because fenchel up ended; start fenchel up again"
        )
    return line + secrets


def _credentials(texts: Any) -> Credentials | None:
    return None if texts is None else Credentials(*(texts[part].encode() for part in _PARTS))


def _write(descriptor: int, data: bytes) -> None:
    """Write all data to a pipe, in several writes if necessary, and close the file descriptor."""
    with os.fdopen(descriptor, "wb") as pipe:
        pipe.write(data)
