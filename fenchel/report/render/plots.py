"""Charts of the HTML page as PNG files, for documents and slides."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fenchel.report import columns, summary
from fenchel.report.columns import Floats
from fenchel.report.curves import axes_of, curves_of_all
from fenchel.report.formatting import printable
from fenchel.report.latency import histograms
from fenchel.report.render import figure
from fenchel.report.render.canvas import COLORS, canvas, label_logarithmic
from fenchel.report.run import Run
from fenchel.report.traffic import by_client
from fenchel.report.waiting import neighbours, thinned, waiting_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_COLORS = {
    "compute": "#264e80",
    "encryption": "#15806a",
    "coding": "#7fabd9",
    "network": "#e3a02f",
    "queueing": "#c2501a",
    "away": "#b02a62",
    "waiting": "#d2d6db",
    "server": "#8447a0",
    "unaccounted": "#68727e",
    "to clients": "#264e80",
    "from clients": "#7fabd9",
}
_CLIENTS = 40  # largest number of named bars; of more clients, only the slowest are drawn
_ENTRY = 24  # largest number of characters of legend entries that fit in four columns
_PHASES = 6  # largest number of phases in a plot, with two lines each
_BARS = 120  # largest number of bars of rounds; of more rounds, each bar is the mean of neighbours
_MAP = (200, 400)


def write_pictures(runs: Sequence[Run], folder: Path, optima: Sequence[float | None] = ()) -> list[Path]:
    """Plot the curves over each known cost, and the time and bytes of each run.

    Parameters
    ----------
    folder
        Folder of the PNG files, created if missing. Existing files are overwritten.
    optima
        Minimum of each run's objective (:mod:`fenchel.report.optimum`), which adds a chart of the optimality gap.

    Returns
    -------
    list[Path]
        Paths of the written files: ``curves-AXIS.png`` for each axis (such as ``curves-round.png``),
        ``time-by-round.png``, ``time-by-client.png``, ``latency.png``, ``waiting.png`` and ``bytes-by-client.png``. If
        there are several runs, names of files on a single run begin with the run's number and name.
    """
    axes = axes_of(curves_of_all(runs, optima)) or {"round": ""}
    found = [figure.draw(runs, folder / f"curves-{axis}.png", axis, optima) for axis in axes]
    for number, (run, name) in enumerate(zip(runs, summary.labels(runs), strict=True), start=1):
        prefix = f"{number}-{re.sub(r'[^A-Za-z0-9_.-]+', '-', name)}-" if len(runs) > 1 else ""
        if not run.calls_table.num_rows or not run.rounds:
            continue
        for kind, drawing in _DRAWINGS.items():
            found.append(_draw(run, printable(name), drawing, folder / f"{prefix}{kind}.png"))
    return found


def _draw(run: Run, name: str, drawing: Callable[[Run, Axes], str], path: Path) -> Path:
    with canvas(path, (8.8, 4.0)) as picture:
        axes = picture.subplots()
        axes.set_axisbelow(True)
        axes.set_title(f"{drawing(run, axes)}, {name}")
        handles, labels = axes.get_legend_handles_labels()
        if handles:
            # A legend wider than the picture would be clipped.
            columns = 4 if max(map(len, labels)) <= _ENTRY else 2
            picture.legend(handles, labels, loc="outside lower left", ncols=columns, frameon=False)
    return path


def _time_by_round(run: Run, axes: Axes) -> str:
    metrics = run.steady.metrics
    groups = neighbours(metrics.num_rows, _BARS)
    rounds, *spent = (
        np.array([values[group].mean() for group in groups])
        for values in (columns.column(metrics, "round"), *summary.time_columns(metrics).values())
    )
    _stack(axes, rounds, dict(zip(summary.SHARES, spent, strict=True)), width=0.86 * metrics.num_rows / len(groups))
    axes.set_xlabel("round")
    _unit(axes.yaxis, "s")
    return "Seconds per round" if len(groups) == metrics.num_rows else "Mean seconds per round, of neighbouring rounds"


def _time_by_client(run: Run, axes: Axes) -> str:
    names, means = summary.time_by_client(run)
    _bars(axes, names, means, "s")
    some = f"the slowest {_CLIENTS} of {len(names):,} clients" if len(names) > _CLIENTS else "by client"
    return f"Mean seconds of a call, {some}"


def _latency(run: Run, axes: Axes) -> str:
    from matplotlib.ticker import EngFormatter

    found = histograms(run.steady.calls)
    phases = list(dict.fromkeys(one.phase for one in found))
    took = {
        costs.name: costs.answered * costs.busy
        for costs in summary.costs_by(run.steady.calls, "phase")
        if costs.answered
    }
    largest = set(sorted(phases, key=lambda phase: -took.get(phase, 0.0))[:_PHASES])
    shown = [phase for phase in phases if phase in largest]
    for one in found:
        if one.phase not in largest:
            continue
        color = COLORS[shown.index(one.phase) % len(COLORS)]
        style = "-" if one.what == "total" else "--"
        axes.stairs(
            one.counts,
            one.edges,
            color=color,
            linestyle=style,
            linewidth=1.6,
            label=printable(f"{one.phase}, {one.what}"),
        )
    axes.set_xscale("log")
    axes.set_ylabel("calls")
    label_logarithmic(axes.xaxis, EngFormatter(unit="s", sep=" "))
    some = f"the {len(shown)} of {len(phases)} phases that took most time"
    return f"Latency, {some}" if len(shown) < len(phases) else "Latency by phase"


def _waiting(run: Run, axes: Axes) -> str:
    from matplotlib.ticker import EngFormatter

    shown = thinned(waiting_of(run.steady.calls), *_MAP)
    told = bool(np.isfinite(shown.waited).any())  # tables of older versions lack the waiting times
    seconds = shown.waited if told else shown.took
    # Exclude setup (round 0) from the colour scale: setup takes longer than any round and would wash out all rounds.
    rounds = [place for place, name in enumerate(shown.rounds) if int(name.split("–")[0]) >= 1]
    scaled = seconds[:, rounds] if rounds else seconds
    known = scaled[np.isfinite(scaled)]
    highest = (float(np.quantile(known, 0.99)) if known.size else 0.0) or 1.0
    image = axes.imshow(seconds, aspect="auto", interpolation="nearest", cmap="Blues", vmin=0.0, vmax=highest)
    row, column = np.nonzero(shown.missed)
    axes.plot(column, row, "x", color="#a02c1c", markersize=3, linestyle="none")
    places = np.unique(np.linspace(0, len(shown.rounds) - 1, min(len(shown.rounds), 12)).astype(int))
    axes.set_xticks(places, [shown.rounds[place] for place in places])
    axes.set_xlabel("round")
    if len(shown.clients) <= _CLIENTS:
        axes.set_yticks(range(len(shown.clients)), [printable(name) for name in shown.clients], fontsize=7)
    else:
        axes.set_yticks([])
        axes.set_ylabel("clients, the slowest on top")
    axes.grid(visible=False)
    picture = axes.get_figure()
    assert picture is not None
    picture.colorbar(image, ax=axes, format=EngFormatter(unit="s"), extend="max", pad=0.02)
    return "How long each client waited for slower ones" if told else "How long each client's answers took"


def _bytes_by_client(run: Run, axes: Axes) -> str:
    found = by_client(run.calls_table)
    names, wire = found.names, found.layers["wire"]
    _bars(axes, names, {"to clients": wire["down"], "from clients": wire["up"]}, "B")
    some = f", the heaviest {_CLIENTS} of {len(names):,} clients" if len(names) > _CLIENTS else " by client"
    return f"Bytes on the wire{some}"


_DRAWINGS: dict[str, Callable[[Run, Axes], str]] = {
    "time-by-round": _time_by_round,
    "time-by-client": _time_by_client,
    "latency": _latency,
    "waiting": _waiting,
    "bytes-by-client": _bytes_by_client,
}


def _stack(axes: Axes, at: Floats, parts: dict[str, Floats], width: float = 0.86) -> None:
    floor = np.zeros_like(at)
    for part, values in parts.items():
        known = np.nan_to_num(values)
        if known.any():
            axes.bar(at, known, bottom=floor, width=width, color=_COLORS[part], label=part)
            floor = floor + known


def _bars(axes: Axes, names: Sequence[str], parts: dict[str, Floats], unit: str) -> None:
    """Draw a stacked bar for each of the first clients, with its name."""
    shown = [printable(name) for name in names[:_CLIENTS]]
    _stack(axes, np.arange(len(shown), dtype=np.float64), {part: values[:_CLIENTS] for part, values in parts.items()})
    turned = len(shown) > 8
    axes.set_xticks(range(len(shown)), shown)
    axes.tick_params(axis="x", labelrotation=90 if turned else 0, labelsize=7 if turned else 9)
    _unit(axes.yaxis, unit)


def _unit(axis: Any, unit: str) -> None:
    from matplotlib.ticker import EngFormatter

    axis.set_major_formatter(EngFormatter(unit=unit, sep=" "))
