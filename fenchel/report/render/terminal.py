"""Report on one run, or comparison of several, in the terminal or as JSON for scripts."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from fenchel.report import figure_names, summary
from fenchel.report.formatting import UNKNOWN, bounded_text, bytes_text, count_text, part_text, printable, seconds_text
from fenchel.report.groups import INTERVALS, SeedGroup, groups_of
from fenchel.report.run import Run
from fenchel.report.summary import CallCosts
from fenchel.report.traffic import totals
from fenchel.report.wall_time import WallTime, wall_of

_SLOWEST = 5  # largest number of clients displayed for a single run
_DIFFERING = 3  # largest number of settings displayed in a comparison; the HTML page lists all
_SHORT = 14  # largest number of characters displayed of a setting's value
_NAME = 32  # largest number of characters of a run's name that stay on one line
_ANY_WIDTH = 1000  # width in columns beyond that of any table, for measuring a table's natural width
_STYLES = {"completed": "green", "stopped": "red", "unfinished": "yellow"}


def show(runs: Sequence[Run], console: Console) -> None:
    """Print a single run in detail, or several runs as a table with one row for runs that differ only in their seed."""
    if groups := groups_of(runs):
        console.print(_first_that_fits(_grouped(groups, len(runs)), console))
    else:
        console.print(_one(runs[0]) if len(runs) == 1 else _first_that_fits(_several(runs), console))


def as_json(runs: Sequence[Run]) -> dict[str, Any]:
    """Return the content of :func:`show` with further details as JSON-compatible values, ``None`` if unknown."""
    described = {
        "runs": [_described(run) for run in runs],
        "differences": summary.differing_settings(runs),
        "groups": [_means(group) for group in groups_of(runs)],
    }
    cleaned: dict[str, Any] = _without_nan(described)
    return cleaned


def _described(run: Run) -> dict[str, Any]:
    metrics = run.steady.metrics
    split, wall = summary.time_split(metrics), wall_of(run)
    return {
        "id": run.id,
        "path": str(run.path),
        "state": run.state,
        "reason": run.reason,
        "rounds": run.rounds,
        "figures": run.figures,
        "seconds": {"wall": wall.total, **asdict(wall), "idle": summary.idle_seconds(metrics), **split},
        "bytes": totals(metrics),
        "phases": [asdict(costs) for costs in summary.costs_by(run.steady.calls, "phase")],
        "clients": [asdict(costs) for costs in summary.costs_by(summary.own_calls(run.steady.calls), "client")],
        "settings": run.settings_values,
        "environment": run.environments.described,
    }


def _means(group: SeedGroup) -> dict[str, Any]:
    return {
        "name": group.name,
        "runs": [run.id for run in group.runs],
        "counted": [run.id for run in group.counted],
        "figures": {
            name: {"mean": each.mean, "low": each.low, "high": each.high, "seeds": each.seeds}
            for name, each in group.estimates.items()
        },
    }


def _without_nan(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _without_nan(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nan(inner) for inner in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


def _one(run: Run) -> RenderableType:
    metrics = run.steady.metrics
    split = summary.time_split(metrics)
    seconds = sum(split.values())
    traffic = totals(metrics)
    facts = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    facts.add_column(style="dim")
    facts.add_column()
    facts.add_row("state", _state(run))
    if run.reason:
        facts.add_row("reason", Text("\n".join(map(printable, run.reason.splitlines()))))
    for warning in run.warnings:
        facts.add_row("warning", Text(printable(warning), style="bold yellow"))
    about = {key: value for key, value in summary.headline(run).items() if value is not None and key != "rounds"}
    facts.add_row("settings", Text(printable(", ".join(f"{key} {value}" for key, value in about.items()))))
    if environment := run.environments.described:
        computed = ", ".join(f"{attribute} {value}" for attribute, value in environment.items())
        facts.add_row("environment", Text(printable(computed)))
    facts.add_row("rounds", Text(printable(f"{run.rounds} of {summary.headline(run)['rounds']}")))
    for name in run.figures:
        facts.add_row(Text(printable(figure_names.title(name).lower())), bounded_text(name, run.figures))
    if guarantee := summary.privacy_guarantee(run):
        facts.add_row("privacy guarantee", Text(printable(guarantee)))
    facts.add_row("wall time", equation_text(wall_of(run)))
    facts.add_row("time in rounds", f"{seconds_text(seconds)} ({_shares(split)})")
    facts.add_row("waiting for the slowest", _idle(summary.idle_seconds(metrics), seconds))
    for way in ("down", "up"):
        wire, payload = (bytes_text(traffic[f"{layer}_{way}"]) for layer in ("wire", "payload"))
        facts.add_row(f"bytes {way} in rounds", f"{wire}, payload {payload}")
    parts: list[RenderableType] = [Text(printable(run.id), style="bold"), facts]
    phases = summary.costs_by(run.steady.calls, "phase")
    if phases:
        parts += [Text(), _costs("phase", phases)]
    clients = summary.costs_by(summary.own_calls(run.steady.calls), "client")
    if clients:
        some = f"slowest {_SLOWEST} of\n{len(clients):,} clients" if len(clients) > _SLOWEST else "client"
        parts += [Text(), _costs(some, clients[:_SLOWEST])]
    return Group(*parts)


def equation_text(wall: WallTime) -> str:
    """Return a run's wall-clock time as an equation, in which lines break only between summands."""
    summands = [f"{name} {seconds_text(seconds)}" for name, seconds in wall.parts().items()]
    unbroken = [words.replace(" ", "\N{NO-BREAK SPACE}") for words in (seconds_text(wall.total), *summands)]
    return f"{unbroken[0]} = {' + '.join(unbroken[1:])}"


def _idle(seconds: float, total: float) -> str:
    if not total or not math.isfinite(seconds):
        return UNKNOWN
    return f"{seconds_text(seconds)} for the average client ({seconds / total:.0%} of the time in rounds)"


def _shares(split: summary.Shares) -> str:
    total = sum(split.values())
    if not total:
        return "nothing measured"
    return ", ".join(f"{part_text(name)} {seconds / total:.0%}" for name, seconds in summary.shown(split).items())


def _costs(heading: str, rows: Sequence[CallCosts]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    table.add_column(heading, overflow="fold")
    encrypted = any(costs.encryption_p50 > 0 for costs in rows)
    encryption = ("encrypt p50",) if encrypted else ()
    for name in ("calls", "missed", "total p50", "p90", "compute p50", *encryption, "network p50"):
        table.add_column(name.replace(" ", "\n"), justify="right", vertical="bottom", no_wrap=True)
    for costs in rows:
        cryptography = (costs.encryption_p50,) if encrypted else ()
        times = (costs.total_p50, costs.total_p90, costs.compute_p50, *cryptography, costs.network_p50)
        missed = costs.calls - costs.answered
        table.add_row(
            Text(printable(costs.name)), f"{costs.calls:,}", f"{missed:,}", *(seconds_text(time) for time in times)
        )
    return table


def _first_that_fits(tables: Iterable[Table], console: Console) -> Table:
    """Return the first table that fits the terminal, or the last table if none fits."""
    for table in tables:
        if console.measure(table, options=console.options.update(width=_ANY_WIDTH)).maximum <= console.width:
            break
    return table


def _several(runs: Sequence[Run]) -> Iterator[Table]:
    """Yield tables with a decreasing number of settings, figures and costs."""
    differing = summary.differing_settings(runs)
    settings = _telling(differing)
    shown = _wanted({name for run in runs for name in run.figures})
    traffic = [totals(run.metrics_table) for run in runs]
    costs = {
        "time\N{NO-BREAK SPACE}in rounds": [seconds_text(summary.rounds_seconds(run)) for run in runs],
        "wall time": [seconds_text(wall_of(run).total) for run in runs],
        "down": [bytes_text(each["wire_down"]) for each in traffic],
        "up": [bytes_text(each["wire_up"]) for each in traffic],
    }
    wanted = {"differing setting": len(differing), "figure": len(shown), "cost": len(costs)}
    while True:
        counts = (len(settings), len(shown), len(costs))
        hidden = {noun: most - count for (noun, most), count in zip(wanted.items(), counts, strict=True)}
        yield _compared(runs, {key: differing[key] for key in settings}, shown, costs, hidden)
        if not settings and not shown:
            return
        # Remove the first setting and the first figure last, as they are the most informative.
        if len(settings) <= 1 and len(costs) > 1:
            costs.popitem()
        else:
            (settings if len(settings) > 1 else shown if len(shown) > 1 else settings or shown).pop()


def _grouped(groups: Sequence[SeedGroup], runs: int) -> Iterator[Table]:
    """Yield tables of means over seeds, with a decreasing number of figures."""
    wanted = _wanted({name for group in groups for name in group.estimates})
    for hidden in range(max(len(wanted), 1)):
        shown = wanted[: len(wanted) - hidden]
        caption = f"{count_text(runs, 'run')}{_on_the_page({'figure': hidden})}. {INTERVALS}"
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, caption=caption, caption_justify="left")
        table.add_column("runs", overflow="fold", max_width=2 * _NAME)
        for heading in ("seeds", *(figure_names.title(name).lower() for name in shown)):
            table.add_column(heading, justify="right", no_wrap=True)
        for group in groups:
            means = [group.estimate(name).text(name) for name in shown]
            table.add_row(Text(printable(group.name)), group.seeds_text, *means)
        yield table


def _on_the_page(hidden: Mapping[str, int]) -> str:
    """Return a note on the numbers of settings, figures and costs omitted from a table."""
    words = ", ".join(count_text(number, noun) for noun, number in hidden.items() if number)
    return f"; +{words}, on the page" if words else ""


def _wanted(known: Collection[str]) -> list[str]:
    """Return the few most important of the known figures for a comparison of several runs."""
    worst = "client_accuracy_worst"
    other = worst if worst in known else "train_accuracy"
    wanted = (figure_names.objective(known), "gap", "test_accuracy", "test_auc", other)
    return [name for name in wanted if name in known]


def _telling(differing: Mapping[str, Sequence[Any]]) -> list[str]:
    """Return the keys of a few settings that distinguish the runs: short ones that most runs have."""
    short = [key for key, values in differing.items() if all(len(setting_text(v)) <= _SHORT for v in values)]
    short.sort(key=lambda key: (key != "algorithm.name", differing[key].count(None)))
    return short[:_DIFFERING]


def _compared(
    runs: Sequence[Run],
    settings: Mapping[str, Sequence[Any]],
    shown: Sequence[str],
    costs: Mapping[str, Sequence[str]],
    hidden: Mapping[str, int],
) -> Table:
    """Return a table with a row for each run, and columns for some differing settings, figures and costs."""
    completed = all(run.completed for run in runs)
    caption = f"{count_text(len(runs), 'run')}{', all completed' if completed else ''}{_on_the_page(hidden)}"
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, caption=caption, caption_justify="left")
    labels = [printable(label) for label in summary.labels(runs)]
    # Narrow terminals must not truncate the names that distinguish the rows.
    table.add_column("run", overflow="fold", min_width=min(max(map(len, labels)), _NAME), max_width=_NAME)
    if not completed:
        table.add_column("state", no_wrap=True)
    for key in settings:
        table.add_column(Text(printable(key).replace(".", ".\n")), style="cyan", no_wrap=True)
    for heading in ("done", *(figure_names.title(name).lower() for name in shown), *costs):
        table.add_column(heading.replace(" ", "\n"), justify="right", no_wrap=True)
    for index, (run, label) in enumerate(zip(runs, labels, strict=True)):
        table.add_row(
            Text(label),
            *(() if completed else (_state(run),)),
            *(Text(printable(setting_text(values[index]))) for values in settings.values()),
            f"{run.rounds:,}",
            *(bounded_text(name, run.figures) for name in shown),
            *(texts[index] for texts in costs.values()),
        )
    return table


def setting_text(value: Any) -> str:
    """Return the text of a setting's value for a cell of a table."""
    return UNKNOWN if value is None else str(value)


def _state(run: Run) -> Text:
    return Text(run.state, style=_STYLES[run.state])
