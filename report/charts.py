"""The numbers behind the charts of the page, thinned so that long runs stay light to load."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from report import columns, digest
from report.digest import Floats
from report.run import Run

_POINTS = 400  # of one curve; a screen shows no more
_BARS = 120


def chart_data(runs: Sequence[Run], names: Sequence[str]) -> dict[str, Any]:
    """Return what the page's script draws, as values that JSON knows.

    Parameters
    ----------
    names
        A short name for each run.
    """
    return {
        "panels": panels(runs),
        "runs": [
            {
                "name": name,
                "curves": _curves(run),
                "time": _time(run),
                "traffic": _traffic(run),
                "spread": _spread(run),
            }
            for run, name in zip(runs, names, strict=True)
        ],
    }


def panels(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Return the charts of curves: title, and the figure of each split (or the one figure) that is drawn in it.

    Figures that no run knows are left out.
    """
    drawn = [digest.drawn_figures(run) for run in runs]
    known = list(dict.fromkeys(name for names in drawn for name in names))
    main = columns.objective(known)
    found: list[dict[str, Any]] = []
    if main in known:
        found.append(_panel(columns.title(main), {"": main}))
    for kind in ("loss", "accuracy"):
        figures = {split: f"{split}_{kind}" for split in columns.SPLITS if f"{split}_{kind}" in known}
        if figures:
            found.append(_panel(kind.capitalize(), figures))
    figures = {which: name for which, name in columns.CLIENT_ACCURACY.items() if name in known}
    if figures:
        found.append(_panel("Client accuracy", figures))
    drawn_already = {name for panel in found for name in panel["figures"].values()}
    own = [name for name in known if name not in {"objective", main} | drawn_already]
    return found + [_panel(columns.title(name), {"": name}) for name in own]


def _panel(title: str, figures: dict[str, str]) -> dict[str, Any]:
    return {
        "title": title,
        "figures": figures,
        "share": all(columns.is_share(name) for name in figures.values()),
        "log": all(columns.is_gap(name) for name in figures.values()),
    }


def _curves(run: Run) -> dict[str, Any]:
    """Return each known figure against rounds, seconds of training and bytes on the wire so far."""
    metrics = run.metrics_table
    wire = digest.column(metrics, "wire_down") + digest.column(metrics, "wire_up")
    axes = {
        "round": digest.column(metrics, "round"),
        "seconds": np.cumsum(np.nan_to_num(digest.column(metrics, "seconds"))),
        "bytes": np.cumsum(np.nan_to_num(wire)),
    }
    curves = {}
    for name in digest.drawn_figures(run):
        values = digest.column(metrics, name)
        known = np.flatnonzero(np.isfinite(values))
        rows = known[np.unique(np.linspace(0, known.size - 1, min(known.size, _POINTS)).astype(int))]
        curves[name] = {axis: _numbers(at[rows]) for axis, at in axes.items()} | {"y": _numbers(values[rows])}
    return curves


def _time(run: Run) -> dict[str, Any]:
    """Return the seconds of each round by what they were spent on, or their means over groups of rounds."""
    parts = digest.time_columns(run.metrics_table)
    return _bars(
        run, {part: values for part, values in parts.items() if part != "encryption" or values.any()}
    )


def _traffic(run: Run) -> dict[str, Any]:
    """Return the bytes on the wire of each round, or their means over groups of rounds."""
    names = {"down": "wire_down", "up": "wire_up"}
    return _bars(run, {part: digest.column(run.metrics_table, name) for part, name in names.items()})


def _bars(run: Run, parts: dict[str, Floats]) -> dict[str, Any]:
    rounds = digest.column(run.metrics_table, "round")
    groups = np.array_split(np.arange(rounds.size), min(rounds.size, _BARS)) if rounds.size else []
    means = {
        part: _numbers(np.array([np.nan_to_num(values[group]).mean() for group in groups]))
        for part, values in parts.items()
    }
    first, last = ([int(rounds[group[end]]) for group in groups] for end in (0, -1))
    names = [str(a) if a == b else f"{a}–{b}" for a, b in zip(first, last, strict=True)]
    return {"round": [(a + b) / 2 for a, b in zip(first, last, strict=True)], "names": names, "parts": means}


def _spread(run: Run) -> list[float | None]:
    """Return the median seconds of each client's calls: how unequal the clients are."""
    clients = digest.costs_by(digest.own_calls(run.calls_table), "client")
    medians = np.array([costs.total_p50 for costs in clients], dtype=np.float64)
    return _numbers(medians[np.isfinite(medians)])


def _numbers(values: Floats) -> list[float | None]:
    """Return numbers with six significant digits, which is more than a chart shows."""
    return [float(f"{value:.6g}") if np.isfinite(value) else None for value in values]
