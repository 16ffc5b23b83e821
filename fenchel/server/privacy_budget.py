"""The privacy budget of a run: the server's account of the privacy loss of each client.

Each client also keeps a ledger (``fenchel/client/privacy/ledger.py``) and refuses requests beyond its own limit. The
server counts its requests in order to report the loss, and to end the run before a client would have to refuse.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from fenchel.algorithms.privacy_requirements import facts_of
from fenchel.common.accounting.accountant import Accountant, Release
from fenchel.common.accounting.gaussian import exact_gaussian
from fenchel.common.accounting.public_facts import PrivacyFacts
from fenchel.common.errors import CheckpointError
from fenchel.common.objectives.objective import Objective
from fenchel.common.settings.privacy import DifferentialPrivacy
from fenchel.common.settings.run import RunSettings
from fenchel.fleet.calls import Call
from fenchel.fleet.client_record import ClientRecord
from fenchel.proto import fenchel_pb2 as pb

Uploads: TypeAlias = frozenset[tuple[Release, int]]
"""Number of uploads of each kind."""


@dataclass
class PrivacyBudget:
    """Number of uploads of each client, and their privacy loss.

    The uploads are part of the client records, and so of checkpoints.

    Attributes
    ----------
    settings
        Settings of the run, which is under differential privacy.
    objective
        Objective without data.
    members
        Client records by client id.
    facts
        Public facts of each client that determine its noise, by client id.
    names
        Columns of the metrics table. Each contains the largest value of any client.
    """

    settings: RunSettings
    objective: Objective
    members: Mapping[str, ClientRecord]
    facts: dict[str, PrivacyFacts] = field(default_factory=dict)
    _accountants: dict[str, Accountant] = field(default_factory=dict)
    # Only the epsilons of this round and of the one before are kept, because their number grows with the rounds.
    _epsilons: dict[tuple[str, Uploads], float] = field(default_factory=dict)
    _earlier: dict[tuple[str, Uploads], float] = field(default_factory=dict)

    names: ClassVar[tuple[str, ...]] = (
        "privacy_uploads",
        "epsilon_round",
        "epsilon_paper",
        "epsilon_pld",
        "epsilon_rdp",
    )

    @property
    def privacy(self) -> DifferentialPrivacy:
        """Section ``differential_privacy`` of the settings."""
        assert self.settings.differential_privacy is not None
        return self.settings.differential_privacy

    def resume(self, calls: pa.Table, after: int) -> None:
        """Count the uploads that a resumed run asked for after its checkpoint, because clients have received them.

        Must be called before :meth:`enrol`, which determines the noise anew.

        Parameters
        ----------
        calls
            Table of calls.
        after
            Round of the checkpoint.

        Raises
        ------
        CheckpointError
            If an older version, which did not count uploads, wrote the checkpoint.
        """
        asked = calls.filter(pc.and_(pc.equal(calls["kind"], "ask"), pc.greater(calls["round"], 0)))
        since = Counter(asked.filter(pc.greater(asked["round"], after))["client"].to_pylist())
        for client in asked["client"].unique().to_pylist():
            member = self.members.get(client)
            if member is None:
                continue  # it joined after this checkpoint, which is not the last one, and has to join again
            if member.release is None:
                raise CheckpointError(
                    "the checkpoint lacks the noise of earlier uploads, as an older version wrote it; continue with "
                    "that version, or begin a new run"
                )
            member.uploads[member.release] += since[client]

    def enrol(self, samples: Mapping[str, int]) -> None:
        """Determine the noise of the clients that are not known yet.

        Parameters
        ----------
        samples
            Number of samples n_i of each client, by client id.
        """
        alike = {facts: self.members[client].release for client, facts in self.facts.items()}
        for client, count in samples.items():
            if client in self.facts:
                continue
            facts = facts_of(self.settings, self.objective, count)
            # calibrate once for equal facts: a calibration takes a second, and most clients share their facts
            if facts not in alike:
                alike[facts] = Release(self.privacy.noise(facts), self.privacy.sampling_rate(facts))
            self.facts[client] = facts
            self.members[client].protect(alike[facts])

    def warnings(self) -> list[str]:
        """Return the warnings about this run's mechanism, each once."""
        found = [warning for facts in set(self.facts.values()) for warning in self.privacy.warnings(facts)]
        return list(dict.fromkeys(found))

    def count(self, calls: Iterable[Call]) -> None:
        """Count the uploads that a round asked for, even if they did not arrive."""
        self._earlier, self._epsilons = self._epsilons, {}
        for call in calls:
            if call.kind == pb.ASK and call.round > 0:
                self.members[call.client].uploads[self._release(call.client)] += 1

    def epsilon(self, method: str, more: int = 0) -> float:
        """Return the largest epsilon of any client by the accountant ``method`` after ``more`` further uploads each."""
        return self._largest_epsilon(method, self.facts, more)

    def _largest_epsilon(self, method: str, clients: Iterable[str], more: int = 0) -> float:
        # Most clients have the same uploads as others, so few are left to compare.
        distinct = {(frozenset(self.members[each].uploads.items()), self._release(each)) for each in clients}
        found = [Counter(dict(uploads)) + Counter({release: more}) for uploads, release in distinct]
        return max((self._epsilon_of(method, uploads) for uploads in _most(found)), default=0.0)

    def _epsilon_of(self, method: str, uploads: Uploads) -> float:
        key = (method, uploads)
        if key not in self._epsilons:
            if (found := self._earlier.get(key)) is None:
                accountant = self._accountants.setdefault(method, Accountant(method))  # type: ignore[arg-type]
                found = accountant.epsilon(dict(uploads), self.privacy.delta)
            self._epsilons[key] = found
        return self._epsilons[key]

    def exhausted(self) -> str:
        """Return the reason if another round could exceed the budget; empty if not, or if no budget applies."""
        budget = self.privacy.budget
        if budget is None or self.privacy.mechanism == "paper":
            return ""
        next_epsilon = self.epsilon(self.privacy.accountant, more=1)
        if next_epsilon <= budget:
            return ""
        return (
            f"another round could cost a client epsilon = {next_epsilon:.4g} in all, above "
            f"differential_privacy.budget ({budget:g}, delta = {self.privacy.delta:g})"
        )

    def figures(self) -> dict[str, float]:
        """Return the current figures, by the names in :attr:`names`."""
        releases = {self._release(client) for client in self.facts}
        return {
            "privacy_uploads": float(max(map(self._uploads, self.facts), default=0)),
            "epsilon_round": max(exact_gaussian(each.noise_multiplier, self.privacy.delta) for each in releases),
            "epsilon_paper": max(
                (self.privacy.claimed(facts, self._uploads(client)) for client, facts in self._largest()),
                default=math.nan,
            ),
            "epsilon_pld": self.epsilon("pld-wor"),
            "epsilon_rdp": self.epsilon("rdp-wor"),
        }

    def groups(self) -> list[dict[str, object]]:
        """Return a row for each group of clients with equal noise and sampling, with their largest privacy loss."""
        alike: dict[Release, list[str]] = {}
        for client in self.facts:
            alike.setdefault(self._release(client), []).append(client)
        rows: list[dict[str, object]] = []
        for release, clients in alike.items():
            most = max(clients, key=self._uploads)
            rows.append(
                {
                    "clients": sorted(clients),
                    "noise_multiplier": release.noise_multiplier,
                    "sampling_rate": release.sampling_rate,
                    "uploads": self._uploads(most),
                    "epsilon_pld": _finite(self._largest_epsilon("pld-wor", clients)),
                    "epsilon_rdp": _finite(self._largest_epsilon("rdp-wor", clients)),
                    "epsilon_paper": _finite(self.privacy.claimed(self.facts[most], self._uploads(most))),
                }
            )
        return rows

    def _release(self, client: str) -> Release:
        release = self.members[client].release
        assert release is not None, "the noise of a client is determined before its first upload"
        return release

    def _uploads(self, client: str) -> int:
        return self.members[client].uploads.total()

    def _largest(self) -> list[tuple[str, PrivacyFacts]]:
        """Return the client with the most uploads, and its facts, for each distinct value of the facts."""
        largest: dict[PrivacyFacts, str] = {}
        for client, facts in self.facts.items():
            if facts not in largest or self._uploads(client) > self._uploads(largest[facts]):
                largest[facts] = client
        return [(client, facts) for facts, client in largest.items()]


def _most(uploads: Iterable[Counter[Release]]) -> list[Uploads]:
    """Return the distinct uploads, without those of which others have at least as many of each kind."""
    most: list[Counter[Release]] = []
    for each in sorted(uploads, key=Counter.total, reverse=True):
        if not any(each <= other for other in most):
            most.append(each)
    return [frozenset(each.items()) for each in most]


def _finite(epsilon: float) -> float | None:
    """Return an epsilon for a JSON file; ``None`` if it is not finite, because JSON has no infinity."""
    return epsilon if math.isfinite(epsilon) else None
