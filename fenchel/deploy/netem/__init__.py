"""Emulated links between clients and server."""
