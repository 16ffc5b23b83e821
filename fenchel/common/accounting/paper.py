"""Privacy formulas of the FedPDM paper, for reproduction. They claim more privacy than is proved.

The printed total has ``q^2`` where its proof gives ``q``, and its constant is not stated. The formula of the Gaussian
mechanism is proved for ``epsilon < 1`` only, and gives too little noise above 8 (docs/specifications/fedpdm.md,
sections 3.2 and 3.3).
"""

from __future__ import annotations

import math
from typing import Literal, TypeAlias

Law: TypeAlias = Literal["printed", "corrected"]
"""Power of ``q`` in the total of Theorem 2: 2 as printed, 1 according to its proof."""

_EXPONENTS: dict[Law, int] = {"printed": 2, "corrected": 1}


def noise_multiplier(epsilon: float, delta: float) -> float:
    """Return ``z = sqrt(2 ln(1.25 / delta)) / epsilon`` for one round, infinite for ``epsilon = 0``."""
    return math.sqrt(2 * math.log(1.25 / delta)) / epsilon if epsilon else math.inf


def epsilon_of(z: float, delta: float) -> float:
    """Return the ``epsilon`` of one round that the formula claims for the noise multiplier ``z``."""
    return noise_multiplier(z, delta)  # the formula is its own inverse


def c0(delta: float) -> float:
    """Return ``sqrt(2 ln(1 / delta) / ln(1.25 / delta))``, the theorem's unstated constant by the paper's proof."""
    return math.sqrt(2 * math.log(1 / delta) / math.log(1.25 / delta))


def total(epsilon: float, sampling_rate: float, uploads: float, delta: float, law: Law = "printed") -> float:
    """Return Theorem 2's total ``c0 q^e epsilon sqrt(p T / (1 - q))`` for a client, with ``e`` 2 or 1.

    Parameters
    ----------
    uploads
        Expected number ``p T`` of the client's uploads.

    Returns
    -------
    float
        Total epsilon, infinite for ``q >= 1``, which the theorem does not cover.
    """
    return epsilon * _factor(sampling_rate, uploads, delta, law)


def per_round(budget: float, sampling_rate: float, uploads: float, delta: float, law: Law = "printed") -> float:
    """Return the ``epsilon`` of one round for which :func:`total` is ``budget``; 0 for ``q >= 1``."""
    return budget / _factor(sampling_rate, uploads, delta, law)


def _factor(sampling_rate: float, uploads: float, delta: float, law: Law) -> float:
    if sampling_rate >= 1:
        return math.inf
    power = sampling_rate ** _EXPONENTS[law]
    return c0(delta) * power * math.sqrt(uploads / (1 - sampling_rate))
