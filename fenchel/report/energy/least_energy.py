"""Number of local steps with the least energy to a target (docs/specifications/drdm.md, section 4.2)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np

from fenchel.common.errors import SettingsError


def between(table: Mapping[int, float], steps: float) -> float:
    """Return a quantity at a number of local steps, by linear interpolation of a table.

    Parameters
    ----------
    table
        Quantity by number of local steps, such as the rounds S(tau) to a target accuracy.
    steps
        Number tau of local steps.

    Raises
    ------
    SettingsError
        If ``steps`` is outside the range of the table.
    """
    known = sorted(table)
    if not known or not known[0] <= steps <= known[-1]:
        reach = f"{known[0]} to {known[-1]}" if known else "none at all"
        raise SettingsError(
            f"{steps:g} local steps lie outside the measured range ({reach}); make a run with that number"
        )
    return float(np.interp(steps, known, [table[tau] for tau in known]))


def best_local_steps(rounds: Mapping[int, float], energy_of_round: Callable[[int], float]) -> int:
    """Return the number of local steps with the least energy to a target.

    The result is the smallest minimiser of ``S(tau) E_round(tau)`` over all integers in the range of the table.
    Between two entries S is linear, and so is the energy of a round, ``tau E_step + E_tx``, which increases. Their
    product has no minimum in between, so the result is always an entry of the table.

    Parameters
    ----------
    rounds
        S(tau), the rounds to the target with tau local steps, with at least one entry.
    energy_of_round
        Energy of all clients in a round, in any unit.
    """
    candidates = range(min(rounds), max(rounds) + 1)
    return min(candidates, key=lambda tau: between(rounds, tau) * energy_of_round(tau))


def fitted(rounds: Mapping[int, float]) -> tuple[float, float]:
    """Return a and b of the least-squares fit ``S(tau) = a + b / tau`` to a table of at least two entries."""
    tau = np.array(sorted(rounds), np.float64)
    columns = np.stack([np.ones_like(tau), 1 / tau], axis=1)
    (a, b), *_ = np.linalg.lstsq(columns, np.array([rounds[int(t)] for t in tau]), rcond=None)
    return float(a), float(b)


def best_of_fit(a: float, b: float, ratio: float) -> float:
    """Return the best number of local steps for ``S(tau) = a + b / tau``, which is ``sqrt((b / a) r)``.

    Parameters
    ----------
    a, b
        Coefficients of the fit.
    ratio
        Ratio r of the energy of a round's upload to that of one local step.
    """
    return math.sqrt(b / a * ratio)
