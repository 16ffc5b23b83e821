"""Noise on a grid: values and noise are integers times a public spacing.

Each value is rounded to a multiple of the spacing, and the noise is a discrete Gaussian variable times the spacing.
Rounding adds at most one spacing to the distance of neighbours in each value, so the sensitivity for ``k`` values is
``s + spacing sqrt(k)``.

The accountants of the continuous Gaussian distribution hold for the discrete one, too, with sampled batches and over
any number of uploads. Let ``X`` be Gaussian on the reals around an integer, with a standard deviation of ``c``
spacings. Round it at random to the integer ``y`` with probability proportional to ``exp(-(y - X)² / 2 τ²)``. This step
is independent of data, so the accountants hold for its result.

Its probabilities are those of the discrete Gaussian distribution of scale ``r = sqrt(c² + τ²)``, up to a factor. The
sums of ``exp(-(j - X)² / 2 τ²)`` over the integers ``j`` differ relatively from ``τ sqrt(2π)`` by at most
``2.01 exp(-2π² τ²)``, by Poisson's summation formula (as in Peikert, "An efficient and parallel Gaussian sampler for
lattices", CRYPTO 2010). With ``τ`` = 2 the factor is within 1 ± 3e-34 for each value, which changes epsilon by 1e-17
for 1e16 values.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fenchel.common.arrays import Vector

SMOOTHING = 2.0
"""Standard deviation ``τ`` of the random rounding in the module's proof, in spacings."""
SMALLEST_DEVIATION, LARGEST_DEVIATION = 1e-250, 1e300
"""Range of the noise's standard deviation. Beyond it, spacings or values underflow or overflow."""
_SHARE = 2.0**-11
"""Largest share that rounding to the grid should add to the sensitivity."""
_COARSEST, _FINEST = 2.0**-10, 2.0**-44
"""Range of the ratio of spacing to standard deviation. At the finest, rounding may add more than ``_SHARE``."""
_FORMULAS = 1 + 2.0**-30
"""Factor that covers rounding errors in the formulas of sensitivities."""
_LARGEST_INTEGER = 2.0**63 - 2.0**54
"""Largest rounded value, which still fits a 64-bit integer with its noise of at most 2^52."""


@dataclass(frozen=True)
class GridNoise:
    """Grid and scale of the noise of one upload.

    Attributes
    ----------
    spacing
        Spacing of the grid, a power of two.
    scale
        Scale ``r`` of the discrete Gaussian distribution, in spacings.
    """

    spacing: float
    scale: float

    @classmethod
    def covering(cls, sensitivity: float, noise_multiplier: float, count: int) -> GridNoise:
        """Return the noise for ``count`` values, which need not lie on the grid. It depends on public numbers only.

        Parameters
        ----------
        sensitivity
            Sensitivity of the values before rounding to the grid, above 0.
        noise_multiplier
            Standard deviation of the noise over the sensitivity after rounding.

        Raises
        ------
        ValueError
            If the standard deviation of the noise is out of range.
        """
        deviation = noise_multiplier * sensitivity
        if not (SMALLEST_DEVIATION <= deviation <= LARGEST_DEVIATION and math.isfinite(sensitivity)):
            raise ValueError(
                f"the noise would have a standard deviation of {deviation:.4g}; expected {SMALLEST_DEVIATION:g} to "
                f"{LARGEST_DEVIATION:g}"
            )
        root = math.sqrt(count)
        wanted = min(sensitivity * _SHARE / max(root, 1.0), deviation * _COARSEST)
        spacing = 2.0 ** (math.frexp(max(wanted, deviation * _FINEST))[1] - 1)
        covered = (sensitivity + spacing * root) * _FORMULAS
        return cls(spacing, math.hypot(noise_multiplier * (covered / spacing), SMOOTHING))

    def integers(self, values: Vector) -> NDArray[np.int64]:
        """Return the nearest grid points, in spacings, shape (k,); raise ``ValueError`` for values out of range."""
        with np.errstate(over="ignore", invalid="ignore"):  # the range is checked below
            scaled = np.rint(values.astype(np.float64) / self.spacing)  # division by a power of two is exact
        if not (np.abs(scaled) < _LARGEST_INTEGER).all():
            raise ValueError(f"values lie beyond {_LARGEST_INTEGER * self.spacing:.4g}, or are no numbers")
        return scaled.astype(np.int64)

    def values(self, integers: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return points of the grid as numbers. Those beyond 2^53 spacings are rounded, which is post-processing."""
        points: NDArray[np.float64] = integers.astype(np.float64) * self.spacing
        return points
