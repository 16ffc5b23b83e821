"""Assignment of given optima to runs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from fenchel.common.data.catalogue import CATALOGUE
from fenchel.common.errors import SettingsError
from fenchel.report import summary
from fenchel.report.files import flat
from fenchel.report.run import Run

_NO_MATTER = ("objective.dtype", "objective.device", "objective.initial", "data.client_tests")
"""Settings in the sections ``objective`` and ``data`` that do not change the optimum of a run."""


def optima_of(runs: Sequence[Run], given: Sequence[float]) -> list[float | None]:
    """Return the optimum of each run's objective, or ``None`` if none was given.

    Parameters
    ----------
    runs
        The runs.
    given
        One optimum for each run, in order; or one for all runs, which must minimise the same objective on the same
        samples; or none.

    Raises
    ------
    SettingsError
        If the number of optima does not match, one is not finite, or one was given for different problems.
    """
    if not given:
        return [None] * len(runs)
    if (wrong := next((value for value in given if not math.isfinite(value)), None)) is not None:
        raise SettingsError(f"{wrong} is not finite; give the optimum that fenchel solve found", key="--optimum")
    if len(given) == len(runs):
        return list(given)
    each = "give --optimum once for each run, in the order of the runs"
    if len(given) > 1:
        raise SettingsError(
            f"{len(given)} values given for {len(runs)} runs; give one for all, or {each}", key="--optimum"
        )
    problems = [_problem(run) for run in runs]
    keys = dict.fromkeys(key for problem in problems for key in problem)
    differing = [key for key in keys if len({str(problem.get(key)) for problem in problems}) > 1]
    if differing:
        some = ", ".join(differing[:3]) + (", …" if len(differing) > 3 else "")
        raise SettingsError(
            f"these runs differ in their objectives or samples ({some}), so they have no common optimum; {each}",
            key="--optimum",
        )
    return [given[0]] * len(runs)


def _problem(run: Run) -> dict[str, Any]:
    """Return the settings that determine the optimum, by dotted key."""
    values = run.settings_values
    data = summary.section(values, "data")
    settings = flat({name: summary.section(values, name) for name in ("data", "objective")})
    found = {key: value for key, value in settings.items() if not key.startswith(_NO_MATTER)}
    if _follows_the_division(data):
        found["clients"] = values.get("clients")
    else:
        found = {key: value for key, value in found.items() if not key.startswith("data.partition")}
    if _is_drawn(data):
        found["seed"] = values.get("seed")
    return found


def _follows_the_division(data: Mapping[str, Any]) -> bool:
    """Return True if the set of training samples depends on the partition, for example because of holdouts."""
    partition = summary.section(data, "partition")
    return bool(
        data.get("holdout")
        or partition.get("samples")
        or partition.get("kind") == "sites"
        or data.get("imbalance")
        or data.get("name") == "own"
    )


def _is_drawn(data: Mapping[str, Any]) -> bool:
    """Return True if the training samples depend on the seed."""
    entry = CATALOGUE.get(str(data.get("name")))
    published = entry is not None and entry.test > 0
    splits = not published and data.get("test_fraction") != 0 and data.get("test_seed") is None
    return splits or data.get("samples") is not None or _follows_the_division(data)
