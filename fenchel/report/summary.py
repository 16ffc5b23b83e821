"""Totals, shares and quantiles of a run's tables: plain numbers, no presentation."""

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
from fenchel.report.run import Run

_DATE = re.compile(r"^\d{8}-\d{6}-")
_ALWAYS = ("compute", "coding", "network")  # others are shown where there was some
_KNOWN_ALWAYS = ("compute", "network")  # of a call with an answer: without a value of one its bar would be wrong
_QUANTILES = ("compute", "encryption", "network")


SHARES = (*PARTS, "unaccounted")
"""Parts of a round in order, and the rest, which none of them accounts for."""

Shares: TypeAlias = dict[str, float]
"""Seconds by :data:`SHARES`; ``waiting`` is of a round for answers that never came, of a client's calls for the slowest
client."""


@dataclass(frozen=True)
class RunTraffic:
    """Bytes of the rounds; evaluation is not counted.

    Attributes
    ----------
    payload_down, payload_up
        Of the arrays themselves, from the server and to it.
    wire_down, wire_up
        Of the frames that carried them.
    socket_down
        socket_down, socket_up: of the connections, by the operating system's account: with HTTP/2 and TLS. Nan where it
        does not say.
    """

    payload_down: float
    payload_up: float
    wire_down: float
    wire_up: float
    socket_down: float = math.nan
    socket_up: float = math.nan


@dataclass(frozen=True)
class CallCosts:
    """What the calls of one phase, or of one client, cost. Times are nan where nothing was answered.

    Attributes
    ----------
    name
        Of the phase or client.
    kind
        ``ask``, ``tell`` or ``inspect``; empty where they are mixed.
    calls, answered, late, failed, unanswered
        Number of calls, and what became of them.
    total_p50
        total_p50, total_p90, compute_p50, compute_p90, encryption_p50, encryption_p90, network_p50, network_p90:
        quantiles of seconds, of the calls that were answered.
    mean
        Mean seconds of the calls that were answered, from when they were queued until the slowest client's reply had
        been taken, too.
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
        """Mean seconds of a call without the wait for the slowest client."""
        return total_of(self.mean) - self.mean["waiting"]


def drawn_figures(run: Run) -> list[str]:
    """Return the figures that some round has a value of; the others are known at the end at most."""
    metrics = run.metrics_table
    return [name for name in columns.figures(metrics) if np.isfinite(column(metrics, name)).any()]


def shown(shares: Shares) -> Shares:
    """Return the shares that readers see: waiting, encryption and the like only where there was some."""
    return {part: seconds for part, seconds in shares.items() if seconds or part in _ALWAYS}


def time_columns(metrics: pa.Table) -> dict[str, Floats]:
    """Return what each round's seconds were spent on, by :data:`SHARES`."""
    accounted = {part: np.nan_to_num(column(metrics, f"{part}_s")) for part in SHARES}
    # Less than nothing is left where a client claims more time than there was.
    return accounted | {"unaccounted": np.maximum(accounted["unaccounted"], 0.0)}


def network_split(metrics: pa.Table) -> tuple[float, float]:
    """Return the parts of all rounds' seconds on the network: serialisation and propagation; nan if not known."""
    names = ("serialisation_s", "propagation_s")
    serialisation, propagation = (column(metrics, name) for name in names)
    known = np.isfinite(serialisation)
    if not known.any():
        return math.nan, math.nan
    return float(serialisation[known].sum()), float(propagation[known].sum())


def time_split(metrics: pa.Table) -> Shares:
    """Return what the seconds of all rounds were spent on."""
    return {part: float(values.sum()) for part, values in time_columns(metrics).items()}


def total_of(shares: Shares) -> float:
    """Return the seconds of all shares together."""
    return sum(shares.values())


def rounds_seconds(run: Run) -> float:
    """Return the seconds of all rounds, as if clients had been there when they were asked."""
    return total_of(time_split(run.steady.metrics))


def idle_seconds(metrics: pa.Table) -> float:
    """Return how long the average client waited for the slowest one, over all rounds; nan if not known."""
    return _of_known(np.sum, column(metrics, "idle_s"))


def traffic(metrics: pa.Table) -> RunTraffic:
    """Return the bytes of all rounds."""
    names = ("bytes_down", "bytes_up", "wire_down", "wire_up")
    sockets = (column(metrics, name) for name in ("socket_down", "socket_up"))
    return RunTraffic(
        *(float(np.nansum(column(metrics, name))) for name in names),
        # Some rounds alone would pass for all.
        *(float(values.sum()) if values.size else math.nan for values in sockets),
    )


def own_calls(calls: pa.Table) -> pa.Table:
    """Return the calls of the rounds themselves, without those of the evaluation."""
    return calls.filter(pc.not_equal(calls["kind"], "inspect")) if "kind" in calls.column_names else calls


def costs_by(calls: pa.Table, key: str) -> list[CallCosts]:
    """Return the costs of the calls for each value of a text column, the slowest first.

    Parameters
    ----------
    calls
        Rows of ``calls.parquet``.
    """
    if not calls.num_rows or key not in calls.column_names:
        return []
    names, group = columns.grouped(calls, key)
    rows_of_each = np.split(np.argsort(group, kind="stable"), np.cumsum(np.bincount(group))[:-1])
    outcome, kind = (np.asarray(calls[name].to_pylist(), dtype=object) for name in ("outcome", "kind"))
    total, over = column(calls, "total_s"), columns.until_over(calls)
    spent = {part: column(calls, f"{part}_s") for part in _KNOWN_ALWAYS}
    for part in PARTS:
        if part not in spent:
            spent[part] = np.sum([np.nan_to_num(column(calls, name)) for name in columns_of(part)], axis=0)
    found = []
    for name, rows in zip(names, rows_of_each, strict=True):
        kinds = set(kind[rows])
        mine = outcome[rows]
        answered = rows[np.isin(mine, ["counted", "told"]) & np.isfinite(total[rows])]
        mean = {part: _of_known(np.mean, spent[part][answered]) for part in PARTS}
        rest = max(_of_known(np.mean, over[answered]) - total_of(mean), 0.0)
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
                answered=int(np.isin(mine, ["counted", "told", "promised"]).sum()),
                late=int((mine == "late").sum()),
                failed=int((mine == "failed").sum()),
                unanswered=int((mine == "unanswered").sum()),
                **quantiles,
                mean=mean | {"unaccounted": rest},
            )
        )
    # Those that never answered (nan) are the slowest of all.
    return sorted(found, key=lambda costs: (-np.nan_to_num(costs.total_p50, nan=math.inf), costs.name))


def differing_settings(runs: Sequence[Run]) -> dict[str, list[Any]]:
    """Return the settings that are not the same in all runs: dotted key to each run's value.

    The name is left out, since it tells runs apart already; a key that a run does not have is ``None`` there.
    """
    each = [flat(run.settings_values) for run in runs]
    keys = dict.fromkeys(key for values in each for key in values)
    table = {key: [values.get(key) for values in each] for key in keys if key != "name"}
    return {key: values for key, values in table.items() if any(value != values[0] for value in values)}


def headline(run: Run) -> dict[str, Any]:
    """Return the few settings that tell what a run is."""
    values = run.settings_values
    named = {part: values.get(part) for part in ("algorithm", "data", "objective")}
    names = {part: section if isinstance(section, dict) else {} for part, section in named.items()}
    return {
        "algorithm": names["algorithm"].get("name"),
        "data": names["data"].get("name"),
        "objective": names["objective"].get("kind"),
        "clients": values.get("clients"),
        "rounds": values.get("rounds"),
        "seed": values.get("seed"),
    }


def labels(runs: Sequence[Run]) -> list[str]:
    """Return a name for each run, the shortest that no other has: of its settings, its id without the date, its id."""
    given = [str(run.settings_values.get("name") or run.id) for run in runs]
    undated = [_DATE.sub("", run.id) for run in runs]
    return [
        name if given.count(name) == 1 else short if undated.count(short) == 1 else run.id
        for name, short, run in zip(given, undated, runs, strict=True)
    ]


def flat(values: Mapping[Any, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested settings by dotted keys."""
    found: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, dict) and value:
            found |= flat(value, f"{prefix}{key}.")
        else:
            found[f"{prefix}{key}"] = value
    return found


def _of_known(reduce: Callable[..., Any], values: Floats, *arguments: float) -> float:
    """Return what a function such as ``np.sum`` makes of the known values; nan if none is known."""
    known = values[np.isfinite(values)]
    return float(reduce(known, *arguments)) if known.size else math.nan
