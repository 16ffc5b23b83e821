"""What a client remembers of the instructions that it has handled.

For each instruction: the state after it and the reply to it. So an instruction that comes twice gets the
same reply, and one whose effect the server never counted is undone by going back to its base. With a
folder, both are written there before the reply is sent, one file an instruction, and survive the
process; in memory are then only the last ones. How much all of it may take is for
:mod:`fenchel.client.disk_quota`. A client half without state keeps only its last reply, in memory.
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
_AT_HAND = 2  # the last entry and the one that it builds on, which are those that are wanted as a rule


@dataclass(frozen=True)
class _Entry:
    state: Any
    reply: dict[str, Value]


class Journal:
    """Snapshots and replies of one client in one run.

    Parameters
    ----------
    initial
        The state before the first instruction. It is never changed.
    folder
        Where entries are written; ``None`` keeps them in memory only (no state, or a test).
    quota
        How much it may take.
    """

    def __init__(
        self, initial: Any, folder: Path | None = None, *, sync: bool = False, quota: DiskQuota | None = None
    ) -> None:
        self._initial = initial
        self._folder = folder
        self._sync = sync
        self._quota = quota or DiskQuota()
        self._settled = False  # whether the folder's own name survives the loss of power
        self._sizes: dict[int, int] = {}  # of all entries
        self._at_hand: dict[int, _Entry] = {}  # without a folder, all entries
        self._quota.open(folder)
        for sequence in _written(folder):
            try:
                values = store.read(_path(folder, sequence), "client")
            except CheckpointError as damage:
                # The server decides whether this state is still needed; if not, there is nothing to stop for.
                log.error(
                    "%s; this client cannot go back to its state after instruction %d. If the run needs it, this "
                    "client is lost to the run: put the file back from a copy",
                    damage,
                    sequence,
                )
            else:
                size = _path(folder, sequence).stat().st_size
                self._keep(sequence, _entry(values, type(initial)), size)

    @property
    def snapshots(self) -> list[int]:
        """Instructions after which the state can be restored, besides 0 (the beginning)."""
        return list(self._sizes)

    def state_after(self, base: int) -> Any:
        """Return a fresh copy of the state after instruction ``base`` (0: the beginning)."""
        if base == 0:
            return copy.deepcopy(self._initial)
        if base not in self._sizes:
            raise LostStateError(
                f"this client's state after instruction {base} is gone: its journal, in the folder of --state, holds "
                f"{self.snapshots or 'nothing'}. If the folder was moved or emptied, put it back and start this client "
                "again"
            )
        return copy.deepcopy(self._entry(base).state)

    def reply_to(self, sequence: int) -> dict[str, Value] | None:
        """Return the stored reply to an instruction, or ``None`` if it has not been handled."""
        return self._entry(sequence).reply if sequence in self._sizes else None

    def record(self, sequence: int, state: Any, reply: Values) -> None:
        """Keep the state after an instruction and the reply to it; returns when they are written."""
        # A reply may refer to arrays of the state, which later instructions change in place.
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

    def forget(self, reach: int, base: int, sequence: int) -> None:
        """Drop the entries of instructions before ``reach``, and of those between ``sequence`` and its base.

        No checkpoint can lead back to the former. None of the latter counted when ``sequence`` was sent, or it would
        be the base; and none can count any more, since no question is sent while another is open. All that
        checkpoints lead back to lies at the base or before it.
        """
        for each in [each for each in self._sizes if each < reach or base < each < sequence]:
            if self._folder is not None:
                with store.writing(path := _path(self._folder, each), "client"):
                    path.unlink(missing_ok=True)
            size = self._sizes.pop(each)
            self._at_hand.pop(each, None)
            self._quota.give_back(self._folder, size)

    def _keep(self, sequence: int, entry: _Entry, size: int) -> None:
        """Remember an entry that is where it belongs."""
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
    """Return the instructions whose entries a journal's folder holds, in order."""
    if folder is None:
        return []
    try:
        return sorted(int(path.name.removesuffix(_SUFFIX)) for path in folder.glob(f"*{_SUFFIX}"))
    except ValueError as error:
        raise CheckpointError(f"holds a file that no journal wrote ({error}); remove it", source=folder) from None


def _path(folder: Path | None, sequence: int) -> Path:
    assert folder is not None
    return folder / f"{sequence:020d}{_SUFFIX}"


def _entry(values: Values, kind: type[Any]) -> _Entry:
    reply = {name.removeprefix(_REPLY): value for name, value in values.items() if name.startswith(_REPLY)}
    state = {name: value for name, value in values.items() if not name.startswith(_REPLY)}
    return _Entry(thaw(kind, state), reply)
