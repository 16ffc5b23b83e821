"""Exact privacy of the Gaussian mechanism: noise of standard deviation ``z s`` on a value of sensitivity ``s``."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy
from numpy.typing import NDArray


def profile(z: float, epsilon: NDArray[np.floating[Any]]) -> NDArray[np.float64]:
    """Return the smallest ``delta`` for which the Gaussian mechanism is (epsilon, delta)-differentially private.

    It is ``Phi(1/(2z) - epsilon z) - exp(epsilon) Phi(-1/(2z) - epsilon z)`` (Balle and Wang, "Improving the
    Gaussian mechanism for differential privacy", 2018, Theorem 8).

    Parameters
    ----------
    z
        Noise multiplier: standard deviation of the noise over the sensitivity.
    epsilon
        Values of epsilon, shape (n,), possibly negative.

    Returns
    -------
    NDArray[np.float64]
        Values of delta between 0 and 1, shape (n,), float64.
    """
    half = 1 / (2 * z)
    own = scipy.special.ndtr(half - epsilon * z)
    other = np.exp(np.minimum(epsilon + scipy.special.log_ndtr(-half - epsilon * z), 0.0))
    deltas: NDArray[np.float64] = np.clip(own - other, 0.0, 1.0)
    return deltas


def exact_gaussian(z: float, delta: float) -> float:
    """Return the smallest ``epsilon`` for which the Gaussian mechanism is (epsilon, delta)-differentially private.

    ``R`` releases with multiplier ``z`` together are equivalent to one with ``z / sqrt(R)``.
    """
    from scipy.optimize import brentq  # late import, because the import is slow and few processes need it

    def excess(epsilon: float) -> float:
        return float(profile(z, np.array([epsilon]))[0]) - delta

    if excess(0.0) <= 0:
        return 0.0
    # The profile is at most Phi(1/(2z) - epsilon z), which equals delta at the upper end.
    enough = 1 / (2 * z * z) - float(scipy.special.ndtri(delta)) / z
    return float(brentq(excess, 0.0, enough * (1 + 1e-9), xtol=1e-13, rtol=1e-12))
