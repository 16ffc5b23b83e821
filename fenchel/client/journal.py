"""Journal of the instructions that a client has handled.

An entry has the state after an instruction and the reply to it. An instruction that arrives twice therefore gets the
same reply. Each instruction names its *base*, the latest earlier instruction whose effect counts. Restoring
the state after the base undoes all instructions since. With a folder, each entry is written to a file of its own before
the reply is sent, and only the latest entries stay in memory. :mod:`fenchel.client.disk_quota` limits the size of a
journal. A client half without state keeps only its last reply, in memory.
"""

from __future__ import annotations

import copy
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fenchel.client.disk_quota import DiskQuota
from fenchel.common.errors import CheckpointError, LostStateError
from fenchel.common.storage import store
from fenchel.common.storage.state import freeze, thaw
from fenchel.common.wire.values import Value, Values

log = logging.getLogger("fenchel.client")

_SUFFIX = ".state"
_REPLY = "reply/"
_AT_HAND = 2  # number of entries in memory: the last entry and its base, the usual bases of requests


@dataclass(frozen=True)
class _Entry:
    state: Any
    reply: dict[str, Value]


class Journal:
    """Snapshots and replies of one client in one run.

    Parameters
    ----------
    initial
        State before the first instruction. It is never changed.
    folder
        Folder of the entries; ``None`` keeps them in memory only.
    sync
        True if entries must survive a power loss.
    quota
        Limit on the size of the client's journals.
    """

    def __init__(
        self, initial: Any, folder: Path | None = None, *, sync: bool = False, quota: DiskQuota | None = None
    ) -> None:
        self._initial = initial
        self._folder = folder
        self._sync = sync
        self._quota = quota or DiskQuota()
        self._settled = False  # True once the folder's entry in its parent folder is synced to disk
        self._sizes: dict[int, int] = {}  # size in bytes of each entry, by sequence number
        # entries in memory; a journal without a folder has all of its entries here
        self._at_hand: dict[int, _Entry] = {}
        self._quota.open(folder)
        for sequence in _written(folder):
            try:
                values = store.read(_path(folder, sequence), "client")
            except CheckpointError as damage:
                # Only log a damaged entry: the server may no longer need it.
                log.error(
                    "%s. Without this entry the client cannot return to its state after instruction %d, and is lost "
                    "to the run if the server asks for that state",
                    damage,
                    sequence,
                )
            else:
                size = _path(folder, sequence).stat().st_size
                self._keep(sequence, _entry(values, type(initial)), size)

    @property
    def snapshots(self) -> list[int]:
        """Sequence numbers of the instructions after which the state can be restored; 0 (initial state) is omitted."""
        return list(self._sizes)

    def state_after(self, base: int) -> Any:
        """Return a new copy of the state after instruction ``base``, or of the initial state if ``base`` is 0.

        Raise ``LostStateError`` if the journal has no entry of the instruction.
        """
        if base == 0:
            return copy.deepcopy(self._initial)
        if base not in self._sizes:
            raise LostStateError(
                f"the state of this client after instruction {base} is missing: its journal, below --state, has "
                f"{self.snapshots or 'no entries'}. If the folder was moved or emptied, restore it, and start this "
                "client again"
            )
        return copy.deepcopy(self._entry(base).state)

    def reply_to(self, sequence: int) -> dict[str, Value] | None:
        """Return the stored reply to an instruction, or ``None`` if the journal has no entry of the instruction."""
        return self._entry(sequence).reply if sequence in self._sizes else None

    def record(self, sequence: int, state: Any, reply: Values) -> None:
        """Store the state after an instruction and the reply to it, and return once they are written.

        Raise ``StorageError`` if they cannot be written or exceed the quota.
        """
        # Copy the reply, as it may share arrays with the state, which later instructions change in place.
        entry = _Entry(copy.deepcopy(state), copy.deepcopy(dict(reply)))
        values = freeze(entry.state) | {_REPLY + name: value for name, value in reply.items()}
        content = store.Content.of(values)
        if self._folder is not None:
            with store.writing(self._folder, "client"):
                store.make_private_folder(self._folder)
                if self._sync and not self._settled:
                    store.settle(self._folder)
                    self._settled = True
                self._quota.admit(self._folder, content.size)
            store.write_content(_path(self._folder, sequence), content, sync=self._sync, owner="client")
        else:
            self._quota.admit(None, content.size)
        self._keep(sequence, entry, content.size)

    def forget(self, low_water_mark: int, base: int, sequence: int) -> None:
        """Drop the entries of instructions before ``low_water_mark``, and of those between ``base`` and ``sequence``.

        No checkpoint refers to the former. The latter did not count when ``sequence`` was sent, or one of them would be
        its base. They cannot count later, as no request is sent while another is open. Checkpoints refer to the base
        or to earlier instructions.
        """
        for each in [each for each in self._sizes if each < low_water_mark or base < each < sequence]:
            if self._folder is not None:
                with store.writing(path := _path(self._folder, each), "client"):
                    path.unlink(missing_ok=True)
            size = self._sizes.pop(each)
            self._at_hand.pop(each, None)
            self._quota.give_back(self._folder, size)

    def _keep(self, sequence: int, entry: _Entry, size: int) -> None:
        """Count a stored entry towards the quota, and keep it in memory in place of older entries."""
        self._sizes[sequence] = size
        self._at_hand[sequence] = entry
        self._quota.take(self._folder, size)
        if self._folder is not None and len(self._at_hand) > _AT_HAND:
            del self._at_hand[next(iter(self._at_hand))]

    def _entry(self, sequence: int) -> _Entry:
        if sequence in self._at_hand:
            return self._at_hand[sequence]
        return _entry(store.read(_path(self._folder, sequence), "client"), type(self._initial))


def _written(folder: Path | None) -> list[int]:
    """Return the sequence numbers of the entries in a folder, in ascending order."""
    if folder is None:
        return []
    try:
        return sorted(int(path.name.removesuffix(_SUFFIX)) for path in folder.glob(f"*{_SUFFIX}"))
    except ValueError as error:
        raise CheckpointError(
            f"the journal has a file that Fenchel did not write ({error}); remove it", source=folder
        ) from None


def _path(folder: Path | None, sequence: int) -> Path:
    assert folder is not None
    return folder / f"{sequence:020d}{_SUFFIX}"


def _entry(values: Values, kind: type[Any]) -> _Entry:
    reply = {name.removeprefix(_REPLY): value for name, value in values.items() if name.startswith(_REPLY)}
    state = {name: value for name, value in values.items() if not name.startswith(_REPLY)}
    return _Entry(thaw(kind, state), reply)
