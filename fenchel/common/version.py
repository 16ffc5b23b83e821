"""Versions of the software and of the protocol."""

from __future__ import annotations

from importlib import metadata

PROTOCOL = 2
"""Version of the protocol in ``fenchel.proto``, raised when an older peer could misunderstand a message."""


def software() -> str:
    """Return name and version of this installation."""
    return f"fenchel {metadata.version('fenchel')}"


SAME_VERSION = "; do both sides run the same version of Fenchel?"
"""Last clause of errors whose likeliest cause is a difference of versions."""
