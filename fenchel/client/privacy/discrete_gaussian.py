"""Exact sampler of the discrete Gaussian distribution: integers ``x`` with weights ``exp(-x²/2r²)``.

Source: Canonne, Kamath, Steinke, "The Discrete Gaussian for Differential Privacy", NeurIPS 2020. The low-order bits of
floating-point noise reveal the value to which it was added (Mironov, "On significance of the least significant bits
for differential privacy", CCS 2012). Integers do not, provided that each has exactly its probability.

The sampler rejects proposals from a geometric mixture of blocks, as Canonne, Kamath and Steinke reject those from a
discrete Laplace distribution. A proposal is decided in floating point if the result is certain, and otherwise in exact
arithmetic. The samples therefore depend on the key only, not on the processor.
"""

from __future__ import annotations

import math
from fractions import Fraction

import gmpy2
import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from numpy.typing import NDArray

LARGEST_SCALE = 2.0**46
"""Largest parameter ``r``, so the largest block length. The bounds of 64 such blocks are exact in float64."""
_MARGIN = 2.0**-40
"""Bound on the relative error of an acceptance probability in float64.

For probabilities above 2^-64, the error is below 2^-43.
"""
_AT_ONCE = 1 << 13
"""Number of proposals in a batch, whose arrays fit into the processor's cache."""


def discrete_gaussian(key: bytes, scale: float, count: int, *, margin: float = _MARGIN) -> NDArray[np.int64]:
    """Return independent samples of the discrete Gaussian distribution.

    A proposal is ``x = 2^m V + U`` with a random sign, where ``2^m <= r < 2^(m+1)``, ``V`` is geometric with
    probabilities ``2^-(V+1)``, and ``U`` uniform in ``{0, ..., 2^m - 1}``. The proposal is accepted with probability
    ``exp(-x²/2r²) 2^V / B``, where ``B`` bounds the numerator. Blocks from the 64th on are omitted, as they begin at
    32 standard deviations and have a probability below 1e-200.

    Parameters
    ----------
    key
        32 secret bytes, used as a key of ChaCha20. They must not be used for anything else.
    scale
        Parameter ``r`` of the distribution, from 1 to 2^46. The standard deviation is close to it.
    count
        Number of samples. A larger number leaves the first samples unchanged.
    margin
        Relative distance to an acceptance probability below which exact arithmetic decides. A larger margin only takes
        more time.

    Returns
    -------
    NDArray[np.int64]
        Samples, shape (count,).

    Raises
    ------
    ValueError
        If ``scale`` is out of range.
    """
    if not 1 <= scale <= LARGEST_SCALE:
        raise ValueError(f"scale must lie between 1 and 2^46, given {scale!r}")
    acceptance = _Acceptance(key, scale)
    shift = acceptance.shift
    block = np.uint64((1 << shift) - 1)
    keystream = Cipher(ChaCha20(key, bytes(16)), mode=None).encryptor()
    samples = np.empty(count, np.int64)
    filled = seen = 0
    while filled < count:
        proposals = min(int(2.2 * (count - filled)) + 16, _AT_ONCE)
        words = np.frombuffer(keystream.update(bytes(24 * proposals)), "<u8").reshape(proposals, 3)
        lowest = words[:, 0] & (~words[:, 0] + np.uint64(1))  # 2^V, the lowest bit that is set
        blocks = np.bitwise_count(lowest - np.uint64(1)).astype(np.int64)
        magnitude = (blocks << shift) + (words[:, 1] & block).astype(np.int64)
        threshold = np.exp(-0.5 * np.square(magnitude / scale)) * lowest * (2.0**64 / acceptance.bound)
        excess = words[:, 2] - threshold
        accepted = excess < 0
        for i in np.flatnonzero(np.abs(excess) <= margin * threshold + 2):
            accepted[i] = acceptance.decide(seen + int(i), int(magnitude[i]), int(words[i, 2]))
        negative = (words[:, 1] >> np.uint64(63)).astype(bool)
        accepted &= (magnitude > 0) | ~negative  # reject -0, so that 0 is proposed only once
        drawn = np.where(negative, -magnitude, magnitude)[accepted][: count - filled]
        samples[filled : filled + drawn.size] = drawn
        filled, seen = filled + drawn.size, seen + proposals
    return samples


class _Acceptance:
    """Exact decisions on proposals.

    Attributes
    ----------
    bound
        ``B``, a float64 that is at least ``exp(-x²/2r²) 2^V`` for every proposal.
    """

    def __init__(self, key: bytes, scale: float) -> None:
        self.shift = math.frexp(scale)[1] - 1  # ``m``, where blocks have length ``2^m``
        self._key = key
        self._twice_variance = 2 * Fraction(scale) ** 2
        # The numerator decreases within each block and from one block to the next.
        starts = [self._numerator(block << self.shift, 64, gmpy2.RoundUp) for block in range(8)]
        self.bound = float(max(starts)) * (1 + 1e-9)

    def _numerator(self, magnitude: int, precision: int, rounding: int) -> gmpy2.mpfr:
        """Return ``exp(-x²/2r²) 2^V``, with every operation rounded in the given direction."""
        with gmpy2.context(precision=precision, round=rounding):
            exponent = gmpy2.mpfr(gmpy2.mpq(-magnitude * magnitude / self._twice_variance))
            return gmpy2.mul_2exp(gmpy2.exp(exponent), magnitude >> self.shift)

    def decide(self, number: int, magnitude: int, word: int) -> bool:
        """Return True if a uniform number whose first 64 bits are ``word`` lies below the acceptance probability.

        Further bits come from the proposal's own keystream, until the result is certain.
        """
        nonce = bytes(8) + (number + 1).to_bytes(8, "little")
        further = Cipher(ChaCha20(self._key, nonce), mode=None).encryptor()
        bits = 64
        while True:
            # Compare the numerator with u B, both scaled by 2^bits.
            if (word + 1) * Fraction(self.bound) <= self._scaled(magnitude, bits, gmpy2.RoundDown):
                return True
            if word * Fraction(self.bound) >= self._scaled(magnitude, bits, gmpy2.RoundUp):
                return False
            word = word << 64 | int.from_bytes(further.update(bytes(8)), "little")
            bits += 64

    def _scaled(self, magnitude: int, bits: int, rounding: int) -> Fraction:
        """Return a lower or upper bound on ``2^bits`` times the numerator, by the direction of rounding."""
        bound: Fraction = Fraction(*self._numerator(magnitude, bits + 64, rounding).as_integer_ratio()) * 2**bits
        return bound
