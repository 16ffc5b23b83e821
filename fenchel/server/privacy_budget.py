"""The privacy budget of a run: the server's account of the privacy loss of each client.

Each client also keeps a ledger (``fenchel/client/privacy/ledger.py``) and refuses requests beyond its own limit. The
server counts its requests in order to report the loss, and to end the run before a client would have to refuse.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar

import pyarrow as pa
import pyarrow.compute as pc

from fenchel.algorithms.privacy_requirements import facts_of
from fenchel.common.accounting.accountant import Accountant, Release
from fenchel.common.accounting.gaussian import exact_gaussian
from fenchel.common.accounting.public_facts import PrivacyFacts
from fenchel.common.objectives.objective import Objective
from fenchel.common.settings.privacy import DifferentialPrivacy
from fenchel.common.settings.run import RunSettings
from fenchel.fleet.calls import Call
from fenchel.proto import fenchel_pb2 as pb


@dataclass
class PrivacyBudget:
    """Number of uploads of each client, and their privacy loss.

    Attributes
    ----------
    settings
        Settings of the run, which is under differential privacy.
    objective
        Objective without data.
    facts
        Public facts of each client that determine its noise, by client id.
    releases
        Noise multiplier and sampling rate of each client's uploads, by client id.
    uploads
        Number of uploads that each client was asked for, by client id.
    names
        Columns of the metrics table. Each contains the largest value of any client.
    """

    settings: RunSettings
    objective: Objective
    facts: dict[str, PrivacyFacts] = field(default_factory=dict)
    releases: dict[str, Release] = field(default_factory=dict)
    uploads: Counter[str] = field(default_factory=Counter)
    _accountants: dict[str, Accountant] = field(default_factory=dict)
    _epsilons: dict[str, dict[tuple[Release, int], float]] = field(default_factory=dict)

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

    def enrol(self, samples: Mapping[str, int]) -> None:
        """Add the clients that are not known yet.

        Parameters
        ----------
        samples
            Number of samples n_i of each client, by client id.
        """
        alike = {facts: self.releases[client] for client, facts in self.facts.items()}
        for client, count in samples.items():
            if client in self.facts:
                continue
            facts = facts_of(self.settings, self.objective, count)
            # calibrate once for equal facts: a calibration takes a second, and most clients share their facts
            if facts not in alike:
                alike[facts] = Release(self.privacy.noise(facts), self.privacy.sampling_rate(facts))
            self.facts[client], self.releases[client] = facts, alike[facts]

    def resume(self, calls: pa.Table) -> None:
        """Count the uploads that a resumed run has already asked for, from its table of calls."""
        asked = calls.filter(pc.and_(pc.equal(calls["kind"], "ask"), pc.greater(calls["round"], 0)))
        self.uploads = Counter(asked["client"].to_pylist())

    def warnings(self) -> list[str]:
        """Return the warnings about this run's mechanism, each once."""
        found = [warning for facts in set(self.facts.values()) for warning in self.privacy.warnings(facts)]
        return list(dict.fromkeys(found))

    def count(self, calls: Iterable[Call]) -> None:
        """Count the uploads that a round asked for, even if they did not arrive."""
        self.uploads.update(call.client for call in calls if call.kind == pb.ASK and call.round > 0)

    def epsilon(self, method: str, more: int = 0) -> float:
        """Return the largest epsilon of any client by the accountant ``method`` after ``more`` further uploads each."""
        most: dict[Release, int] = {}
        for client, release in self.releases.items():
            most[release] = max(most.get(release, 0), self.uploads[client] + more)
        return max((self._epsilon_of(method, *pair) for pair in most.items()), default=0.0)

    def _epsilon_of(self, method: str, release: Release, count: int) -> float:
        known = self._epsilons.setdefault(method, {})
        if (release, count) not in known:
            accountant = self._accountants.setdefault(method, Accountant(method))  # type: ignore[arg-type]
            known[release, count] = accountant.epsilon({release: count}, self.privacy.delta)
        return known[release, count]

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
        most = max(self.uploads.values(), default=0)
        return {
            "privacy_uploads": float(most),
            "epsilon_round": max(
                exact_gaussian(release.noise_multiplier, self.privacy.delta) for release in self.releases.values()
            ),
            "epsilon_paper": max(
                (self.privacy.claimed(facts, self.uploads[client]) for client, facts in self._largest()),
                default=math.nan,
            ),
            "epsilon_pld": self.epsilon("pld-wor"),
            "epsilon_rdp": self.epsilon("rdp-wor"),
        }

    def groups(self) -> list[dict[str, object]]:
        """Return a row for each group of clients with equal noise and sampling, with their largest privacy loss."""
        alike: dict[Release, list[str]] = {}
        for client, release in self.releases.items():
            alike.setdefault(release, []).append(client)
        rows: list[dict[str, object]] = []
        for release, clients in alike.items():
            most = max(clients, key=lambda client: self.uploads[client])
            uploads = self.uploads[most]
            rows.append(
                {
                    "clients": sorted(clients),
                    "noise_multiplier": release.noise_multiplier,
                    "sampling_rate": release.sampling_rate,
                    "uploads": uploads,
                    "epsilon_pld": _finite(self._epsilon_of("pld-wor", release, uploads)),
                    "epsilon_rdp": _finite(self._epsilon_of("rdp-wor", release, uploads)),
                    "epsilon_paper": _finite(self.privacy.claimed(self.facts[most], uploads)),
                }
            )
        return rows

    def _largest(self) -> list[tuple[str, PrivacyFacts]]:
        """Return the client with the most uploads, and its facts, for each distinct value of the facts."""
        largest: dict[PrivacyFacts, str] = {}
        for client, facts in self.facts.items():
            if facts not in largest or self.uploads[client] > self.uploads[largest[facts]]:
                largest[facts] = client
        return [(client, facts) for facts, client in largest.items()]


def _finite(epsilon: float) -> float | None:
    """Return an epsilon for a JSON file; ``None`` if it is not finite, because JSON has no infinity."""
    return epsilon if math.isfinite(epsilon) else None
