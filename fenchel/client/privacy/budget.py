"""Privacy budget of several uploads."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from fenchel.common.accounting.accountant import Accountant, Release
from fenchel.common.errors import BudgetSpentError


@dataclass
class Budget:
    """Privacy budget, with the uploads charged to it.

    Attributes
    ----------
    cap
        Largest epsilon of all uploads together; ``None`` for no limit.
    delta
        Delta of the differential privacy.
    accountant
        Accountant that computes epsilon.
    scope
        Description of the uploads for error messages; empty for the uploads of one run.
    releases
        Number of charges by kind of release.
    """

    cap: float | None = None
    delta: float = 1e-5
    accountant: Accountant = field(default_factory=Accountant)
    scope: str = ""
    releases: Counter[Release] = field(default_factory=Counter)
    # kind of release, number of other releases charged, number of releases of this kind that fit with them
    _known: tuple[Release, int, int] | None = None

    @property
    def uploads(self) -> int:
        """Number of charged uploads."""
        return self.releases.total()

    def check(self, what: str, release: Release) -> None:
        """Raise ``BudgetSpentError`` if another upload exceeds the budget."""
        if self.cap is None or self._fits(self.cap, release):
            return
        after = self.accountant.epsilon(self.releases + Counter([release]), self.delta)
        if after > self.cap:
            raise BudgetSpentError(
                f"{what} is not sent, because with the {self.uploads} before it{self.scope} the privacy loss would "
                f"be epsilon = {after:.4g} (delta = {self.delta:g}), above the allowed {self.cap:.4g}. The budget "
                "was not exceeded; a longer run needs more noise from its first round",
                epsilon=after,
                allowed=self.cap,
            )

    def _fits(self, cap: float, release: Release) -> bool:
        """Return True if another upload is known to fit; False leaves it open.

        To save time, only powers of two are tried as numbers of uploads.
        """
        count = self.releases[release]
        others = self.uploads - count
        if self._known is not None and self._known[:2] == (release, others) and count < self._known[2]:
            return True
        enough = 1 << count.bit_length()
        fits = self.accountant.epsilon({**self.releases, release: enough}, self.delta) <= cap
        self._known = (release, others, enough) if fits else None
        return fits
