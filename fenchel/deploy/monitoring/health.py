"""Health check of a server, for container engines and service managers.

``python -m fenchel.deploy.monitoring.health HOST:PORT --certs DIR`` exits with 0 if the server reports within a few
seconds that it is serving, otherwise with 1. The check uses the standard gRPC health protocol, and presents a client
certificate to a server with TLS.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import grpc
from grpc_health.v1 import health_pb2

from fenchel.common.errors import CredentialError, UnreachableError
from fenchel.common.tls.credentials import Credentials

_PATIENCE = 3.0  # deadline of the health check, in seconds


def check_serving(server: str, credentials: Credentials | None) -> None:
    """Ask a server whether it is serving.

    Parameters
    ----------
    server
        Address of the server, as ``host:port``.
    credentials
        Credentials of a client or monitor; ``None`` for a connection without TLS.

    Raises
    ------
    UnreachableError
        If the server does not answer within three seconds, or is not serving.
    """
    if credentials is None:
        channel = grpc.insecure_channel(server)
    else:
        channel = grpc.secure_channel(server, credentials.for_channel())
    with channel:
        check = channel.unary_unary(
            "/grpc.health.v1.Health/Check",
            request_serializer=health_pb2.HealthCheckRequest.SerializeToString,
            response_deserializer=health_pb2.HealthCheckResponse.FromString,
        )
        try:
            reply = check(health_pb2.HealthCheckRequest(), timeout=_PATIENCE)
        except grpc.RpcError as error:
            call = cast(grpc.Call, error)
            raise UnreachableError(f"{server}: {call.code().name}: {call.details()}") from None
    if reply.status != health_pb2.HealthCheckResponse.SERVING:
        raise UnreachableError(f"{server} does not serve at the moment")


def main(words: Sequence[str]) -> int:
    """Check a server, print the problem if there is one, and return the exit code: 0 if it is serving, otherwise 1."""
    parser = argparse.ArgumentParser(
        "python -m fenchel.deploy.monitoring.health", description="Ask a server whether it serves."
    )
    parser.add_argument("server", metavar="HOST:PORT")
    parser.add_argument("--certs", type=Path, help="folder of a client's certificate; without: no TLS")
    given = parser.parse_args(words)
    try:
        check_serving(given.server, None if given.certs is None else Credentials.load(given.certs))
    except (CredentialError, UnreachableError) as error:
        print(error, file=sys.stderr)  # noqa: T201
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
