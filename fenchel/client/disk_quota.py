"""How much a client gives to its journals, whatever the server has it keep.

The server says which entries of a journal it needs no longer (``Instruction.reach``). One that never does
would have a client write until its disk is full. So a journal has a limit, which is this client's own choice.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field
from pathlib import Path

from fenchel.common.errors import StorageError

ENTRIES = 10_000
"""For how many entries, each as large as the largest yet, there is room if nobody said how much there is."""

LEAST_BYTES = 4 << 30
"""How much room there is at least, then."""

SPARED = 10
"""Of the space that is free on the disk without journals, one part in so many stays free, then."""

_BLOCK = 4096  # a file takes whole blocks of the disk


@dataclass
class DiskQuota:
    """What the journals of one client may take, of all runs that this process takes part in.

    The journal of an honest run reaches over the server's last two checkpoints. Between them lie
    ``checkpoint.every`` rounds, and as many as are done in twenty times the time that a checkpoint takes. How many
    entries that is does not depend on their size; how many bytes, does. So does the limit that nobody chose.

    Attributes
    ----------
    most
        Bytes, for this client alone: others on the same disk have as much. ``None``: :data:`ENTRIES` times the largest
        entry or :data:`LEAST_BYTES`, whichever is more, but not the last of the space on the disk (:data:`SPARED`). In
        memory only the number of entries bounds it: who keeps a journal there takes part for as long as a process
        lives.
    """

    most: int | None = None
    _taken: dict[Path | None, int] = field(default_factory=dict)  # by each journal
    _largest: int = 0

    def open(self, folder: Path | None) -> None:
        """Begin to count what is in a journal.

        Parameters
        ----------
        folder
            Of the journal; ``None``: it is in memory only.
        """
        self._taken[folder] = 0

    def admit(self, folder: Path | None, size: int) -> None:
        """Raise unless there is room for one more entry.

        Parameters
        ----------
        size
            Bytes of the entry.
        """
        taken = sum(self._taken.values())
        wanted = taken + _on_disk(size)
        most, why = self._most(folder, taken, max(self._largest, _on_disk(size)))
        if wanted > most:
            raise StorageError(
                f"{'the journal in memory' if folder is None else folder}: journals of this client would take "
                f"{wanted:,} bytes with one more entry, and they may take {most:,} ({why}). The entry was not written "
                "and its reply not sent, so nothing that counted is lost. If something else fills this disk, make room "
                "and start this client again. Otherwise the server has journals grow: it says from which instruction "
                "on it needs them, and that is long ago. It may have a large checkpoint.every or a disk that is slow; "
                "or it means to fill this one. Ask who runs it; if all is well there, start this client again with a "
                "larger --max-journal-bytes"
            )

    def take(self, folder: Path | None, size: int) -> None:
        """Count an entry that is there."""
        self._largest = max(self._largest, _on_disk(size))
        self._taken[folder] += _on_disk(size)

    def give_back(self, folder: Path | None, size: int) -> None:
        """Count an entry no longer: it is gone."""
        self._taken[folder] -= _on_disk(size)

    def _most(self, folder: Path | None, taken: int, largest: int) -> tuple[int, str]:
        """Return how many bytes journals may take, and why."""
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
    """Return how many bytes of a disk a file takes."""
    return -(-size // _BLOCK) * _BLOCK
