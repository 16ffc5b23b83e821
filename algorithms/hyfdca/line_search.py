"""The outer line search of HyFDCA (specification, section 3.3)."""

from __future__ import annotations

import numpy as np

from fenchel.algorithms.hyfdca.settings import LINE_STEPS
from fenchel.common.arrays import Vector


def best_step(wv: float, vv: float, terms: Vector, l2: float) -> float:
    """Return the g in [0, 1] with the largest D(alpha + g delta) (specification, section 3.3).

    wv, vv: w^T v and ||v||^2, where v = A delta.
    terms: two numbers a and c, if (1/N) sum_i -l_i*(-(alpha_i + g delta_i)) grows by g a - g^2 c / 2; else its values
        at g = 0 and at each of ``LINE_STEPS``.
    """
    if len(terms) == 2:
        rise, bend = float(terms[0]) - l2 * wv, float(terms[1]) + l2 * vv
        if bend <= 0:
            return 1.0 if rise > 0 else 0.0
        return min(max(rise / bend, 0.0), 1.0)
    steps = np.concatenate([[0.0], LINE_STEPS])
    values = terms - l2 * (steps * wv + steps**2 * vv / 2)
    return float(steps[int(np.argmax(values))])
