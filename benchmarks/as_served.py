"""Sets this process up as ``fenchel up`` does; to be imported before anything that imports gRPC."""

from __future__ import annotations

from deploy import engine

engine.choose()
