"""CSV files with all data of the charts of the HTML report, for other programs."""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from fenchel.common.storage.call_columns import STAGES
from fenchel.report import columns, summary
from fenchel.report.curves import Curves, curves_of_all, known_figures
from fenchel.report.formatting import printable
from fenchel.report.groups import groups_of, run_names
from fenchel.report.latency import histograms
from fenchel.report.render.output import output_at
from fenchel.report.run import Run
from fenchel.report.traffic import LAYERS, by_layer, carried_by
from fenchel.report.waiting import waiting_of
from fenchel.report.wall_time import wall_of

Row = Iterable[Any]
_COSTS = {"seconds": "seconds_so_far_s", "bytes": "wire_so_far_bytes", "socket": "socket_so_far_bytes"}
_DIRECTIONS = tuple(f"{layer}_{way}_bytes" for layer in LAYERS for way in ("down", "up"))


def write_tables(runs: Sequence[Run], folder: Path, optima: Sequence[float | None] = ()) -> list[Path]:
    """Write the tables, each with a header row and a column with the name of the run.

    The headers contain the units: ``_s`` for seconds and ``_bytes`` for bytes. Shares lie between 0 and 1. A cell of
    an unknown value is empty.

    Parameters
    ----------
    folder
        Folder of the CSV files, created if missing. Existing files are overwritten.
    optima
        Minimum of each run's objective (:mod:`fenchel.report.optimum`), which adds the column ``optimality_gap`` to
        ``curves.csv``.

    Returns
    -------
    list[Path]
        Paths of the written files. Only several runs have ``settings.csv``; only runs that differ in nothing but
        their seed have ``seeds.csv``.
    """
    groups = groups_of(runs)
    names = run_names(groups, runs)
    curves = curves_of_all(runs, optima)
    figures = known_figures(curves)
    tables: dict[str, tuple[Sequence[str], Iterable[Row]]] = {
        "curves": (
            ("run", "round", *_COSTS.values(), *figures),
            (row for name, each in zip(names, curves, strict=True) for row in _curves(name, each, figures)),
        )
    }
    for table, (heads, rows_of) in _OF_A_RUN.items():
        tables[table] = (("run", *heads), _of_all(names, runs, rows_of))
    if groups:
        tables["seeds"] = (
            ("group", "figure", "seeds", "mean", "low", "high"),
            (
                (group.name, figure, one.seeds, one.mean, one.low, one.high)
                for group in groups
                for figure, one in group.estimates.items()
            ),
        )
    if len(runs) > 1:
        differing = summary.differing_settings(runs)
        tables["settings"] = (("setting", *names), ((key, *values) for key, values in differing.items()))
    return [_write(folder / f"{name}.csv", heads, rows) for name, (heads, rows) in tables.items()]


def _curves(name: str, curves: Curves, figures: Sequence[str]) -> Iterator[Row]:
    for t, number in enumerate(curves.costs["round"]):
        costs = (curves.costs[cost][t] if cost in curves.costs else math.nan for cost in _COSTS)
        values = (curves.figures[figure][t] if figure in curves.figures else math.nan for figure in figures)
        yield name, int(number), *costs, *values


def _of_all(names: Sequence[str], runs: Sequence[Run], rows_of: Callable[[Run], Iterator[Row]]) -> Iterator[Row]:
    for name, run in zip(names, runs, strict=True):
        for row in rows_of(run):
            yield name, *row


def _wall(run: Run) -> Iterator[Row]:
    wall = wall_of(run)
    yield run.state, run.rounds, wall.total, *asdict(wall).values(), summary.idle_seconds(run.steady.metrics)


def _times(run: Run) -> Iterator[Row]:
    metrics = run.steady.metrics
    whole = [columns.column(metrics, name) for name in ("round", "evaluation_s", "idle_s", "seconds")]
    for number, *values in zip(*whole, *summary.time_columns(metrics).values(), strict=True):
        yield int(number), *values


def _stages(run: Run) -> Iterator[Row]:
    calls = columns.answered(run.steady.calls)
    calls = calls.filter(np.isfinite(columns.column(calls, "total_s")))
    if not calls.num_rows:
        return
    (clients, client), (phases, phase) = (columns.grouped(calls, key) for key in ("client", "phase"))
    pairs, pair, counts = np.unique(client * len(phases) + phase, return_inverse=True, return_counts=True)
    seconds = [*(columns.column(calls, stage.column) for stage in STAGES), columns.until_over(calls)]
    means = np.stack([np.bincount(pair, weights=values) / counts for values in seconds], axis=1)
    names = [(clients[number // len(phases)], phases[number % len(phases)]) for number in pairs]
    for (client_name, phase_name), count, (*stages, whole) in sorted(
        zip(names, counts, means, strict=True), key=lambda row: row[0]
    ):
        yield client_name, phase_name, count, *stages, whole - np.nansum(stages), whole


def _bins(run: Run) -> Iterator[Row]:
    for one in histograms(run.steady.calls):
        for least, most, count in zip(one.edges, one.edges[1:], one.counts, strict=False):
            yield one.phase, one.what, float(f"{least:.6g}"), float(f"{most:.6g}"), count


def _quantiles(run: Run) -> Iterator[Row]:
    for one in histograms(run.steady.calls):
        yield one.phase, one.what, one.counts.sum(), one.p50, one.p90, one.p99


def _waiting(run: Run) -> Iterator[Row]:
    found = waiting_of(run.steady.calls)
    for row, client in enumerate(found.clients):
        for column, t in enumerate(found.rounds):
            took, missed = found.took[row, column], found.missed[row, column]
            if math.isfinite(took) or missed:
                yield client, t, took, found.waited[row, column], missed


def _traffic(run: Run) -> Iterator[Row]:
    metrics = run.metrics_table
    counts = [values for ways in by_layer(metrics).values() for values in ways.values()]
    for number, *values in zip(columns.column(metrics, "round"), *counts, strict=True):
        yield int(number), *values


def _carried(key: str, run: Run) -> Iterator[Row]:
    found = carried_by(run.calls_table, key)
    counts = [values for ways in found.layers.values() for values in ways.values()]
    yield from zip(found.names, found.calls, *counts, strict=True)


_WALL = ("wall_s", "setup_s", "rounds_s", "evaluation_s", "rest_s", "paused_s", "idle_s")
_MEANS = (*(f"mean_{stage.column}" for stage in STAGES), "mean_remainder_s", "mean_whole_s")
_PARTS = ("evaluation_s", "idle_s", "seconds_s", *(f"{part}_s" for part in summary.SHARES))
_OF_A_RUN: dict[str, tuple[Sequence[str], Callable[[Run], Iterator[Row]]]] = {
    "time-by-run": (("state", "rounds", *_WALL), _wall),
    "time-by-round": (("round", *_PARTS), _times),
    "time-by-client": (("client", "phase", "answered_calls", *_MEANS), _stages),
    "latency": (("phase", "latency", "from_s", "to_s", "calls"), _bins),
    "latency-quantiles": (("phase", "latency", "calls", "p50_s", "p90_s", "p99_s"), _quantiles),
    "waiting": (("client", "round", "took_s", "waited_s", "missed_calls"), _waiting),
    "bytes-by-round": (("round", *_DIRECTIONS), _traffic),
    "bytes-by-phase": (("phase", "calls", *_DIRECTIONS), partial(_carried, "phase")),
    "bytes-by-client": (("client", "calls", *_DIRECTIONS), partial(_carried, "client")),
}
"""Headers and rows of the tables on single runs."""


def _write(path: Path, heads: Sequence[str], rows: Iterable[Row]) -> Path:
    with output_at(path), path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow([printable(head) for head in heads])
        writer.writerows([_cell(value) for value in row] for row in rows)
    return path


def _cell(value: Any) -> Any:
    if value is None:
        return ""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, float):
        return repr(float(value)) if math.isfinite(value) else ""
    return value
