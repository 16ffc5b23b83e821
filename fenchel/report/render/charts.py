"""Data for the charts of the HTML page, thinned so that pages of long runs stay small."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from fenchel.report import columns, figure_names, summary
from fenchel.report.columns import Floats
from fenchel.report.curves import OPTIMALITY_GAP, Curves, axes_of, curves_of_all, known_figures
from fenchel.report.groups import bands_of, groups_of
from fenchel.report.latency import histograms
from fenchel.report.run import Run
from fenchel.report.traffic import by_client, by_layer
from fenchel.report.waiting import names_of, neighbours, thinned, waiting_of

_POINTS = 400  # largest number of points of a curve, the resolution of a screen
_BARS = 120
_MAP = (200, 400)  # largest numbers of clients and rounds in the map of waiting
_SHARED = {
    name for shared in figure_names.SHARED_CHARTS.values() for name in shared.values() if not name.endswith("_error")
}
"""Figures that one chart shows together, in which a constant one would seem to be unknown if it were left out."""


def chart_data(runs: Sequence[Run], names: Sequence[str], optima: Sequence[float | None] = ()) -> dict[str, Any]:
    """Return the data of all charts for the page's script, as JSON-compatible values.

    Parameters
    ----------
    optima
        Minimum of each run's objective (:mod:`fenchel.report.optimum`), which adds curves of ``optimality_gap``.
    """
    curves = curves_of_all(runs, optima)
    groups = groups_of(runs)
    bands = bands_of(groups, runs, optima)
    shown = [band.curves for band in bands] or curves
    return {
        "axes": axes_of(shown),
        "panels": panels(shown),
        "groups": [
            {"name": group.name, "curves": _curves(band.curves, {"low": band.low, "high": band.high})}
            for group, band in zip(groups, bands, strict=True)
        ],
        "runs": [
            {
                "name": name,
                "curves": {} if groups else _curves(each),
                "time": _time(run),
                "traffic": _traffic(run),
                "clients": _clients(run),
                "carried": _carried(run),
                "latency": _latency(run),
                "waiting": _waiting(run, len(runs)),
            }
            for run, name, each in zip(runs, names, curves, strict=True)
        ],
    }


def panels(curves: Sequence[Curves]) -> list[dict[str, Any]]:
    """Return the charts of curves: the title and the plotted figures, one for each split of the data.

    Figures without values in any run are omitted, as are figures equal to the objective, and constant figures that
    would have a chart of their own.
    """
    known = known_figures(curves)
    main = figure_names.objective(known)
    known = [name for name in known if name == main or not _tells_nothing(name, main, curves)]
    found = [_panel(figure_names.title(name), {"": name}) for name in (main, OPTIMALITY_GAP) if name in known]
    for heading, shared in figure_names.SHARED_CHARTS.items():
        figures = {label: name for label, name in shared.items() if name in known}
        if figures:
            found.append(_panel(heading, figures))
    drawn_already = {name for panel in found for name in panel["figures"].values()}
    own = [name for name in known if name not in {"objective", main} | drawn_already]
    return found + [_panel(figure_names.title(name), {"": name}) for name in own]


def _tells_nothing(name: str, main: str, curves: Sequence[Curves]) -> bool:
    """Return True if a figure without a shared chart is constant, or a figure equals the main one where known."""
    values = np.concatenate([each.figures[name] for each in curves if name in each.figures])
    if name not in _SHARED and np.isfinite(values).sum() > 1 and np.nanmin(values) == np.nanmax(values):
        return True
    pairs = [(each.figures[name], each.figures[main]) for each in curves if {name, main} <= each.figures.keys()]
    both = [np.isfinite(one) & np.isfinite(other) for one, other in pairs]
    return any(known.any() for known in both) and all(
        np.allclose(one[known], other[known], rtol=1e-12, atol=0)
        for (one, other), known in zip(pairs, both, strict=True)
    )


def _panel(title: str, figures: dict[str, str]) -> dict[str, Any]:
    return {
        "title": title,
        "figures": figures,
        "share": all(figure_names.is_share(name) for name in figures.values()),
        "log": all(figure_names.is_gap(name) for name in figures.values()),
    }


def _curves(curves: Curves, band: Mapping[str, Mapping[str, Floats]] = MappingProxyType({})) -> dict[str, Any]:
    """Return each known figure with the cumulative costs of the rounds.

    Parameters
    ----------
    band
        Lower and upper ends of the confidence intervals of each figure, shape (rounds,) each.
    """
    drawn = {}
    for name, values in curves.figures.items():
        known = np.flatnonzero(np.isfinite(values))
        rows = known[np.unique(np.linspace(0, known.size - 1, min(known.size, _POINTS)).astype(int))]
        drawn[name] = {cost: _numbers(at[rows]) for cost, at in curves.costs.items()}
        drawn[name]["y"] = _numbers(values[rows])
        drawn[name] |= {end: _numbers(figures[name][rows]) for end, figures in band.items() if name in figures}
    return drawn


def _time(run: Run) -> dict[str, Any]:
    """Return the parts of each round's duration in seconds, or their means over groups of rounds."""
    return _rounds(run, _spent(summary.time_columns(run.steady.metrics)))


def _traffic(run: Run) -> dict[str, Any]:
    """Return the bytes of each round by layer and direction, or their means over groups of rounds."""
    layers = by_layer(run.metrics_table)
    return {layer: _rounds(run, ways) for layer, ways in layers.items() if _counted(ways)}


def _clients(run: Run) -> dict[str, Any]:
    """Return the parts of the mean duration of each client's calls in seconds, the slowest client first."""
    names, means = summary.time_by_client(run)
    return _bars(names, _spent(means), " … ")


def _carried(run: Run) -> dict[str, Any]:
    """Return bars of the clients' bytes by layer and direction, evaluation included, in descending wire bytes."""
    found = by_client(run.calls_table)
    return {layer: _bars(found.names, ways, " … ") for layer, ways in found.layers.items() if _counted(ways)}


def _counted(ways: dict[str, Floats]) -> bool:
    return any(bool(np.isfinite(values).any()) for values in ways.values())


def _spent(parts: dict[str, Floats]) -> dict[str, Floats]:
    """Return the parts of the time that are not all 0."""
    return {part: values for part, values in parts.items() if np.nansum(values) > 0}


def _rounds(run: Run, parts: dict[str, Floats]) -> dict[str, Any]:
    rounds = columns.column(run.metrics_table, "round").astype(int)
    bars = _bars([str(t) for t in rounds], parts, "–")
    return bars | {"round": [float(rounds[group].mean()) for group in neighbours(rounds.size, _BARS)]}


def _bars(names: Sequence[str], parts: dict[str, Floats], between: str) -> dict[str, Any]:
    """Return a stacked bar for each name, or for each group of adjacent names if there are too many."""
    groups = neighbours(len(names), _BARS)
    return {
        "names": names_of(names, groups, between),
        "parts": {
            part: _numbers(np.array([np.nan_to_num(values[group]).mean() for group in groups]))
            for part, values in parts.items()
        },
    }


def _latency(run: Run) -> dict[str, list[dict[str, Any]]]:
    """Return histograms over the calls of each phase: of their total duration and of their network time."""
    found: dict[str, list[dict[str, Any]]] = {"total": [], "network": []}
    for one in histograms(run.steady.calls):
        found[one.what].append(
            {
                "phase": one.phase,
                "edges": _numbers(one.edges),
                "counts": one.counts.tolist(),
                "p50": float(f"{one.p50:.3g}"),
            }
        )
    return found


def _waiting(run: Run, runs: int) -> dict[str, Any]:
    """Return the map of waiting times, with a resolution that decreases with the number of runs."""
    clients, rounds = _MAP
    shown = thinned(waiting_of(run.steady.calls), clients, max(rounds // runs, 50))
    row, column = np.nonzero(shown.missed)
    maps = {"took": shown.took, "waited": shown.waited}
    return {
        "clients": shown.clients,
        "rounds": shown.rounds,
        "missed": [row.tolist(), column.tolist()],
        "maps": {
            name: [_numbers(line, digits=3) for line in values]
            for name, values in maps.items()
            if np.isfinite(values).any()
        },
    }


def _numbers(values: Floats, digits: int = 6) -> list[float | None]:
    """Return numbers rounded to few significant digits, beyond the resolution of a chart."""
    return [float(f"{value:.{digits}g}") if np.isfinite(value) else None for value in values]
