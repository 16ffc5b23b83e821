"""What one client has given away of its privacy: in one run, and in all runs together.

Every payload is charged before it leaves, and once: sent again, the same bytes tell nothing new. Each run has
a ledger, which stops the client at the run's budget. A client with a policy has one more, for all its runs,
which stops it at the policy's largest epsilon. The two bound each other: every charge is in the run's ledger
first, and says there how long the policy's was, so an old copy of either is found. Ledgers are the files of a
client that must not get lost.
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
from fenchel.common.accounting.accountant import Accountant, Release
from fenchel.common.errors import CheckpointError

LEDGER = "privacy.ledger"
"""The ledger of a run, in the client's folder of that run."""

COUNT = "privacy.count"
"""Number of uploads in that ledger, in a file beside it."""

POLICY_LEDGER = "_policy.ledger"
"""The ledger of a policy that names none, beside the folders of the runs; no id of a run begins so."""

_KIND = "fenchel privacy ledger"
_POLICY_KIND = "fenchel policy ledger"
_VERSION = 2
_FIELDS = {"round", "payload", "noise_multiplier", "sampling_rate"}
_POLICY_FIELDS = _FIELDS | {"run", "client", "data"}


class Ledger:
    """One client's privacy ledger for one run.

    Parameters
    ----------
    path
        The file, made with mode 0600 when the first payload is charged, together with its folder; ``None`` keeps the
        ledger in memory (a test, or a client whose every round stands alone).
    owner
        Whose it is: a ledger of another client is refused.
    cap
        Largest epsilon of all uploads together; ``None``: no limit.
    at_least
        Uploads that are known to have left, from the policy's ledger: a ledger with fewer has been lowered, by an old
        copy or a lost file.
    policy
        The ledger of all runs, to which every charge is added, too; ``None``: there is none.
    count
        A file that says how many uploads this ledger has, for when it is opened again; ``None``: there is none. The
        disk need not confirm it, as it can only say too few.
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
        policy: PolicyLedger | None = None,
        count: Path | None = None,
    ) -> None:
        self._owner = owner
        self._counter = count
        self._budget = Budget(cap, delta, accountant or Accountant())
        self._policy = policy
        self.charges: dict[str, tuple[Any, Release]] = {}  # round and release, by payload
        self._marks: dict[str, int] = {}  # how long policies' ledgers were, by their paths
        header = {"kind": _KIND, "version": _VERSION, "owner": owner}
        self._file = LedgerFile(path, header, (1, _VERSION), self._take)
        at_least = max(at_least, counted(count))
        if self.uploads < at_least:
            raise _lowered(owner if path is None else str(path), self.uploads, at_least)

    @property
    def uploads(self) -> int:
        """Distinct payloads that were charged."""
        return self._budget.uploads

    @property
    def releases(self) -> dict[Release, int]:
        """How often each kind of release was charged."""
        return dict(self._budget.releases)

    def mark(self, policy: Path) -> int:
        """Return how many charges a policy's ledger had at least, when this ledger was written last."""
        return self._marks.get(str(policy), 0)

    def charge(self, payload_digest: bytes, round: int, release: Release) -> None:
        """Charge a payload that is about to leave; return when that is written.

        Parameters
        ----------
        payload_digest
            Of the bytes that leave; a digest that was charged before costs nothing.
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
        """Make the file, without any charge, unless it is there: so a file that is missing later has been lost."""
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
    """Where all that a client gives away is counted, over all its runs.

    Attributes
    ----------
    client
        The client's id.
    run
        In which it takes part now.
    data
        Stands for the client's data, as they are before the server's settings change them: of a file of its own the
        digest of its bytes, else the client's id with the name of the data set.
    path
        The policy's ledger; ``None``: there is none, as nothing says where.
    state
        Folder of the client's runs, whose own ledgers count, too; ``None``: they are in memory.
    """

    client: str
    run: str
    data: str
    path: Path | None
    state: Path | None

    def opened(self, cap: float | None, delta: float) -> PolicyLedger | None:
        """Open the policy's ledger, and add what the ledgers of runs below :attr:`state` have and it has not."""
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
    """All that a client's data have given away, of which its policy allows so much.

    Charges count that are of the same client, whatever its data were, or of the same data, whatever the client was
    called: a file with one sample more is not new. Several clients and processes may share the file.

    Parameters
    ----------
    path
        The file, made when the first payload is charged.
    cap, delta
        Largest epsilon of all uploads together; ``None``: no limit.
    """

    def __init__(self, account: Account, path: Path, *, cap: float | None, delta: float, at_least: int = 0) -> None:
        self._account = account
        self._path = path
        # Not by the run's accountant, which is the server's choice.
        self._budget = Budget(cap, delta, scope=" in all runs of its policy")
        self._payloads: set[str] = set()
        self._of_runs: Counter[str] = Counter()
        header = {"kind": _POLICY_KIND, "version": _VERSION}
        self._file = LedgerFile(path, header, (_VERSION,), self._take, shared=True)
        if self._file.entries < at_least:
            raise _lowered(str(path), self._file.entries, at_least)

    @property
    def uploads(self) -> int:
        """Uploads that count against the policy, of all runs."""
        return self._budget.uploads

    @property
    def uploads_of_this_run(self) -> int:
        """Those of the client in its present run."""
        return self._of_runs[self._account.run]

    def __contains__(self, payload: str) -> bool:
        return payload in self._payloads

    def check(self, release: Release) -> None:
        """Raise ``BudgetSpentError`` unless the policy allows one upload more."""
        self._budget.check(f"{self._account.client}: an upload of run {self._account.run}", release)

    @contextlib.contextmanager
    def charging(self, entry: dict[str, Any], release: Release) -> Iterator[dict[str, Any]]:
        """Charge an upload when the block is left; within, the run's ledger is written.

        Returns
        -------
        Iterator[dict[str, Any]]
            What the run's ledger must add to the entry: how long this one is.
        """
        with self._file.held():
            if entry["payload"] not in self:
                what = f"{self._account.client}: the upload of round {entry['round']} of run {self._account.run}"
                self._budget.check(what, release)
            yield {"policy": [str(self._path), self._file.entries]}
            self._add(self._account.run, entry)

    def add_missing(self, run: str, charges: Mapping[str, tuple[Any, Release]]) -> None:
        """Add charges of a run's ledger that are not here: an older version made them, or a crash came between."""
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
    """Return what an entry says of its upload."""
    if entry.keys() != fields:
        raise ValueError(f"expected {sorted(fields)}, found {sorted(entry)}")
    return Release(entry["noise_multiplier"], entry["sampling_rate"])


def _lowered(place: str, found: int, known: int) -> CheckpointError:
    return CheckpointError(
        f"the privacy ledger holds {found} uploads, but this client has sent {known}. It is an old copy, or "
        "lost; with it this client would give away more than its budget, so nothing is sent. Put the right file back, "
        "or begin a new run without this client",
        source=place,
    )
