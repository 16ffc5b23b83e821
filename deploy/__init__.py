"""Bringing a federation up: command line, launchers, credentials, containers."""

from deploy import engine

engine.choose()  # nothing before this imports gRPC
