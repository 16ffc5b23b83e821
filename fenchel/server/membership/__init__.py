"""Clients that join a run, at its start or late."""
