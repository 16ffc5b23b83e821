"""Privacy budgets: uploads that count together, up to an epsilon."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from fenchel.common.accounting.accountant import Accountant, Release
from fenchel.common.errors import BudgetSpentError


@dataclass
class Budget:
    """Uploads that count together, and how many more an epsilon allows.

    Attributes
    ----------
    cap
        Largest epsilon of all of them; ``None``: no limit.
    delta
        Of that epsilon.
    accountant
        How epsilon is computed.
    scope
        Which uploads these are, for people, where they are not those of one run.
    releases
        How often each kind of release was charged.
    """

    cap: float | None = None
    delta: float = 1e-5
    accountant: Accountant = field(default_factory=Accountant)
    scope: str = ""
    releases: Counter[Release] = field(default_factory=Counter)
    _known: tuple[Release, int, int] | None = None  # up to how many of one kind fit, beside so many others

    @property
    def uploads(self) -> int:
        """Uploads that were charged."""
        return self.releases.total()

    def check(self, what: str, release: Release) -> None:
        """Raise unless one more upload fits."""
        if self.cap is None or self._fits(self.cap, release):
            return
        after = self.accountant.epsilon(self.releases + Counter([release]), self.delta)
        if after > self.cap:
            raise BudgetSpentError(
                f"{what} is not sent. Together with the {self.uploads} before it{self.scope} the privacy loss would be "
                f"epsilon = {after:.4g} (delta = {self.delta:g}), and {self.cap:.4g} is allowed. Nothing was given "
                "away beyond the budget; a longer run needs more noise, set before it begins",
                epsilon=after,
                allowed=self.cap,
            )

    def _fits(self, cap: float, release: Release) -> bool:
        """Return whether one more upload fits; a power of two of its kind is tried, so few epsilons are computed."""
        count = self.releases[release]
        others = self.uploads - count
        if self._known is not None and self._known[:2] == (release, others) and count < self._known[2]:
            return True
        enough = 1 << count.bit_length()
        fits = self.accountant.epsilon({**self.releases, release: enough}, self.delta) <= cap
        self._known = (release, others, enough) if fits else None
        return fits
