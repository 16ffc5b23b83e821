"""Refuse to build a package without its parts; everything else is in pyproject.toml."""

from pathlib import Path

from setuptools import setup

PARTS = ("algorithms", "client", "common", "deploy", "experiments", "proto", "report", "server")

missing = [part for part in PARTS if not (Path(__file__).parent / "fenchel" / part).is_dir()]
if missing:
    raise SystemExit(
        f"error: fenchel/{missing[0]} is no folder: this copy of the repository was made without symbolic links, so "
        "the package would be incomplete. Take the .tar.gz instead of the .zip, or clone with "
        "git -c core.symlinks=true clone (on Windows with developer mode switched on)."
    )
setup()
