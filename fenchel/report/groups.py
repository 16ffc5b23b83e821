"""Groups of runs that differ only in their seed, with means over seeds and confidence intervals."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fenchel.report import figure_names, summary
from fenchel.report.columns import Floats
from fenchel.report.curves import Curves, curves_of_all, known_figures
from fenchel.report.files import flat
from fenchel.report.formatting import UNKNOWN, figure_text
from fenchel.report.run import Run

LEVEL = 0.95
"""Confidence level of all intervals."""

INTERVALS = f"Mean ± half-width of the {LEVEL:.0%} confidence interval over seeds (Student's t)."
"""Explanation of the means."""

_IN_A_NAME = 3  # largest number of settings in the name of a group
_SHORT = 24  # largest number of characters of a setting's value in a name


@dataclass(frozen=True)
class Estimate:
    """Mean of a figure over independent seeds.

    Attributes
    ----------
    mean
        Mean over the seeds.
    half_width
        Half-width of the confidence interval; nan with fewer than two seeds.
    seeds
        Number of seeds.
    limits
        Smallest and largest possible value of the figure, at which the interval is cut.
    """

    mean: float
    half_width: float
    seeds: int
    limits: tuple[float, float] = (-math.inf, math.inf)

    @property
    def low(self) -> float:
        """Lower end of the interval."""
        return float(np.clip(self.mean - self.half_width, *self.limits))

    @property
    def high(self) -> float:
        """Upper end of the interval."""
        return float(np.clip(self.mean + self.half_width, *self.limits))

    def text(self, figure: str) -> str:
        """Return the mean of a figure as text, with the half-width if it is known."""
        if not self.seeds:
            return UNKNOWN
        mean, half_width = figure_text(figure, self.mean), figure_text(figure, self.half_width)
        if not math.isfinite(self.half_width):
            return mean
        if mean.replace(".", "").removeprefix("-").isdecimal() and self.half_width < 1:
            decimals = len(mean.partition(".")[2])
            half_width = rounded if float(rounded := f"{self.half_width:.{decimals}f}") else half_width
        return f"{mean} ± {half_width}"


@dataclass(frozen=True)
class SeedGroup:
    """Runs that differ only in their seed.

    Attributes
    ----------
    name
        Unique name: that of the runs, or the settings in which the groups differ.
    runs
        All runs of the group.
    counted
        Runs in the means: the last completed run of each seed.
    """

    name: str
    runs: tuple[Run, ...]
    counted: tuple[Run, ...]

    def estimate(self, figure: str) -> Estimate:
        """Return the mean of a final figure over the seeds for which it is known; infinite if any of them diverged."""
        values = [run.figures[figure] for run in self.counted if figure in run.figures]
        return estimate([value for value in values if not math.isnan(value)], self.limits(figure))

    def limits(self, figure: str) -> tuple[float, float]:
        """Return the smallest and largest possible value of a figure in these runs."""
        objective = self.runs[0].settings_values.get("objective")
        own = isinstance(objective, Mapping) and objective.get("kind") == "own"
        return figure_names.range_of(figure, signed_losses=own)

    @property
    def estimates(self) -> dict[str, Estimate]:
        """Means of all final figures that are known for any seed."""
        return {
            name: self.estimate(name) for name in dict.fromkeys(name for run in self.counted for name in run.figures)
        }

    @property
    def seeds_text(self) -> str:
        """Number of seeds in the means as text, with the total if some are excluded."""
        seeds = len({_seed(run) for run in self.runs})
        return f"{seeds}" if len(self.counted) == seeds else f"{len(self.counted)} of {seeds}"


@dataclass(frozen=True)
class Band:
    """Mean curves of a group with confidence intervals.

    Attributes
    ----------
    curves
        Means over the seeds, against mean costs.
    low, high
        Ends of the intervals by figure; empty with fewer than two seeds.
    """

    curves: Curves
    low: Mapping[str, Floats]
    high: Mapping[str, Floats]


def estimate(values: Sequence[float], limits: tuple[float, float] = (-math.inf, math.inf)) -> Estimate:
    """Return the mean of values between limits and the half-width of its confidence interval by Student's t."""
    if not values:
        return Estimate(math.nan, math.nan, 0, limits)
    mean, half_width = _interval(np.array(values, np.float64)[:, None])
    return Estimate(float(mean[0]), float(half_width[0]), len(values), limits)


def groups_of(runs: Sequence[Run]) -> list[SeedGroup]:
    """Return the groups of runs, in the order of their first runs; empty if no two runs differ only in their seed."""
    found: dict[str, list[Run]] = {}
    for run in runs:
        found.setdefault(_key(run), []).append(run)
    if all(len({_seed(run) for run in same}) < 2 for same in found.values()):
        return []
    members = list(found.values())
    names = _names([same[0] for same in members])
    return [SeedGroup(name, tuple(same), _counted(same)) for name, same in zip(names, members, strict=True)]


def bands_of(groups: Sequence[SeedGroup], runs: Sequence[Run], optima: Sequence[float | None] = ()) -> list[Band]:
    """Return the mean curves of groups. ``optima`` has an optimum for each run, or is empty.

    A group without a completed run has the curves of its first run, without intervals.
    """
    curves = dict(zip(map(id, runs), curves_of_all(runs, optima), strict=True))
    return [_band([curves[id(run)] for run in group.counted or group.runs[:1]], group.limits) for group in groups]


def run_names(groups: Sequence[SeedGroup], runs: Sequence[Run]) -> list[str]:
    """Return a name for each run: its group and seed if they are unique, otherwise its label."""
    group_of = {id(run): group for group in groups for run in group.runs}
    names = [f"{group_of[id(run)].name}, seed {_seed(run)}" if id(run) in group_of else "" for run in runs]
    given = summary.labels(runs)
    return [name if name and names.count(name) == 1 else label for name, label in zip(names, given, strict=True)]


def _key(run: Run) -> str:
    """Return the settings without the seed and without null values, as text."""
    values = {key: value for key, value in flat(run.settings_values).items() if value is not None}
    return repr(sorted((key, value) for key, value in values.items() if key != "seed"))


def _seed(run: Run) -> Any:
    return run.settings_values.get("seed")


def _counted(runs: Sequence[Run]) -> tuple[Run, ...]:
    """Return the last completed run of each seed, as repetitions of a seed are not independent."""
    return tuple({_seed(run): run for run in runs if run.completed}.values())


def differing(firsts: Sequence[Run]) -> dict[str, list[Any]]:
    """Return the differing settings of the first runs of groups, without the seed, which differs within groups."""
    return {key: values for key, values in summary.differing_settings(firsts).items() if key != "seed"}


def _names(firsts: Sequence[Run]) -> list[str]:
    """Return a name for each group: its first run's, if these are unique, else the settings in which groups differ."""
    labels = [str(run.settings_values.get("name") or run.id) for run in firsts]
    if len(set(labels)) == len(labels):
        return labels
    short = {
        key.rpartition(".")[2] if key != "algorithm.name" else "": values
        for key, values in differing(firsts).items()
        if all(len(str(value)) <= _SHORT for value in values)
    }
    chosen = dict(list(short.items())[:_IN_A_NAME])
    names = [
        ", ".join(f"{key} {values[index]}".strip() for key, values in chosen.items() if values[index] is not None)
        or ", ".join(f"{key} null".strip() for key in chosen)
        for index in range(len(firsts))
    ]
    return names if len(set(names)) == len(names) else summary.labels(firsts)


def _band(curves: Sequence[Curves], limits: Callable[[str], tuple[float, float]]) -> Band:
    """Return the means of curves over the rounds that are common to all, with intervals cut at each figure's limits."""
    if len(curves) == 1:
        return Band(curves[0], {}, {})
    rounds = [each.costs["round"] for each in curves]
    common = rounds[0]
    for other in rounds[1:]:
        common = np.intersect1d(common, other)
    rows = [np.flatnonzero(np.isin(each, common)) for each in rounds]
    costs = {
        name: np.mean([each.costs[name][row] for each, row in zip(curves, rows, strict=True)], axis=0)
        for name in curves[0].costs
        if all(name in each.costs for each in curves)
    }
    epsilons = {each.epsilon for each in curves}
    epsilon = epsilons.pop() if len(epsilons) == 1 else ""
    if not epsilon:
        costs.pop("epsilon", None)
    figures, low, high = {}, {}, {}
    for name in known_figures(curves):
        if all(name in each.figures for each in curves):
            values = np.array([each.figures[name][row] for each, row in zip(curves, rows, strict=True)])
            mean, half_width = _interval(values)  # both are nan in rounds in which a seed lacks the figure
            low[name], high[name] = (np.clip(end, *limits(name)) for end in (mean - half_width, mean + half_width))
            figures[name] = mean
    return Band(Curves(costs, epsilon, figures), low, high)


def _interval(values: Floats) -> tuple[Floats, Floats]:
    """Return means over the first axis and half-widths of intervals, which are nan with fewer than two values."""
    count = len(values)
    mean = np.asarray(values.mean(axis=0), np.float64)
    if count < 2:
        return mean, np.full_like(mean, math.nan)
    from scipy.special import stdtrit  # quantile of Student's t distribution; importing scipy.stats would take a second

    quantile = float(stdtrit(count - 1, (1 + LEVEL) / 2))
    with np.errstate(invalid="ignore"):  # the deviation of infinite values is nan
        return mean, np.asarray(quantile * values.std(axis=0, ddof=1) / math.sqrt(count), np.float64)
