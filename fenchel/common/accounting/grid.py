"""Noise on a grid: values and noise are integers, times a spacing that is public.

Each value is rounded to a multiple of the spacing, and the noise is a discrete Gaussian variable times the
spacing. Rounding drives two neighbours apart by at most one spacing a value, which counts as sensitivity: for
``k`` values, ``s + spacing sqrt(k)``.

The accountants are those of the Gaussian distribution on the real numbers. They hold for the discrete one,
too, with batches that are drawn and over any number of uploads. Let ``X`` be Gaussian on the reals, of
standard deviation ``c`` spacings, around an integer. Round it at random: to the integer ``y`` with
probability proportional to ``exp(-(y - X)² / 2 τ²)``. That looks at no data, so the accountants hold for the
result, whose probabilities are those of the discrete Gaussian distribution of scale ``r = sqrt(c² + τ²)``,
but for a factor: the sums of ``exp(-(j - X)² / 2 τ²)`` over the integers ``j`` differ from ``τ sqrt(2π)`` by
at most ``2.01 exp(-2π² τ²)`` of it, by Poisson's summation formula (as in Peikert, "An efficient and parallel
Gaussian sampler for lattices", CRYPTO 2010). With ``τ`` = 2 the factor is within 1 ± 3e-34 for each value:
for 1e16 values it changes epsilon by 1e-17.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fenchel.common.arrays import Vector

SMOOTHING = 2.0
"""``τ``, in spacings."""
SMALLEST_DEVIATION, LARGEST_DEVIATION = 1e-250, 1e300
"""Standard deviations of noise: beyond, spacings or values are no normal floating-point numbers any more."""
_SHARE = 2.0**-11
"""Most that rounding to the grid may add to the sensitivity."""
_COARSEST, _FINEST = 2.0**-10, 2.0**-44
"""Spacings, over the standard deviation. Where only the finest will do, rounding may add more than its share."""
_FORMULAS = 1 + 2.0**-30
"""Covers the rounding of the formulas for sensitivities, this one's included."""
_LARGEST_INTEGER = 2.0**63 - 2.0**54
"""Of a rounded value: with its noise, at most 2^52, it is a 64-bit integer."""


@dataclass(frozen=True)
class GridNoise:
    """Grid and scale of the noise of one upload.

    Attributes
    ----------
    spacing
        Of the grid: a power of two.
    scale
        ``r`` of the discrete Gaussian distribution, in spacings.
    """

    spacing: float
    scale: float

    @classmethod
    def covering(cls, sensitivity: float, noise_multiplier: float, count: int) -> GridNoise:
        """Return the noise for values of a sensitivity, which need not lie on the grid; it is public, as these are.

        Parameters
        ----------
        sensitivity
            Of the values before they are rounded to the grid, > 0.
        """
        deviation = noise_multiplier * sensitivity
        if not (SMALLEST_DEVIATION <= deviation <= LARGEST_DEVIATION and math.isfinite(sensitivity)):
            raise ValueError(
                f"noise must have a standard deviation from {SMALLEST_DEVIATION:g} to {LARGEST_DEVIATION:g}, and this "
                f"would have {deviation:.4g}"
            )
        root = math.sqrt(count)
        wanted = min(sensitivity * _SHARE / max(root, 1.0), deviation * _COARSEST)
        spacing = 2.0 ** (math.frexp(max(wanted, deviation * _FINEST))[1] - 1)
        covered = (sensitivity + spacing * root) * _FORMULAS
        return cls(spacing, math.hypot(noise_multiplier * (covered / spacing), SMOOTHING))

    def integers(self, values: Vector) -> NDArray[np.int64]:
        """Return the nearest points of the grid, in spacings, shape (k,)."""
        with np.errstate(over="ignore", invalid="ignore"):  # that is found below
            scaled = np.rint(values.astype(np.float64) / self.spacing)  # exact, the spacing being a power of two
        if not (np.abs(scaled) < _LARGEST_INTEGER).all():
            raise ValueError(f"values lie beyond {_LARGEST_INTEGER * self.spacing:.4g}, or are no numbers")
        return scaled.astype(np.int64)

    def values(self, integers: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the points of the grid as numbers; beyond 2^53 spacings they are rounded, which looks at no data."""
        points: NDArray[np.float64] = integers.astype(np.float64) * self.spacing
        return points
