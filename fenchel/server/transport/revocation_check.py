"""The revocation check, which refuses callers with a revoked certificate and ends their open streams.

The run treats such a client as disconnected, like one whose machine has stopped. Deadlines and
``participation.min_replies`` apply to the round, and the client can reconnect with a new certificate.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

import grpc

from fenchel.common.errors import RevokedError
from fenchel.common.tls.revocation import Revocations

_LOOK_SECONDS = 2.0
_CERTIFICATE = "x509_pem_cert"

_Context: TypeAlias = grpc.aio.ServicerContext[Any, Any]


class RevocationCheck:
    """Revocation check of calls, at their beginning and while they are open.

    Parameters
    ----------
    revocations
        List of revoked certificates; ``None`` without TLS, which disables the check.
    """

    def __init__(self, revocations: Revocations | None = None) -> None:
        self._revocations = revocations
        self._open: dict[asyncio.Task[Any], bytes] = {}
        self._ended: dict[asyncio.Task[Any], RevokedError] = {}

    def found(self, context: _Context) -> RevokedError | None:
        """Return the error with which to refuse a caller whose certificate was revoked, ``None`` for other callers."""
        if self._revocations is None:
            return None
        self._revocations.refresh()
        return _error_of(self._revocations, certificate_of(context))

    @contextmanager
    def watching(self, context: _Context) -> Iterator[None]:
        """Cancel the ``with`` block when the caller's certificate is revoked, and raise ``RevokedError``."""
        task = asyncio.current_task()
        assert task is not None
        self._open[task] = certificate_of(context)
        try:
            yield
        except asyncio.CancelledError:
            if task not in self._ended:
                raise
            # End the cancelled task normally: gRPC would leave the stream open if it ended as cancelled.
            task.uncancel()
            raise self._ended[task] from None
        finally:
            self._open.pop(task, None)
            self._ended.pop(task, None)

    async def watch(self) -> None:
        """Check open calls every two seconds, and cancel those whose certificate has been revoked, until cancelled."""
        while self._revocations is not None:
            await asyncio.sleep(_LOOK_SECONDS)
            self._revocations.refresh()
            for task, certificate in list(self._open.items()):
                if task not in self._ended and (error := _error_of(self._revocations, certificate)):
                    self._ended[task] = error
                    task.cancel()


def _error_of(revocations: Revocations, certificate: bytes) -> RevokedError | None:
    try:
        revocations.check(certificate)
    except RevokedError as error:
        return error
    return None


def certificate_of(context: _Context) -> bytes:
    """Return the caller's certificate in PEM form; empty without TLS."""
    return bytes(next(iter(context.auth_context().get(_CERTIFICATE, ())), b""))
