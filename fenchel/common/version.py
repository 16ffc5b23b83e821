"""Versions: of the software, for people, and of the wire contract, for machines."""

from __future__ import annotations

from importlib import metadata

PROTOCOL = 2
"""Version of ``fenchel.proto``; raised when an older peer could misunderstand."""


def software() -> str:
    """Return name and version of this installation."""
    return f"fenchel {metadata.version('fenchel')}"


SAME_VERSION = "; do both sides run the same version of Fenchel?"
"""Ends the text of an error for which two versions are the likeliest cause."""
