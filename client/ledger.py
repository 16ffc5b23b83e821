"""What one client has given away of its privacy in one run, and what is left.

Every payload is charged before it leaves, and once: sent again, the same bytes tell nothing new. The ledger is a file
of lines that only grows. Each line carries a digest of itself and of all before it, so that a line that was changed,
removed from the middle or written by somebody else is found. It is the one file of a client that must not get lost.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from common.errors import CheckpointError, PrivacyBudgetError, StorageError
from common.privacy.accountant import Accountant, Release
from common.store import settle

_KIND = "fenchel privacy ledger"
_VERSION = 1
_FIELDS = {"round", "payload", "noise_multiplier", "sampling_rate"}


class Ledger:
    """One client's privacy ledger for one run.

    Parameters
    ----------
    path
        The file, made with mode 0600 when the first payload is charged, together with its folder; ``None`` keeps the
        ledger in memory (a test, or a client whose every round stands alone).
    owner
        Whose it is, such as run and client: a ledger of somebody else is refused.
    cap
        Largest epsilon of all uploads together; ``None``: no limit.
    delta
        Of that epsilon.
    accountant
        How epsilon is computed.
    at_least
        Uploads that are known to have left, from the client's journal for instance: a ledger with fewer has been
        lowered, by an old copy or a lost file.

    Raises
    ------
    CheckpointError
        The file cannot be read, is damaged or somebody else's, or has fewer uploads than are known.
    StorageError
        A crash has left half a line in it, which cannot be cut off.
    """

    def __init__(
        self,
        path: Path | None,
        owner: str,
        *,
        cap: float | None = None,
        delta: float = 1e-5,
        accountant: Accountant | None = None,
        at_least: int = 0,
    ) -> None:
        self._path = path
        self._owner = owner
        self._cap = cap
        self._delta = delta
        self._accountant = accountant or Accountant()
        self._charged: set[str] = set()
        self._releases: Counter[Release] = Counter()
        self._known: dict[Release, int] = {}
        self._chain = ""
        self._size = 0  # bytes of the file that count
        self._settled = False  # whether the file's name survives the loss of power
        if path is not None and path.exists():
            self._read(path)
        if self.uploads < at_least:
            raise CheckpointError(
                f"{self._place}: holds {self.uploads} uploads, but this client has sent {at_least}. The ledger is an "
                "old copy, or lost; with it this client would give away more than its budget. Put the right file back, "
                "or begin a new run without this client"
            )

    @property
    def uploads(self) -> int:
        """Distinct payloads that were charged."""
        return len(self._charged)

    @property
    def releases(self) -> dict[Release, int]:
        """How often each kind of release was charged."""
        return dict(self._releases)

    def epsilon(self, delta: float | None = None) -> float:
        """Return the epsilon of all uploads so far, at ``delta`` (by default that of the cap)."""
        return self._accountant.epsilon(self._releases, self._delta if delta is None else delta)

    def charge(self, payload_digest: bytes, round: int, release: Release) -> None:
        """Charge a payload that is about to leave; return when that is written.

        Parameters
        ----------
        payload_digest
            Of the bytes that leave; a digest that was charged before costs nothing.
        round
            Number of the round.
        release
            Noise and sampling of the payload.

        Raises
        ------
        PrivacyBudgetError
            The payload would cost more than is left; nothing was charged, and nothing may be sent.
        StorageError
            The file cannot be written; nothing may be sent.
        CheckpointError
            The file was changed by somebody else, or is gone.
        """
        payload = payload_digest.hex()
        if payload in self._charged:
            return
        if self._cap is not None:
            self._check_cap(self._cap, round, release)
        self._append({"round": round, "payload": payload, **asdict(release)})
        self._count(payload, release)

    def _check_cap(self, cap: float, round: int, release: Release) -> None:
        if self._releases.keys() <= {release} and self.uploads < self._affordable(cap, release):
            return
        after = self._accountant.epsilon(self._releases + Counter([release]), self._delta)
        if after > cap:
            raise PrivacyBudgetError(
                f"{self._owner}: the upload of round {round} is not sent. Together with the {self.uploads} before it "
                f"the privacy loss would be epsilon = {after:.4g} (delta = {self._delta:g}), and {cap:.4g} is allowed. "
                "Nothing was given away beyond the budget; a longer run needs more noise, set before it begins"
            )

    def _affordable(self, cap: float, release: Release) -> int:
        """Return how many uploads of one kind the cap allows, up to a power of two that is enough for now."""
        if self._known.get(release, 0) <= self.uploads:
            enough = 1 << self.uploads.bit_length()
            fits = self._accountant.epsilon({release: enough}, self._delta) <= cap
            self._known[release] = enough if fits else 0
        return self._known[release]

    def _count(self, payload: str, release: Release) -> None:
        self._charged.add(payload)
        self._releases[release] += 1

    @property
    def _place(self) -> str:
        return f"{self._owner}: the privacy ledger" if self._path is None else str(self._path)

    def begin(self) -> None:
        """Make the file, without any charge, unless it is there: so a file that is missing later has been lost.

        Raises
        ------
        StorageError
            The file cannot be written.
        """
        if not self._chain:
            self._append(None)

    def _append(self, entry: dict[str, Any] | None) -> None:
        """Write an entry, after the header where there is none yet; ``None``: the header alone."""
        if self._path is None:
            return
        lines = b""
        chain = self._chain
        if not chain:
            header = {"kind": _KIND, "version": _VERSION, "owner": self._owner}
            chain = _chained("", header)
            lines += _line(header, chain)
        if entry is not None:
            chain = _chained(chain, entry)
            lines += _line(entry, chain)
        with _writing(self._path):
            self._write(self._path, lines)
        self._chain = chain
        self._size += len(lines)

    def _write(self, path: Path, lines: bytes) -> None:
        if self._size and not path.exists():
            raise self._changed()
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
        # Unbuffered: closing the file would write once more what did not fit.
        with os.fdopen(descriptor, "wb", buffering=0) as file:
            os.fchmod(descriptor, 0o600)
            if file.seek(0, os.SEEK_END) != self._size:
                raise self._changed()
            try:
                while lines:
                    lines = lines[file.write(lines) :]
                os.fsync(descriptor)
            except OSError:
                os.ftruncate(descriptor, self._size)  # no half line, as on a full disk
                raise
        if not self._settled:  # once in each process: one before may have died too early
            settle(path.parent)
            self._settled = True

    def _changed(self) -> CheckpointError:
        return CheckpointError(
            f"{self._path}: changed while this client was running, so its charges would be lost; nothing is sent. Is a "
            "second client running with the same state folder? Start this one again once the file is in order"
        )

    def _read(self, path: Path) -> None:
        try:
            data = path.read_bytes()
        except OSError as error:
            raise CheckpointError(
                f"{path}: the privacy ledger cannot be read ({error.strerror}), so nothing is sent; make it "
                "readable, or put a copy back that is as new"
            ) from error
        whole, _, rest = data.rpartition(b"\n")
        lines = whole.split(b"\n") if whole else []
        for number, line in enumerate(lines, 1):
            self._take(path, number, line)
        self._size = len(data) - len(rest)
        if rest:
            self._mend(path, len(lines) + 1, rest)

    def _mend(self, path: Path, number: int, rest: bytes) -> None:
        """Count a last line that lacks only its end; cut off one that a crash left incomplete.

        A payload leaves only after its line is complete, so an incomplete line stands for none.
        """
        try:
            json.loads(rest)
        except ValueError:
            with _writing(path), path.open("r+b") as file:
                file.truncate(self._size)
                os.fsync(file.fileno())
            return
        self._take(path, number, rest)
        with _writing(path), path.open("ab") as file:
            file.write(b"\n")
            file.flush()
            os.fsync(file.fileno())
        self._size += len(rest) + 1

    def _take(self, path: Path, number: int, line: bytes) -> None:
        entry = _entry(path, number, line)
        chain = entry.pop("chain", None)
        if number == 1:
            self._check_header(path, entry)
        if chain != _chained(self._chain, entry):
            raise _damaged(path, number, "it does not continue the lines before it, or was edited")
        self._chain = str(chain)
        if number == 1:
            return
        if entry.keys() != _FIELDS:
            raise _damaged(path, number, f"expected {sorted(_FIELDS)}, found {sorted(entry)}")
        try:
            release = Release(entry["noise_multiplier"], entry["sampling_rate"])
        except (TypeError, ValueError) as error:
            raise _damaged(path, number, str(error)) from None
        self._count(str(entry["payload"]), release)

    def _check_header(self, path: Path, header: dict[str, Any]) -> None:
        if header.get("kind") != _KIND:
            raise CheckpointError(
                f"{path}: not a privacy ledger: its first line does not say {_KIND!r}; is --state this client's folder?"
            )
        if header.get("version") != _VERSION:
            raise CheckpointError(
                f"{path}: written in version {header.get('version')!r:.20} of the ledger; this Fenchel reads "
                f"{_VERSION}. Go on with the version of Fenchel that wrote it"
            )
        if header.get("owner") != self._owner:
            raise CheckpointError(
                f"{path}: the privacy ledger of {header.get('owner')!r:.80}, and {self._owner!r} is wanted here; is "
                "--state this client's folder?"
            )


@contextlib.contextmanager
def _writing(path: Path) -> Iterator[None]:
    """Say what it means that a ledger cannot be written, and what to do."""
    try:
        yield
    except OSError as error:
        raise StorageError(
            f"{path}: the privacy ledger cannot be written ({error.strerror}), so nothing is sent and no budget spent; "
            "make room on the disk, or the folder writable, and start this client again"
        ) from error


def _chained(chain: str, entry: dict[str, Any]) -> str:
    return hashlib.sha256(f"{chain}\n{json.dumps(entry, sort_keys=True)}".encode()).hexdigest()


def _line(entry: dict[str, Any], chain: str) -> bytes:
    return json.dumps({**entry, "chain": chain}).encode() + b"\n"


def _entry(path: Path, number: int, line: bytes) -> dict[str, Any]:
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        raise _damaged(path, number, "it is not JSON") from None
    if not isinstance(entry, dict):
        raise _damaged(path, number, "it is not a JSON object")
    return entry


def _damaged(path: Path, number: int, why: str) -> CheckpointError:
    return CheckpointError(
        f"{path}, line {number}: the privacy ledger is damaged: {why}. Nothing is sent, for nobody knows what was "
        "given away; put an undamaged copy back that is as new as this one, or begin a new run without this client"
    )
