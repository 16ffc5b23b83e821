"""Append-only file of a privacy ledger, whose lines form a hash chain.

The chain detects lines that were changed, removed from the middle or written by another program. A line is on disk
before the payload that it charges is sent. A shared file is locked while a process reads its end and appends to it.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from fenchel.common.errors import CheckpointError, StorageError
from fenchel.common.storage.store import make_private_folder, settle


class LedgerFile:
    """File of entries that form a hash chain.

    Parameters
    ----------
    path
        Path of the file, which is created with mode 0600, together with its folder (0700), when it is first written or
        locked. ``None`` stores nothing.
    header
        First line: ``kind``, ``version`` and, unless several clients share the file, its ``owner``.
    versions
        Versions that can be read.
    take
        Callback for each entry that is read, which raises ``ValueError`` or ``TypeError`` for invalid ones.
    shared
        True if several processes use the file.
    """

    def __init__(
        self,
        path: Path | None,
        header: Mapping[str, Any],
        versions: tuple[int, ...],
        take: Callable[[dict[str, Any]], None],
        *,
        shared: bool = False,
    ) -> None:
        self.path = path
        self._header = dict(header)
        self._versions = versions
        self._receive = take
        self._shared = shared
        self._chain = ""
        self._lines = 0
        self._size = 0  # size in bytes of the complete lines
        self._settled = False  # True once the file's entry in its folder is synced to disk
        if path is not None and path.exists():
            with self.held():
                if not shared:
                    self._read(path)

    @property
    def entries(self) -> int:
        """Number of entries, without the header."""
        return max(self._lines - 1, 0)

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Lock a shared file for the duration of a block, and read the entries that other processes have added."""
        if self.path is None or not self._shared:
            yield
            return
        self._check_present(self.path)
        with contextlib.ExitStack() as stack:
            with writing_ledger(self.path):
                make_private_folder(self.path.parent)
                descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600)
                stack.callback(os.close, descriptor)  # closing the descriptor also releases the lock
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            self._read(self.path)
            yield

    def begin(self) -> None:
        """Create the file if there is none. A file that is missing later is then known to be lost."""
        if not self._chain:
            self.append(None)

    def append(self, entry: dict[str, Any] | None) -> None:
        """Append an entry, if any, and return once it is on disk. A new file begins with the header."""
        if self.path is None:
            return
        lines = b""
        chain = self._chain
        if not chain:
            chain = _chained("", self._header)
            lines += _line(self._header, chain)
        if entry is not None:
            chain = _chained(chain, entry)
            lines += _line(entry, chain)
        with writing_ledger(self.path):
            self._write(self.path, lines)
        self._chain = chain
        self._size += len(lines)
        self._lines += lines.count(b"\n")

    def _write(self, path: Path, lines: bytes) -> None:
        self._check_present(path)
        make_private_folder(path.parent)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
        # Closing a buffered file after a failed write would write the remaining bytes again.
        with os.fdopen(descriptor, "wb", buffering=0) as file:
            os.fchmod(descriptor, 0o600)
            if file.seek(0, os.SEEK_END) != self._size:
                raise self._changed()
            try:
                while lines:
                    lines = lines[file.write(lines) :]
                os.fsync(descriptor)
            except OSError:
                os.ftruncate(descriptor, self._size)  # remove a partial line, for example on a full disk
                raise
        if not self._settled:  # sync once in each process: an earlier process may have ended before its sync
            settle(path.parent)
            self._settled = True

    def _check_present(self, path: Path) -> None:
        if self._size and not path.exists():
            raise self._changed()

    def _changed(self) -> CheckpointError:
        return CheckpointError(
            "the privacy ledger was changed by another process while this client was running, so this client "
            "sends nothing more. Check that no second client uses the same state folder, and start this client "
            "again",
            source=self.path or "",
        )

    def _read(self, path: Path) -> None:
        """Read and check the lines after those already read, and repair an incomplete last line."""
        try:
            with path.open("rb") as file:
                if file.seek(0, os.SEEK_END) < self._size:
                    raise self._changed()
                file.seek(self._size)
                data = file.read()
        except OSError as error:
            raise CheckpointError(
                f"the privacy ledger cannot be read ({error.strerror}), so nothing is sent; make the file "
                "readable, or restore a copy that is as recent",
                source=path,
            ) from error
        whole, _, rest = data.rpartition(b"\n")
        for line in whole.split(b"\n") if whole else []:
            self._take(path, line)
        self._size += len(data) - len(rest)
        if rest:
            self._mend(path, rest)

    def _mend(self, path: Path, rest: bytes) -> None:
        """Complete a last line that lacks only its newline, or remove a last line that a crash left incomplete.

        A payload is sent only after its line is complete, so an incomplete line charges none.
        """
        try:
            json.loads(rest)
        except ValueError:
            with writing_ledger(path), path.open("r+b") as file:
                file.truncate(self._size)
                os.fsync(file.fileno())
            return
        self._take(path, rest)
        with writing_ledger(path), path.open("ab") as file:
            file.write(b"\n")
            file.flush()
            os.fsync(file.fileno())
        self._size += len(rest) + 1

    def _take(self, path: Path, line: bytes) -> None:
        number = self._lines + 1
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError):
            raise _damaged(path, number, "it is not JSON") from None
        if not isinstance(entry, dict):
            raise _damaged(path, number, "it is not a JSON object")
        chain = entry.pop("chain", None)
        if number == 1:
            self._check_header(path, entry)
        if chain != _chained(self._chain, entry):
            raise _damaged(path, number, "it does not continue the lines before it, or was edited")
        if number > 1:
            try:
                self._receive(entry)
            except (TypeError, ValueError) as error:
                raise _damaged(path, number, str(error)) from None
        self._chain = str(chain)
        self._lines = number

    def _check_header(self, path: Path, header: dict[str, Any]) -> None:
        kind, owner = self._header["kind"], self._header.get("owner")
        if header.get("kind") != kind:
            raise CheckpointError(
                f"not a privacy ledger, because its first line has no {kind!r}; check that --state is the folder "
                "of this client",
                source=path,
            )
        if header.get("version") not in self._versions:
            raise CheckpointError(
                f"the privacy ledger has format version {header.get('version')!r:.20}, but this version of Fenchel "
                f"reads {self._versions[-1]}; continue with the version of Fenchel that wrote it",
                source=path,
            )
        if header.get("owner") != owner:
            raise CheckpointError(
                f"the privacy ledger belongs to {header.get('owner')!r:.80}, not to {owner!r}; check that --state "
                "is the folder of this client",
                source=path,
            )


@contextlib.contextmanager
def writing_ledger(path: Path) -> Iterator[None]:
    """Convert errors of writing a ledger into a :class:`StorageError` with advice."""
    try:
        yield
    except OSError as error:
        raise StorageError(
            f"the privacy ledger cannot be written ({error.strerror}), so nothing is sent and no budget spent. "
            "Make room on the disk or make the folder writable, and start this client again",
            source=path,
        ) from error


def _chained(chain: str, entry: Mapping[str, Any]) -> str:
    return hashlib.sha256(f"{chain}\n{json.dumps(entry, sort_keys=True)}".encode()).hexdigest()


def _line(entry: Mapping[str, Any], chain: str) -> bytes:
    return json.dumps({**entry, "chain": chain}).encode() + b"\n"


def _damaged(path: Path, number: int, why: str) -> CheckpointError:
    return CheckpointError(
        f"the privacy ledger is damaged: {why}. Nothing is sent, because the privacy loss so far is unknown. "
        "Restore an undamaged copy that is as recent, or begin a new run without this client",
        source=path,
        row=number,
    )
