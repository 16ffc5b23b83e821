"""Comparison of runs with different numbers of local steps by their energy to a target."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fenchel.common.errors import SettingsError
from fenchel.report.energy.model import Channel, Devices
from fenchel.report.energy.workload import EnergyCost, Workload, energy_cost, rounds_to, workload_of
from fenchel.report.run import Run
from fenchel.report.summary import drawn_figures

_TARGETED = ("client_accuracy_worst", "test_accuracy")


@dataclass(frozen=True)
class Measured:
    """Run with the workload of its clients until the target.

    Attributes
    ----------
    run
        The run.
    local_steps
        Number tau of local steps; ``None`` for runs with epochs.
    workload
        Workload until the target, or of all rounds without a target; ``None`` if the target was not reached.
    """

    run: Run
    local_steps: int | None
    workload: Workload | None

    @classmethod
    def of(cls, run: Run, target: float | None = None, figure: str | None = None, macs: int | None = None) -> Measured:
        """Return a run with the workload of its clients until a target.

        Parameters
        ----------
        run
            The run.
        target, figure
            Value to reach, and the figure that must reach it (:func:`fenchel.report.energy.workload.rounds_to`). The
            default figure is the accuracy of the worst client if it is known, otherwise the accuracy on the test set.
        macs
            As for :func:`fenchel.report.energy.workload.workload_of`.

        Raises
        ------
        SettingsError
            If the run has no such figure, or the operations of its clients are unknown.
        """
        rounds = None
        if target is not None:
            known = drawn_figures(run)
            found = figure or next((name for name in _TARGETED if name in known), _TARGETED[-1])
            rounds = rounds_to(run, found, target)
        steps = getattr(run.settings.algorithm, "local_steps", None)
        missed = target is not None and rounds is None
        return cls(run, steps, None if missed else workload_of(run, rounds, macs))

    def energy_cost(self, devices: Devices, channel: Channel) -> EnergyCost | None:
        """Return the energy and time of the workload, or ``None`` if the target was not reached."""
        return None if self.workload is None else energy_cost(self.workload, devices, channel)


@dataclass(frozen=True)
class Fit:
    """Least-squares fit ``S(tau) = a + b / tau`` of the rounds to a target with tau local steps.

    Attributes
    ----------
    a, b
        Coefficients.
    off
        Largest absolute difference between the fitted and the measured numbers of rounds.
    best
        Number tau of local steps with the least energy according to the fit, not rounded.
    """

    a: float
    b: float
    off: float
    best: float


@dataclass(frozen=True)
class LeastEnergy:
    """Number of local steps with the least energy.

    Attributes
    ----------
    best
        The best number, tau*.
    rounds, energy_of_round
        Mean number of rounds, and mean energy of a round in joules, over runs, by number of local steps.
    fit
        Fit of the rounds. ``None`` with fewer than three numbers of local steps, if computing costs no energy, or if a
        coefficient is not positive.
    """

    best: int
    rounds: dict[int, float]
    energy_of_round: dict[int, float]
    fit: Fit | None


def choice(measured: Sequence[Measured], devices: Devices, channel: Channel) -> LeastEnergy | None:
    """Return the number of local steps with the least energy, compared over runs that reached the target.

    Return ``None`` if these runs have fewer than two different numbers of local steps.
    """
    priced: dict[int, list[tuple[Workload, EnergyCost]]] = {}
    for each in measured:
        if each.workload is not None and each.local_steps is not None:
            cost = energy_cost(each.workload, devices, channel)
            priced.setdefault(each.local_steps, []).append((each.workload, cost))
    if len(priced) < 2:
        return None
    groups = dict(sorted(priced.items()))
    rounds = {tau: float(np.mean([workload.rounds for workload, _ in group])) for tau, group in groups.items()}
    of_round = {
        tau: sum(cost.energy for _, cost in group) / sum(workload.rounds for workload, _ in group)
        for tau, group in groups.items()
    }
    return LeastEnergy(best_local_steps(rounds, of_round), rounds, of_round, _fit(groups, rounds))


def best_local_steps(rounds: Mapping[int, float], energy_of_round: Mapping[int, float]) -> int:
    """Return the number of local steps with the least energy to a target (docs/specifications/drdm.md, section 4.2).

    Only the numbers in the tables are compared. If the rounds S and the energy of a round are linear between two
    entries, as ``tau E_step + E_tx`` is, then their product has no minimum in between.

    Parameters
    ----------
    rounds
        S(tau), the rounds to the target with tau local steps, with at least one entry.
    energy_of_round
        Energy of all clients in a round with tau local steps, in any unit.
    """
    return min(sorted(rounds), key=lambda tau: rounds[tau] * energy_of_round[tau])


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


def _fit(groups: dict[int, list[tuple[Workload, EnergyCost]]], rounds: dict[int, float]) -> Fit | None:
    each = [(tau, workload, cost) for tau, group in groups.items() for workload, cost in group]
    steps = sum(tau * workload.rounds for tau, workload, _ in each)
    step = sum(cost.computing for *_, cost in each) / steps
    upload = sum(cost.sending for *_, cost in each) / sum(workload.rounds for _, workload, _ in each)
    if len(groups) < 3 or step == 0 or len(set(rounds.values())) == 1:  # equal rounds have no b but rounding errors
        return None
    a, b = fitted(rounds)
    if min(a, b) <= 0:
        return None
    off = max(abs(a + b / tau - count) for tau, count in rounds.items())
    return Fit(a, b, off, best_of_fit(a, b, upload / step))


def over_channels(
    measured: Sequence[Measured], devices: Devices, channel: Channel, snrs: Sequence[float], bandwidths: Sequence[float]
) -> tuple[str, NDArray[np.float64]]:
    """Return the number of local steps with the least energy for each channel; for a single run, its energy.

    Parameters
    ----------
    snrs
        Signal-to-noise ratios in decibels, which replace that of ``channel``.
    bandwidths
        Bandwidths in hertz, which replace that of ``channel``.

    Returns
    -------
    tuple[str, NDArray[np.float64]]
        Title of the quantity, and its values, shape (bandwidths, snrs).

    Raises
    ------
    SettingsError
        If a single run missed the target, or fewer than two different numbers of local steps reached it.
    """
    values = np.zeros((len(bandwidths), len(snrs)))
    alone = len(measured) == 1
    for at in np.ndindex(values.shape):
        there = replace(channel, bandwidth=bandwidths[at[0]], snr_db=snrs[at[1]])
        cost = measured[0].energy_cost(devices, there) if alone else None
        chosen = None if alone else choice(measured, devices, there)
        if cost is None and chosen is None:
            raise SettingsError(
                "--map needs a single run that reached the target, or at least two such runs with different "
                "algorithm.local_steps; give more runs, or an easier target"
            )
        values[at] = cost.energy if cost is not None else chosen.best  # type: ignore[union-attr]
    return ("Energy of all clients (J)" if alone else "Local steps that take the least energy"), values
