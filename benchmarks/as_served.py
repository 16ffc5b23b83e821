"""Sets this process up as ``fenchel up`` does; to be imported before anything that imports gRPC."""

from __future__ import annotations

from fenchel.deploy.launch import grpc_engine

grpc_engine.choose()
