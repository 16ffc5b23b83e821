"""Ledgers of the privacy loss of a client, in one run and over all runs.

Every payload is charged once, before it is sent. Sent again, the same bytes cost nothing. The ledger of a run enforces
the run's budget. A client with a policy has another ledger, which enforces the policy's budget over all runs. Every
charge is written to the run's ledger first, with the length of the policy's ledger, so that an old copy of either is
detected. Ledgers are the files of a client that must not be lost.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fenchel.client.count_file import counted, write_count
from fenchel.client.privacy.budget import Budget
from fenchel.client.privacy.ledger_file import LedgerFile, writing_ledger
from fenchel.common.accounting.accountant import Release
from fenchel.common.errors import CheckpointError

LEDGER = "privacy.ledger"
"""Name of a run's ledger, in the client's folder of the run."""

COUNT = "privacy.count"
"""Name of the file with the number of uploads in a run's ledger."""

POLICY_LEDGER = "_policy.ledger"
"""Default name of a policy's ledger, beside the folders of runs, whose ids cannot begin like this."""

_KIND = "fenchel privacy ledger"
_POLICY_KIND = "fenchel policy ledger"
_VERSION = 2
_FIELDS = {"round", "payload", "noise_multiplier", "sampling_rate"}
_POLICY_FIELDS = _FIELDS | {"run", "client", "data"}


class Ledger:
    """Privacy ledger of one client in one run.

    Parameters
    ----------
    path
        File of the ledger. :meth:`begin` or the first charge creates it with mode 0600, together with its folder.
        ``None`` keeps the ledger in memory.
    owner
        Client id. The ledger of another client is rejected.
    budget
        Budget of the run, without uploads; ``None`` for no limit.
    policy
        Ledger over all runs, to which every charge is added as well. A file with fewer uploads of the run is rejected
        as lost or outdated.
    count
        File with the number of uploads, as a check when the ledger is opened again. It is not synced to disk, as a
        number that is too small is harmless.
    """

    def __init__(
        self,
        path: Path | None,
        owner: str,
        *,
        budget: Budget | None = None,
        policy: PolicyLedger | None = None,
        count: Path | None = None,
    ) -> None:
        self._owner = owner
        self._counter = count
        self._budget = budget or Budget()
        self._policy = policy
        self.charges: dict[str, tuple[Any, Release]] = {}  # round and release of each payload, by its digest
        self._marks: dict[str, int] = {}  # length of each policy's ledger, by its path
        header = {"kind": _KIND, "version": _VERSION, "owner": owner}
        self._file = LedgerFile(path, header, (1, _VERSION), self._take)
        at_least = max(counted(count), 0 if path is None or policy is None else policy.uploads_of_this_run)
        if self.uploads < at_least:
            raise _lowered(owner if path is None else str(path), self.uploads, at_least)

    @property
    def uploads(self) -> int:
        """Number of distinct payloads charged."""
        return self._budget.uploads

    @property
    def releases(self) -> dict[Release, int]:
        """Number of charges by kind of release."""
        return dict(self._budget.releases)

    def mark(self, policy: Path) -> int:
        """Return the least length of a policy's ledger, in charges, by the entries read from this ledger's file."""
        return self._marks.get(str(policy), 0)

    def charge(self, payload_digest: bytes, round: int, release: Release) -> None:
        """Charge a payload, and return once the charge is on disk, so that the payload can be sent.

        Parameters
        ----------
        payload_digest
            Digest of the payload. A digest that was charged before costs nothing.
        round
            Round of the upload.
        release
            Noise multiplier and sampling rate of the upload.

        Raises
        ------
        BudgetSpentError
            If the payload exceeds the budget of the run or of the policy.
        StorageError, CheckpointError
            If a ledger cannot be written, or another process has changed it.
        """
        payload = payload_digest.hex()
        if payload in self.charges and (self._policy is None or payload in self._policy):
            return
        if payload not in self.charges:
            self._budget.check(f"{self._owner}: the upload of round {round}", release)
        entry = {"round": round, "payload": payload, **asdict(release)}
        if self._policy is None:
            self._add(entry, release)
        else:
            with self._policy.charging(entry, release) as mark:
                if payload not in self.charges:
                    self._add(entry | mark, release)
        if self._counter is not None:
            with writing_ledger(self._counter):
                write_count(self._counter, self.uploads)

    def begin(self) -> None:
        """Create an empty ledger if there is none. A ledger that is missing later is then known to be lost."""
        self._file.begin()

    def _add(self, entry: dict[str, Any], release: Release) -> None:
        self._file.append(entry)
        self._count(entry, release)

    def _take(self, entry: dict[str, Any]) -> None:
        mark = entry.pop("policy", None)
        release = _release(entry, _FIELDS)
        if mark is not None:
            path, entries = mark
            if not isinstance(path, str) or not isinstance(entries, int):
                raise TypeError(f"expected a policy's ledger and its length, found {mark!r:.80}")
            self._marks[path] = max(self._marks.get(path, 0), entries)
        self._count(entry, release)

    def _count(self, entry: Mapping[str, Any], release: Release) -> None:
        payload = str(entry["payload"])
        if payload not in self.charges:
            self._budget.releases[release] += 1
        self.charges[payload] = (entry["round"], release)


@dataclass(frozen=True)
class Account:
    """Privacy account of a client's data over all runs.

    Attributes
    ----------
    client
        Client id.
    run
        Id of the present run.
    data
        Identifier of the raw data, before any preparation: the digest of the client's own file, or the client id and
        the name of the data set.
    path
        File of the policy's ledger; ``None`` if neither the policy names a file nor the client has a state folder.
    state
        Folder of the client's runs, whose ledgers are included; ``None`` if the runs' ledgers are in memory.
    """

    client: str
    run: str
    data: str
    path: Path | None
    state: Path | None

    def opened(self, cap: float | None, delta: float) -> PolicyLedger | None:
        """Open the policy's ledger, if it has a file, and add charges that only the ledgers of runs contain."""
        if self.path is None:
            return None
        runs = {run.name: Ledger(run / self.client / LEDGER, self.client) for run in self._runs()}
        at_least = max((ledger.mark(self.path) for ledger in runs.values()), default=0)
        opened = PolicyLedger(self, self.path, cap=cap, delta=delta, at_least=at_least)
        for run, ledger in runs.items():
            opened.add_missing(run, ledger.charges)
        return opened

    def _runs(self) -> list[Path]:
        if self.state is None or not self.state.is_dir():
            return []
        return sorted(run for run in self.state.iterdir() if (run / self.client / LEDGER).exists())


class PolicyLedger:
    """Ledger that enforces the budget of a client's policy over all runs.

    Charges count if they are of the same client, whatever its data were, or of the same data, whatever the client's id
    was. A data file with one more sample thus does not have a new budget. Several clients and processes may share
    the file.

    Parameters
    ----------
    account
        Account that the ledger belongs to.
    path
        File of the ledger, which is created when it is first locked.
    cap, delta
        Largest epsilon of all uploads together, or ``None`` for no limit, and its delta.
    at_least
        Number of charges that the ledgers of runs prove. A ledger with fewer is rejected as lost or outdated.
    """

    def __init__(self, account: Account, path: Path, *, cap: float | None, delta: float, at_least: int = 0) -> None:
        self._account = account
        self._path = path
        # A fixed accountant, because the server chooses the accountant of a run.
        self._budget = Budget(cap, delta, scope=" in all runs of its policy")
        self._payloads: set[str] = set()
        self._of_runs: Counter[str] = Counter()
        header = {"kind": _POLICY_KIND, "version": _VERSION}
        self._file = LedgerFile(path, header, (_VERSION,), self._take, shared=True)
        if self._file.entries < at_least:
            raise _lowered(str(path), self._file.entries, at_least)

    @property
    def uploads(self) -> int:
        """Number of uploads of all runs that count against the policy."""
        return self._budget.uploads

    @property
    def uploads_of_this_run(self) -> int:
        """Number of uploads of the client in the present run."""
        return self._of_runs[self._account.run]

    def __contains__(self, payload: str) -> bool:
        return payload in self._payloads

    def check(self, release: Release) -> None:
        """Raise ``BudgetSpentError`` if another upload exceeds the policy's budget."""
        self._budget.check(f"{self._account.client}: an upload of run {self._account.run}", release)

    @contextlib.contextmanager
    def charging(self, entry: dict[str, Any], release: Release) -> Iterator[dict[str, Any]]:
        """Check the budget, and charge an upload when the ``with`` block ends. The block must write the run's ledger.

        Yields
        ------
        dict[str, Any]
            Fields for the entry of the run's ledger: path and length of this ledger.
        """
        with self._file.held():
            if entry["payload"] not in self:
                what = f"{self._account.client}: the upload of round {entry['round']} of run {self._account.run}"
                self._budget.check(what, release)
            yield {"policy": [str(self._path), self._file.entries]}
            self._add(self._account.run, entry)

    def add_missing(self, run: str, charges: Mapping[str, tuple[Any, Release]]) -> None:
        """Add charges that only a run's ledger has, made by an older version or just before a crash."""
        with self._file.held():
            for payload, (round, release) in charges.items():
                self._add(run, {"round": round, "payload": payload, **asdict(release)})

    def _add(self, run: str, entry: Mapping[str, Any]) -> None:
        if entry["payload"] in self:
            return
        account = self._account
        whole = {"run": run, "client": account.client, "data": account.data, **entry}
        self._file.append(whole)
        self._take(whole)

    def _take(self, entry: Mapping[str, Any]) -> None:
        release = _release(entry, _POLICY_FIELDS)
        account, payload = self._account, str(entry["payload"])
        if payload in self._payloads or (entry["client"] != account.client and entry["data"] != account.data):
            return
        self._payloads.add(payload)
        self._budget.releases[release] += 1
        if entry["client"] == account.client:
            self._of_runs[str(entry["run"])] += 1


def _release(entry: Mapping[str, Any], fields: set[str]) -> Release:
    """Return the release of an entry; raise ``ValueError`` if the entry has other fields than ``fields``."""
    if entry.keys() != fields:
        raise ValueError(f"expected {sorted(fields)}, found {sorted(entry)}")
    return Release(entry["noise_multiplier"], entry["sampling_rate"])


def _lowered(place: str, found: int, known: int) -> CheckpointError:
    return CheckpointError(
        f"the privacy ledger has {found} uploads, but this client has sent {known}, so the ledger is an old copy or "
        "lost. Nothing is sent, because the budget could be exceeded. Restore the latest copy of the file, or begin "
        "a new run without this client",
        source=place,
    )
