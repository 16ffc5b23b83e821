"""Who shows a certificate that was revoked is turned away, and the streams that it has open are ended.

To everybody else it is then away, like a client whose machine has stopped: deadlines and
``participation.min_replies`` say what becomes of the round, and it may come back with a new certificate.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

import grpc

from fenchel.common.tls.revocation import Revocations

_LOOK_SECONDS = 2.0
_CERTIFICATE = "x509_pem_cert"

_Context: TypeAlias = grpc.aio.ServicerContext[Any, Any]


class RevokedError(Exception):
    """The caller's certificate was revoked; the text says when, and what to do."""


class RevocationCheck:
    """Knows who has a stream open, and with which certificate.

    Parameters
    ----------
    revocations
        What was revoked; ``None``: without TLS there are no certificates.
    """

    def __init__(self, revocations: Revocations | None = None) -> None:
        self._revocations = revocations
        self._open: dict[asyncio.Task[Any], bytes] = {}
        self._ended: dict[asyncio.Task[Any], str] = {}

    def refusal(self, context: _Context) -> str:
        """Say why a caller is not served, as its certificate was revoked; empty if it was not."""
        if self._revocations is None:
            return ""
        self._revocations.refresh()
        return self._revocations.refusal(certificate_of(context))

    @contextmanager
    def watching(self, context: _Context) -> Iterator[None]:
        """End what the current task does in a ``with`` block once its caller's certificate is revoked."""
        task = asyncio.current_task()
        assert task is not None
        self._open[task] = certificate_of(context)
        try:
            yield
        except asyncio.CancelledError:
            if task not in self._ended:
                raise
            # The transport would leave a stream open that ends by cancellation from this side.
            task.uncancel()
            raise RevokedError(self._ended[task]) from None
        finally:
            self._open.pop(task, None)
            self._ended.pop(task, None)

    async def watch(self) -> None:
        """Look at the list now and then, for as long as the server serves."""
        while self._revocations is not None:
            await asyncio.sleep(_LOOK_SECONDS)
            self._revocations.refresh()
            for task, certificate in list(self._open.items()):
                if task not in self._ended and (refusal := self._revocations.refusal(certificate)):
                    self._ended[task] = refusal
                    task.cancel()


def certificate_of(context: _Context) -> bytes:
    """Return the caller's certificate in PEM form; empty without TLS."""
    return bytes(next(iter(context.auth_context().get(_CERTIFICATE, ())), b""))
