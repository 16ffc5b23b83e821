"""Bringing a federation up: command line, launchers, credentials, containers."""
