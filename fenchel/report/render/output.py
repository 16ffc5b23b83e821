"""Creation of a report's output files at paths given by the user."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fenchel.common.errors import SettingsError


@contextmanager
def output_at(path: Path) -> Iterator[None]:
    """Create missing parent folders of a file, and convert ``OSError`` in the ``with`` block to ``SettingsError``."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        raise SettingsError(
            f"the file cannot be written there ({error.strerror or error}); make room on the disk, or choose "
            "another path",
            source=path,
        ) from None
