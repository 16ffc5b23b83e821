"""Limit on the disk space of a client's journals.

The server names the entries of a journal that it no longer needs (``Instruction.low_water_mark``). A server that names
none could fill the client's disk. The quota prevents this, and only the client's operator can change it.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field
from pathlib import Path

from fenchel.common.errors import StorageError

ENTRIES = 10_000
"""Number of entries, each of the size of the largest so far, that fit into the default quota."""

LEAST_BYTES = 4 << 30
"""Smallest default quota in bytes, unless the disk has too little space for it."""

SPARED = 10
"""Divisor: of the disk space that would be free without journals, the default quota leaves 1/``SPARED`` free."""

_BLOCK = 4096  # file system block size in bytes; files occupy whole blocks


@dataclass
class DiskQuota:
    """Quota of one client for the journals of all runs in this process.

    The journal of an honest run covers the server's last two checkpoints. Between them lie at least
    ``checkpoint.every`` rounds, and at least the rounds that fit into twenty times the duration of a checkpoint. This
    number of entries does not depend on their size, so the default quota is a number of entries, too.

    Attributes
    ----------
    most
        Largest size of the journals of this client, in bytes. The default ``None`` allows :data:`ENTRIES` times the
        largest entry or :data:`LEAST_BYTES`, whichever is more, but leaves a part of the disk free (:data:`SPARED`).
        For a journal in memory the free space of the disk does not matter.
    """

    most: int | None = None
    _taken: dict[Path | None, int] = field(default_factory=dict)  # size in bytes of each journal
    _largest: int = 0

    def open(self, folder: Path | None) -> None:
        """Register a journal, with size 0. The caller then counts its stored entries with :meth:`take`.

        Parameters
        ----------
        folder
            Folder of the journal; ``None`` if it is kept in memory.
        """
        self._taken[folder] = 0

    def admit(self, folder: Path | None, size: int) -> None:
        """Raise ``StorageError`` if another entry of ``size`` bytes exceeds the quota."""
        taken = sum(self._taken.values())
        wanted = taken + _on_disk(size)
        most, why = self._most(folder, taken, max(self._largest, _on_disk(size)))
        if wanted > most:
            raise StorageError(
                f"{'the journal in memory' if folder is None else folder}: the journals of this client need {wanted:,} "
                f"bytes, above their limit of {most:,} ({why}). The last reply was not sent. Make room on this "
                "client's disk or raise --max-journal-bytes, and start this client again; if the error recurs, ask "
                "the server's operator for a smaller checkpoint.every"
            )

    def take(self, folder: Path | None, size: int) -> None:
        """Add the size of a new entry to the disk space in use."""
        self._largest = max(self._largest, _on_disk(size))
        self._taken[folder] += _on_disk(size)

    def give_back(self, folder: Path | None, size: int) -> None:
        """Subtract a removed entry of ``size`` bytes from a journal."""
        self._taken[folder] -= _on_disk(size)

    def _most(self, folder: Path | None, taken: int, largest: int) -> tuple[int, str]:
        """Return the quota in bytes, and its reason for the error message."""
        if self.most is not None:
            return self.most, "--max-journal-bytes"
        most = max(ENTRIES * largest, LEAST_BYTES)
        why = f"{LEAST_BYTES >> 30} GiB, or {ENTRIES:,} times the largest entry if that is more"
        if folder is None:
            return most, why
        free = taken + shutil.disk_usage(folder).free
        spared = free - free // SPARED
        return (most, why) if most <= spared else (spared, "so that a tenth of the free space stays free")


def _on_disk(size: int) -> int:
    """Return the disk space of a file in bytes."""
    return -(-size // _BLOCK) * _BLOCK
