"""Runs that differ in their number of local steps: what each takes to a target, and which number is the best."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fenchel.common.errors import SettingsError
from fenchel.report.energy.effort import Effort, Expense, effort_of, expense, rounds_to
from fenchel.report.energy.least_energy import best_local_steps, best_of_fit, between, fitted
from fenchel.report.energy.model import Channel, Devices
from fenchel.report.run import Run
from fenchel.report.summary import drawn_figures

_TARGETED = ("client_accuracy_worst", "test_accuracy")


@dataclass(frozen=True)
class Measured:
    """A run, and what its clients did until it reached the target.

    Attributes
    ----------
    run
        The run.
    local_steps
        Tau; ``None`` where clients go by epochs.
    effort
        Of all rounds if there is no target; ``None`` if it was never reached.
    """

    run: Run
    local_steps: int | None
    effort: Effort | None

    @classmethod
    def of(cls, run: Run, target: float | None = None, figure: str | None = None, macs: int | None = None) -> Measured:
        """Read a run.

        Parameters
        ----------
        target, figure
            What counts is the rounds until this figure is as good as the target
            (:func:`fenchel.report.energy.effort.rounds_to`); ``None``: the accuracy of the worst client, if it is
            known, else that on the test set.
        """
        rounds = None
        if target is not None:
            known = drawn_figures(run)
            found = figure or next((name for name in _TARGETED if name in known), _TARGETED[-1])
            rounds = rounds_to(run, found, target)
        steps = getattr(run.settings.algorithm, "local_steps", None)
        missed = target is not None and rounds is None
        return cls(run, steps, None if missed else effort_of(run, rounds, macs))

    def expense(self, devices: Devices, channel: Channel) -> Expense | None:
        """Return what that costs; ``None`` if the target was never reached."""
        return None if self.effort is None else expense(self.effort, devices, channel)


@dataclass(frozen=True)
class Fit:
    """The fit ``S(tau) = a + b / tau`` of the rounds, and the best tau if it were true.

    Attributes
    ----------
    off
        The largest difference between fit and measured rounds.
    """

    a: float
    b: float
    off: float
    best: float


@dataclass(frozen=True)
class LeastEnergy:
    """The number of local steps that takes the least energy.

    Attributes
    ----------
    best
        tau*.
    rounds, energy_of_round
        Means over the runs with each number of local steps.
    fit
        ``None`` with less than three numbers, or where rounds do not fall with tau.
    """

    best: int
    rounds: dict[int, float]
    energy_of_round: dict[int, float]
    fit: Fit | None


def choice(measured: Sequence[Measured], devices: Devices, channel: Channel) -> LeastEnergy | None:
    """Choose among the runs that reached the target; ``None`` if they do not differ in their local steps."""
    priced: dict[int, list[tuple[Effort, Expense]]] = {}
    for each in measured:
        if each.effort is not None and each.local_steps is not None:
            cost = expense(each.effort, devices, channel)
            priced.setdefault(each.local_steps, []).append((each.effort, cost))
    if len(priced) < 2:
        return None
    groups = dict(sorted(priced.items()))
    rounds = {tau: float(np.mean([effort.rounds for effort, _ in group])) for tau, group in groups.items()}
    of_round = {
        tau: sum(cost.energy for _, cost in group) / sum(effort.rounds for effort, _ in group)
        for tau, group in groups.items()
    }
    best = best_local_steps(rounds, lambda tau: between(of_round, tau))
    return LeastEnergy(best, rounds, of_round, _fit(groups, rounds))


def _fit(groups: dict[int, list[tuple[Effort, Expense]]], rounds: dict[int, float]) -> Fit | None:
    each = [(tau, effort, cost) for tau, group in groups.items() for effort, cost in group]
    steps = sum(tau * effort.rounds for tau, effort, _ in each)
    step = sum(cost.computing for *_, cost in each) / steps
    upload = sum(cost.sending for *_, cost in each) / sum(effort.rounds for _, effort, _ in each)
    if len(groups) < 3 or step == 0:
        return None
    a, b = fitted(rounds)
    if min(a, b) <= 0:
        return None
    off = max(abs(a + b / tau - count) for tau, count in rounds.items())
    return Fit(a, b, off, best_of_fit(a, b, upload / step))


def over_channels(
    measured: Sequence[Measured], devices: Devices, channel: Channel, snrs: Sequence[float], bandwidths: Sequence[float]
) -> tuple[str, NDArray[np.float64]]:
    """Return the best number of local steps for each channel; of a single run its energy.

    Returns
    -------
    tuple[str, NDArray[np.float64]]
        Shape (bandwidths, snrs).
    """
    values = np.zeros((len(bandwidths), len(snrs)))
    alone = len(measured) == 1
    for at in np.ndindex(values.shape):
        there = replace(channel, bandwidth=bandwidths[at[0]], snr_db=snrs[at[1]])
        cost = measured[0].expense(devices, there) if alone else None
        chosen = None if alone else choice(measured, devices, there)
        if cost is None and chosen is None:
            raise SettingsError(
                "--map needs one run that reaches the target, or at least two with different algorithm.local_steps"
            )
        values[at] = cost.energy if cost is not None else chosen.best  # type: ignore[union-attr]
    return ("Energy of all clients (J)" if alone else "Local steps that take the least energy"), values
