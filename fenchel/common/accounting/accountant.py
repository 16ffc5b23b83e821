"""Numerical accountants of the privacy loss of many releases (docs/specifications/fedpdm.md, section 3.3).

A release is one upload with Gaussian noise, computed from a part of the client's samples. Its privacy loss distribution
is a table of probabilities over a grid of losses, and releases compose by convolution. This module computes the
distribution for batches drawn without replacement. The library dp-accounting, which is imported on first use, provides
tables, convolution and Rényi divergences.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fenchel.common.accounting.gaussian import exact_gaussian, profile
from fenchel.common.errors import MissingDependencyError, SettingsError

if TYPE_CHECKING:
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

Method: TypeAlias = Literal["pld-wor", "rdp-wor", "pld-poisson", "rdp-poisson"]
"""Method of accounting: privacy loss distributions or Rényi divergences, for batches without replacement or Poisson."""

_POINTS_A_SCALE = 100
"""Grid points on the typical loss of a release, q / z. With 20, the fourth digit of epsilon would change."""
_COARSEST = 2.0**-3
_MOST_POINTS = 1 << 17
"""Largest number of grid points above zero for one release. Composed distributions have a few times as many."""
_TAIL = 9.0
"""Standard deviations of the noise that the grid covers. The remaining mass below 1e-18 counts as infinite loss."""
_TRUNCATED = 1e-15
"""Probability mass that a convolution may move to an infinite loss."""
_MOST_COMPOSED = 100_000
"""Largest number of releases whose distributions are composed. Rounding errors and memory grow with it."""
_LARGEST_LOSS = 2.0**20
"""Largest total loss of releases whose distributions are composed, for about 200 MiB of memory."""
_SMALLEST_MULTIPLIER = 0.003
"""Noise multiplier below which epsilon of one release exceeds 10,000, and sampling of batches is ignored."""
SMALLEST_NOISE, LARGEST_NOISE = 1e-100, 1e6
"""Range of noise multipliers. Beyond it, squares overflow, or losses are smaller than the gap of the grid."""
SMALLEST_RATE = 1e-9
"""Smallest sampling rate; rates below it would be rounded to 0."""
_CALIBRATED = 1e-4
"""Relative accuracy of a calibrated noise multiplier."""


@dataclass(frozen=True)
class Release:
    """Parameters of one upload for accounting.

    Attributes
    ----------
    noise_multiplier
        Ratio ``z`` of the noise's standard deviation to the sensitivity, from 1e-100 to 1e6.
    sampling_rate
        Share ``q = Q b / n_i`` of the client's samples from which the upload was computed, from 1e-9 to 1. It is 1 also
        if sampling does not amplify privacy, as with a private dual variable.
    """

    noise_multiplier: float
    sampling_rate: float = 1.0

    def __post_init__(self) -> None:
        for what, value, least, most in (
            ("noise multiplier", self.noise_multiplier, SMALLEST_NOISE, LARGEST_NOISE),
            ("sampling rate", self.sampling_rate, SMALLEST_RATE, 1.0),
        ):
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise TypeError(f"a {what} must be a number, given {value!r:.40}")
            if not least <= value <= most:
                raise ValueError(f"a {what} must lie between {least:g} and {most:g}, given {value!r:.40}")


@dataclass
class Accountant:
    """Accountant of epsilon, which caches the distributions of releases.

    Attributes
    ----------
    method
        Method of accounting. ``pld-wor`` is tight for batches without replacement and neighbours that differ by
        replacing a sample. ``rdp-wor`` is a general bound for the same, at most a few times looser. ``pld-poisson`` and
        ``rdp-poisson`` hold for Poisson-drawn batches and neighbours that differ by adding or removing a sample. For
        more than 100,000 releases, or a very large epsilon, ``rdp-…`` replaces ``pld-…``, because its time and memory
        are bounded.
    """

    method: Method = "pld-wor"
    _distributions: dict[tuple[Release, float], PrivacyLossDistribution] = field(default_factory=dict, repr=False)

    def epsilon(self, releases: Mapping[Release, int], delta: float) -> float:
        """Return an ``epsilon`` such that all releases together are (epsilon, delta)-differentially private.

        Parameters
        ----------
        releases
            Number of releases of each kind. Kinds may differ in noise and sampling.
        delta
            Probability between 1e-10 and 1. Below, rounding errors of the convolutions would matter.

        Returns
        -------
        float
            Epsilon, infinite if the method has no finite bound.

        Raises
        ------
        ValueError
            If ``delta`` is out of range.
        MissingDependencyError
            If dp-accounting is not installed.
        """
        if not 1e-10 <= delta < 1:
            raise ValueError(f"delta must lie in [1e-10, 1), given {delta!r}")
        made = {release: count for release, count in releases.items() if count > 0}
        if not made:
            return 0.0
        if min(release.noise_multiplier for release in made) < _SMALLEST_MULTIPLIER:
            return _without_sampling(made, delta)
        require_library()
        if self.method in ("rdp-wor", "rdp-poisson"):
            found = self._renyi(made, delta)
        elif _composable(made):
            found = float(self._composed(made).get_epsilon_for_delta(delta))
        else:
            found = min(self._renyi(made, delta), _without_sampling(made, delta))
        # Rounding can give nan for tiny losses. Comparisons with nan are false, so nan could pass as a small epsilon.
        return math.inf if math.isnan(found) else found

    def _composed(self, releases: Mapping[Release, int]) -> PrivacyLossDistribution:
        gap = _grid(releases)
        composed: PrivacyLossDistribution | None = None
        for release, count in releases.items():
            single = self._distribution(release, gap)
            alike = single if count == 1 else single.self_compose(count, _TRUNCATED)
            composed = alike if composed is None else composed.compose(alike, _TRUNCATED)
        assert composed is not None
        return composed

    def _distribution(self, release: Release, gap: float) -> PrivacyLossDistribution:
        key = (release, gap)
        if key not in self._distributions:
            make = _without_replacement if self.method == "pld-wor" else _poisson
            self._distributions[key] = make(release, gap)
        return self._distributions[key]

    def _renyi(self, releases: Mapping[Release, int], delta: float) -> float:
        from dp_accounting.rdp import rdp_privacy_accountant as rdp

        poisson = self.method in ("pld-poisson", "rdp-poisson")
        summed = sum(count * _divergences(release, poisson=poisson) for release, count in releases.items())
        epsilon, _ = rdp.compute_epsilon(rdp.DEFAULT_RDP_ORDERS, summed, delta)
        return float(epsilon)


def epsilon(releases: Mapping[Release, int], delta: float, method: Method = "pld-wor") -> float:
    """Return the epsilon of all releases together; see :meth:`Accountant.epsilon`."""
    return Accountant(method).epsilon(releases, delta)


@functools.cache  # A call takes a second, and clients with equal settings have equal arguments.
def calibrate(sampling_rate: float, uploads: int, delta: float, budget: float, method: Method = "pld-wor") -> float:
    """Return the smallest noise multiplier, up to 0.01 %, for which ``uploads`` uploads stay within a budget.

    The search ends at 2^-9, even if less noise suffices. Raise ``SettingsError`` if no multiplier up to
    :data:`LARGEST_NOISE` suffices.
    """
    accountant = Accountant(method)

    def fits(z: float) -> bool:
        return accountant.epsilon({Release(z, sampling_rate): uploads}, delta) <= budget

    enough = 1.0
    while not fits(enough):
        if enough == LARGEST_NOISE:
            raise SettingsError(
                f"no noise keeps {uploads:,} uploads within epsilon = {budget:g}, not even {LARGEST_NOISE:g} times "
                "the sensitivity; use a larger budget or fewer uploads",
                key="differential_privacy.budget",
            )
        enough = min(2 * enough, LARGEST_NOISE)
    too_little = enough / 2
    while fits(too_little):
        if too_little < _SMALLEST_MULTIPLIER:
            return too_little
        enough, too_little = too_little, too_little / 2
    while enough > too_little * (1 + _CALIBRATED):
        middle = math.sqrt(enough * too_little)
        if fits(middle):
            enough = middle
        else:
            too_little = middle
    return enough


def require_library() -> None:
    """Raise ``MissingDependencyError`` unless dp-accounting is installed."""
    try:
        import dp_accounting  # noqa: F401
    except ImportError:
        raise MissingDependencyError(
            "privacy accounting needs dp-accounting, which is not installed; install it with pip install "
            "'fenchel[privacy]'"
        ) from None


def _without_sampling(releases: Mapping[Release, int], delta: float) -> float:
    """Return the epsilon of all releases if each used all samples, an upper bound under sampling."""
    precision = sum(count / release.noise_multiplier**2 for release, count in releases.items())
    return exact_gaussian(precision**-0.5, delta)


def _composable(releases: Mapping[Release, int]) -> bool:
    """Return whether the composed distribution of all releases is small enough to be computed."""
    loss = sum(count * _largest_loss(release) for release, count in releases.items())
    return sum(releases.values()) <= _MOST_COMPOSED and loss <= _LARGEST_LOSS


def _largest_loss(release: Release) -> float:
    """Return a loss that is exceeded with probability below ``Phi(-_TAIL)``."""
    z, q = release.noise_multiplier, release.sampling_rate
    whole = 1 / (2 * z * z) + _TAIL / z
    return float(np.logaddexp(math.log1p(-q) if q < 1 else -math.inf, math.log(q) + whole))


def _grid(releases: Mapping[Release, int]) -> float:
    """Return the gap of the grid of losses, a power of two, so that releases of different rounds share their grid."""
    scale = min(release.sampling_rate / release.noise_multiplier for release in releases)
    fine = min(scale / _POINTS_A_SCALE, _COARSEST)
    affordable = max(map(_largest_loss, releases)) / _MOST_POINTS
    return float(max(2.0 ** math.floor(math.log2(fine)), 2.0 ** math.ceil(math.log2(affordable))))


def _without_replacement(release: Release, gap: float) -> PrivacyLossDistribution:
    """Return a pessimistic discretisation ("connect the dots") of the profile of sampling without replacement.

    The profile is ``d(e) = q d_G(ln(1 + (exp(e) - 1) / q))`` and ``d(-e) = 1 - exp(-e) + exp(-e) d(e)`` for ``e >= 0``,
    where ``d_G`` is the profile of the Gaussian mechanism. It is symmetric, so one distribution holds for both
    directions.
    """
    from dp_accounting.pld import pld_pmf
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

    points = math.ceil(_largest_loss(release) / gap)
    losses = gap * np.arange(points + 1, dtype=np.float64)
    above = release.sampling_rate * profile(release.noise_multiplier, _unsampled(losses, release.sampling_rate))
    below = -np.expm1(-losses) + np.exp(-losses) * above
    deltas = np.clip(np.concatenate([below[:0:-1], above]), 0.0, 1.0)
    deltas = np.maximum.accumulate(deltas[::-1])[::-1]  # restore monotonicity, which rounding can violate
    return PrivacyLossDistribution(pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap(gap, -points, points, deltas))


def _unsampled(losses: NDArray[np.float64], q: float) -> NDArray[np.float64]:
    """Return ``ln(1 + (exp(e) - 1) / q)``, shape (n,), without overflow and with full accuracy near 0."""
    small = np.log1p(np.expm1(np.minimum(losses, 1.0)) / q)
    return np.where(losses < 1, small, losses + np.log1p((q - 1) * np.exp(-losses)) - math.log(q))


def _poisson(release: Release, gap: float) -> PrivacyLossDistribution:
    from dp_accounting.pld import privacy_loss_distribution

    return privacy_loss_distribution.from_gaussian_mechanism(
        release.noise_multiplier, value_discretization_interval=gap, sampling_prob=release.sampling_rate
    )


@functools.cache
def _divergences(release: Release, *, poisson: bool) -> Any:
    """Return the Rényi divergences of one release, shape (orders,), at dp-accounting's usual orders."""
    from dp_accounting import dp_event
    from dp_accounting.privacy_accountant import NeighboringRelation
    from dp_accounting.rdp.rdp_privacy_accountant import RdpAccountant

    noise = dp_event.GaussianDpEvent(release.noise_multiplier)
    if poisson:
        accountant = RdpAccountant()
        return accountant.compose(dp_event.PoissonSampledDpEvent(release.sampling_rate, noise)).rdp
    rate = Fraction(release.sampling_rate).limit_denominator(10**9)
    accountant = RdpAccountant(neighboring_relation=NeighboringRelation.REPLACE_ONE)
    drawn = dp_event.SampledWithoutReplacementDpEvent(rate.denominator, rate.numerator, noise)
    return accountant.compose(drawn).rdp
