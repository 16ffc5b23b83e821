"""Versions of the software and of the protocol."""

from __future__ import annotations

from functools import cache
from importlib import metadata

PROTOCOL = 2
"""Version of the protocol in ``fenchel.proto``, raised when an older peer could misunderstand a message."""


@cache
def version() -> str:
    """Return the version of this installation."""
    return metadata.version("fenchel")


def software() -> str:
    """Return name and version of this installation."""
    return f"fenchel {version()}"


SAME_VERSION = "; do both sides run the same version of Fenchel?"
"""Last clause of errors whose likeliest cause is a difference of versions."""
