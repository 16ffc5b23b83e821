"""Files that a report is written to, where the person who asks for it wants them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fenchel.common.errors import SettingsError


@contextmanager
def output_at(path: Path) -> Iterator[None]:
    """Make the folders above a file; in the ``with`` block it is written, and what it reports is put in words."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        raise SettingsError(
            f"the file cannot be written there ({error.strerror or error}); make room on the disk, or choose "
            "another path",
            source=path,
        ) from None
