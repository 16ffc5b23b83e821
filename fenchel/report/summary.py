"""Totals, shares and quantiles of a run's tables, as plain numbers."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fenchel.common.storage.call_columns import columns_of
from fenchel.common.storage.round_columns import PARTS
from fenchel.report import columns
from fenchel.report.columns import Floats, column
from fenchel.report.files import flat
from fenchel.report.run import Run

_DATE = re.compile(r"^\d{8}-\d{6}-")
_ALWAYS = ("compute", "coding", "network")  # parts of the time that are always displayed; other parts only if not 0
_KNOWN_ALWAYS = ("compute", "network")  # parts of the time that every answered call has
_QUANTILES = ("compute", "encryption", "network")


SHARES = (*PARTS, "unaccounted")
"""Parts of a round in order, and the unaccounted time."""

Shares: TypeAlias = dict[str, float]
"""Seconds by :data:`SHARES`. For a round, ``waiting`` is the wait for replies that never came; for a client's calls,
``waiting`` is the wait for the slowest client."""


@dataclass(frozen=True)
class CallCosts:
    """Costs of the calls of one phase or one client. Times are nan without answered calls.

    Attributes
    ----------
    name
        Name of the phase or client.
    kind
        ``ask``, ``tell`` or ``inspect``; empty if mixed.
    calls, answered, late, failed, unanswered
        Number of calls, in total and by outcome.
    total_p50, total_p90, compute_p50, compute_p90, encryption_p50, encryption_p90, network_p50, network_p90
        Medians and 90th percentiles over answered calls, in seconds.
    mean
        Mean seconds of the parts of answered calls, including the wait for the slowest client.
    """

    name: str
    kind: str
    calls: int
    answered: int
    late: int
    failed: int
    unanswered: int
    total_p50: float
    total_p90: float
    compute_p50: float
    compute_p90: float
    encryption_p50: float
    encryption_p90: float
    network_p50: float
    network_p90: float
    mean: Shares

    @property
    def busy(self) -> float:
        """Mean seconds of a call, without the wait for the slowest client."""
        return sum(self.mean.values()) - self.mean["waiting"]


def privacy_guarantee(run: Run) -> str:
    """Return the differential privacy that a run guarantees, with its delta; empty without any, or if not known yet."""
    given = run.settings_values.get("differential_privacy")
    if not isinstance(given, dict):
        return ""
    if given.get("mechanism") == "paper":
        return "none, because mechanism: paper assumes a wrong sensitivity"
    accountant = str(given.get("accountant", "pld-wor"))[:3]
    found = run.figures.get(f"epsilon_{accountant}", math.nan)
    if math.isnan(found):
        return ""
    return (
        f"epsilon {found:.4g} at delta {given.get('delta')}, by {accountant.upper()}; other epsilons are for comparison"
    )


def drawn_figures(run: Run) -> list[str]:
    """Return the figures with a value in any round."""
    metrics = run.metrics_table
    return [name for name in columns.figures(metrics) if np.isfinite(column(metrics, name)).any()]


def shown(shares: Shares) -> Shares:
    """Return the shares to be shown, which are those in :data:`_ALWAYS` and others that are not 0."""
    return {part: seconds for part, seconds in shares.items() if seconds or part in _ALWAYS}


def time_columns(metrics: pa.Table) -> dict[str, Floats]:
    """Return the seconds of each round by :data:`SHARES`."""
    accounted = {part: np.nan_to_num(column(metrics, f"{part}_s")) for part in SHARES}
    # Clip the remainder, which is negative if a client reports more time than has passed.
    return accounted | {"unaccounted": np.maximum(accounted["unaccounted"], 0.0)}


def network_split(metrics: pa.Table) -> tuple[float, float]:
    """Return the seconds of serialisation and of propagation of all rounds; nan if unknown."""
    serialisation, propagation = (column(metrics, name) for name in ("serialisation_s", "propagation_s"))
    known = np.isfinite(serialisation)
    return _of_known(np.sum, serialisation), _of_known(np.sum, propagation[known])


def time_split(metrics: pa.Table) -> Shares:
    """Return the seconds of all rounds together by :data:`SHARES`."""
    return {part: float(values.sum()) for part, values in time_columns(metrics).items()}


def rounds_seconds(run: Run) -> float:
    """Return the seconds of all rounds, without the time of reconnection after restarts of the server."""
    return sum(time_split(run.steady.metrics).values())


def idle_seconds(metrics: pa.Table) -> float:
    """Return the sum over rounds of the mean seconds that clients waited for the slowest one; nan if unknown."""
    return _of_known(np.sum, column(metrics, "idle_s"))


def own_calls(calls: pa.Table) -> pa.Table:
    """Return the calls of the rounds, without calls of the evaluation."""
    return calls.filter(pc.field("kind") != "inspect")


def costs_by(calls: pa.Table, key: str) -> list[CallCosts]:
    """Return the costs of the calls for each value of a text column, the slowest first.

    Parameters
    ----------
    calls
        Rows of ``calls.parquet``.
    """
    if not calls.num_rows:
        return []
    names, group = columns.grouped(calls, key)
    rows_of_each = np.split(np.argsort(group, kind="stable"), np.cumsum(np.bincount(group))[:-1])
    outcome, kind = (np.asarray(calls[name].to_pylist(), dtype=object) for name in ("outcome", "kind"))
    total, over = column(calls, "total_s"), columns.until_over(calls)
    spent = {
        part: column(calls, f"{part}_s")
        if part in _KNOWN_ALWAYS
        else np.sum([np.nan_to_num(column(calls, name)) for name in columns_of(part)], axis=0)
        for part in PARTS
    }
    found = []
    for name, rows in zip(names, rows_of_each, strict=True):
        kinds = set(kind[rows])
        mine = outcome[rows]
        answered = rows[np.isin(mine, ["counted", "confirmed"]) & np.isfinite(total[rows])]
        mean = {part: _of_known(np.mean, spent[part][answered]) for part in PARTS}
        rest = max(_of_known(np.mean, over[answered]) - sum(mean.values()), 0.0)
        quantiles = {
            f"{what}_p{level}": _of_known(np.quantile, values[answered], level / 100)
            for what, values in {"total": total, **{part: spent[part] for part in _QUANTILES}}.items()
            for level in (50, 90)
        }
        found.append(
            CallCosts(
                name=name,
                kind=kinds.pop() if len(kinds) == 1 else "",
                calls=rows.size,
                answered=int(np.isin(mine, ["counted", "confirmed", "promised"]).sum()),
                late=int((mine == "late").sum()),
                failed=int((mine == "failed").sum()),
                unanswered=int((mine == "unanswered").sum()),
                **quantiles,
                mean=mean | {"unaccounted": rest},
            )
        )
    # Clients without a reply have time nan and count as the slowest.
    return sorted(found, key=lambda costs: (-np.nan_to_num(costs.total_p50, nan=math.inf), costs.name))


def time_by_client(run: Run) -> tuple[list[str], dict[str, Floats]]:
    """Return the clients that answered, those with the slowest work first, and their mean seconds of a call.

    The seconds are by :data:`SHARES`, each of shape (clients,). Evaluation is left out.
    """
    clients = [one for one in costs_by(own_calls(run.steady.calls), "client") if one.answered]
    clients.sort(key=lambda one: -one.busy)
    means = {part: np.array([one.mean[part] for one in clients], np.float64) for part in SHARES}
    return [one.name for one in clients], means


def differing_settings(runs: Sequence[Run]) -> dict[str, list[Any]]:
    """Return the values of all runs for each dotted key of the settings in which they differ.

    The name is left out. The value is ``None`` for a run without the key.
    """
    each = [flat(run.settings_values) for run in runs]
    keys = dict.fromkeys(key for values in each for key in values)
    table = {key: [values.get(key) for values in each] for key in keys if key != "name"}
    return {key: values for key, values in table.items() if any(value != values[0] for value in values)}


def headline(run: Run) -> dict[str, Any]:
    """Return the main settings of a run."""
    values = run.settings_values
    return {
        "algorithm": section(values, "algorithm").get("name"),
        "data": section(values, "data").get("name"),
        "objective": section(values, "objective").get("kind"),
        "clients": values.get("clients"),
        "rounds": values.get("rounds"),
        "seed": values.get("seed"),
    }


def section(values: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return a section of the settings, empty if the settings have no such section."""
    found = values.get(name)
    return found if isinstance(found, dict) else {}


def labels(runs: Sequence[Run]) -> list[str]:
    """Return a name for each run: the first unique one of its name in the settings, its id without the date, its id."""
    given = [str(run.settings_values.get("name") or run.id) for run in runs]
    undated = [_DATE.sub("", run.id) for run in runs]
    return [
        name if given.count(name) == 1 else short if undated.count(short) == 1 else run.id
        for name, short, run in zip(given, undated, runs, strict=True)
    ]


def _of_known(reduce: Callable[..., Any], values: Floats, *arguments: float) -> float:
    """Apply a function such as ``np.sum`` to the known values; return nan if none is known."""
    known = values[np.isfinite(values)]
    return float(reduce(known, *arguments)) if known.size else math.nan
