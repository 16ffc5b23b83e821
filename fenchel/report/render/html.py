"""Components of the HTML page: tiles, tables and bars in plain HTML.

Every function returns HTML in which all text from a run is escaped.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from html import escape
from typing import Any

import numpy as np

from fenchel.report import figure_names, summary
from fenchel.report.formatting import UNKNOWN, bounded_text, bytes_text, count_text, part_text, printable, seconds_text
from fenchel.report.groups import INTERVALS, SeedGroup
from fenchel.report.run import Run
from fenchel.report.summary import CallCosts, Shares
from fenchel.report.traffic import Traffic, totals
from fenchel.report.wall_time import wall_of

_CLIENTS = 20  # largest number of rows in the table of clients
_BESIDE = 3  # largest number of differing settings in a table with results
_TILES = (
    "test_auc",
    "test_accuracy",
    "client_accuracy_worst",
    "gap",
    "train_accuracy",
    "holdout_accuracy",
    "holdout_auc",
    "test_loss",
    "train_loss",
)
_STATES = {"completed": "Completed", "stopped": "Stopped early", "unfinished": "Unfinished"}


def text(value: object) -> str:
    """Return untrusted text, escaped for HTML elements and attributes."""
    return escape(printable(str(value)))


def state(run: Run) -> str:
    """Return the badge for the outcome of a run."""
    return f'<span class="state {run.state}">{_STATES[run.state]}</span>'


def headline(run: Run) -> str:
    """Return a summary line of the settings, one of the privacy guarantee, and one about an early end of the run."""
    about = summary.headline(run)
    done = f"{run.rounds:,} of {about['rounds']} rounds" if not run.completed else count_text(run.rounds, "round")
    words = [about["algorithm"], about["data"], about["objective"], _clients_text(about["clients"]), done]
    if about["seed"] is not None:
        words.append(f"seed {about['seed']}")
    line = " <i>·</i> ".join(text(word) for word in words if word is not None)
    guarantee = summary.privacy_guarantee(run)
    private = f'<p class="about">privacy guarantee: {text(guarantee)}</p>' if guarantee else ""
    return f'<p class="about">{line}</p>' + private + _ending(run)


def _clients_text(clients: Any) -> str | None:
    """Return the number of clients in the settings as text; ``None`` if it is not in the settings."""
    if isinstance(clients, int):
        return count_text(clients, "client")
    return None if clients is None else "any number of clients"


def _ending(run: Run) -> str:
    if run.reason:
        lines = "<br>".join(map(text, run.reason.splitlines()))
        return f'<div class="notice stopped"><b>Stopped after round {run.rounds:,}</b><p>{lines}</p></div>'
    if run.state == "unfinished":
        return (
            '<div class="notice unfinished"><b>Not finished</b><p>When this page was written the run was still going '
            "on, or had been killed. It shows every round that had been saved by then.</p></div>"
        )
    return ""


def warnings(run: Run) -> str:
    """Return the warnings of the run."""
    return "".join(f'<div class="notice warning"><b>Warning</b><p>{text(each)}</p></div>' for each in run.warnings)


def environment(run: Run) -> str:
    """Return the software and hardware of server and clients; empty for a run of an older version."""
    described = run.environments.described
    if not described:
        return ""
    rows = "".join(f"<tr><th>{text(name)}</th><td>{text(value)}</td></tr>" for name, value in described.items())
    return f"<details class='settings'><summary>Computing environment</summary><table>{rows}</table></details>"


def tiles(run: Run) -> str:
    """Return the HTML tiles with the main metrics of a run."""
    traffic = totals(run.metrics_table)
    shown = [
        *((figure_names.title(name), bounded_text(name, run.figures)) for name in _main(run.figures)[:3]),
        ("Wall time", seconds_text(wall_of(run).total)),
        ("Time in rounds", seconds_text(summary.rounds_seconds(run))),
        ("Waiting for the slowest", seconds_text(summary.idle_seconds(run.steady.metrics))),
        ("To clients", bytes_text(traffic["wire_down"])),
        ("From clients", bytes_text(traffic["wire_up"])),
    ]
    cells = "".join(f"<div><dt>{text(name)}</dt><dd>{text(value)}</dd></div>" for name, value in shown)
    return f'<dl class="tiles">{cells}</dl>'


def _main(known: Collection[str]) -> list[str]:
    """Return the names of the most important figures among the known ones."""
    return [name for name in (figure_names.objective(known), *_TILES) if name in known]


def swatch(index: int) -> str:
    """Return the coloured marker of a run."""
    return f'<span class="swatch" data-run="{index}"></span>'


def marked(names: Sequence[str], marks: Sequence[int] | None = None) -> list[str]:
    """Return names in HTML, each with its coloured marker; by default in the order of the colours."""
    return [f"{swatch(mark)}{text(name)}" for name, mark in zip(names, marks or range(len(names)), strict=True)]


def comparison(runs: Sequence[Run], labels: Sequence[str]) -> str:
    """Return the table with the results of each run, and with the differing settings if they are few.

    Parameters
    ----------
    labels
        Name of each run with its coloured marker, in HTML (:func:`marked`).
    """
    differing = summary.differing_settings(runs)
    if len(differing) > _BESIDE:
        differing = {}
    known = {name for run in runs for name in run.figures}
    shown = _main(known)[:3]
    titles = (text(figure_names.title(name)) for name in shown)
    heads = (
        "<th>Run</th><th>State</th>"
        + _heads("set", map(_key, differing))
        + _heads("n", (*titles, "Done", "Time in rounds", "Wall time", "Bytes in rounds"))
    )
    rows = []
    for index, (run, label) in enumerate(zip(runs, labels, strict=True)):
        traffic = totals(run.metrics_table)
        numbers = (
            *(bounded_text(figure, run.figures) for figure in shown),
            f"{run.rounds:,}",
            seconds_text(summary.rounds_seconds(run)),
            seconds_text(wall_of(run).total),
            bytes_text(traffic["wire_down"] + traffic["wire_up"]),
        )
        rows.append(
            f'<td title="{text(run.id)}">{label}</td><td>{state(run)}</td>'
            + _settings(given[index] for given in differing.values())
            + _cells("n", numbers)
        )
    return _table(heads, rows)


def grouped(groups: Sequence[SeedGroup]) -> str:
    """Return the table of means over seeds, with a row for each figure and a column for each group."""
    known = list(dict.fromkeys(name for group in groups for name in group.estimates))
    heads = "<th>Final figure</th>" + _heads("run n", marked([group.name for group in groups]))
    rows = ["<td>Seeds</td>" + _cells("n", (group.seeds_text for group in groups))]
    rows += [
        f"<td>{text(figure_names.title(name))}</td>"
        + _cells("n", (group.estimate(name).text(name) for group in groups))
        for name in dict.fromkeys([*_main(known), *known])
    ]
    return (
        f"{_table(heads, rows)}<p class='note'>{INTERVALS} Runs that did not complete are in no mean, "
        "and of several runs with the same seed the last one counts.</p>"
    )


def differences(differing: Mapping[str, Sequence[object]], names: Sequence[str]) -> str:
    """Return the table of differing settings, with a row for each setting and a column for each run or group."""
    if not differing:
        return "<p class='note'>All settings are the same.</p>"
    heads = "<th>Setting</th>" + _heads("run", marked(names))
    rows = [f"<td><code>{text(key)}</code></td>{_settings(values)}" for key, values in differing.items()]
    return _table(heads, rows)


def _key(key: str) -> str:
    """Return a setting's dotted key as HTML, with its section in small print."""
    section, _, word = key.rpartition(".")
    return f"<small>{text(section)}</small>{text(word)}"


def bar(split: Shares, scale: float) -> str:
    """Return a stacked bar whose full width is ``scale`` seconds; empty if the total is unknown."""
    if not math.isfinite(sum(split.values())) or not scale > 0:
        return ""
    pieces = "".join(
        f'<i class="{part}" style="width:{seconds / scale:.3%}" title="{part_text(part)}: {seconds_text(seconds)}"></i>'
        for part, seconds in summary.shown(split).items()
    )
    return f'<span class="bar">{pieces}</span>'


def time_share(run: Run) -> str:
    """Return the bar of a whole run with named parts, which serves as the legend of the chart below."""
    split = summary.time_split(run.steady.metrics)
    total = sum(split.values())
    if not total:
        return ""
    serialisation, propagation = summary.network_split(run.steady.metrics)
    more = {}
    if math.isfinite(serialisation):
        more["network"] = f" (serialisation {seconds_text(serialisation)}, propagation {seconds_text(propagation)})"
    words = "".join(
        f'<li><span class="key {part}"></span>{part_text(part)}<b>{seconds / total:.0%}</b>'
        f"<span>{seconds_text(seconds)}{more.get(part, '')}</span></li>"
        for part, seconds in summary.shown(split).items()
    )
    return f'<div class="share">{bar(split, total)}<ul>{words}</ul></div>'


def wall(run: Run) -> str:
    """Return the equation of the wall-clock time, and the time for which clients waited for the slowest client."""
    whole = wall_of(run)
    if not whole.total:
        return ""
    sum_of = " + ".join(f"{name} <b>{seconds_text(seconds)}</b>" for name, seconds in whole.parts().items())
    idle = summary.idle_seconds(run.steady.metrics)
    waited = (
        f" Of the rounds, the average client spent <b>{seconds_text(idle)}</b> ({idle / whole.rounds:.0%}) waiting "
        "for the slowest one, which worked meanwhile."
        if math.isfinite(idle) and whole.rounds
        else ""
    )
    return f'<p class="equation">Wall time <b>{seconds_text(whole.total)}</b> = {sum_of}.{waited}</p>'


def walls(runs: Sequence[Run], labels: Sequence[str]) -> str:
    """Return the table of several runs' wall-clock times, with the parameters of :func:`comparison`."""
    found = [wall_of(run) for run in runs]
    parts = list(dict.fromkeys(part for one in found for part in one.parts()))
    heads = "<th>Run</th>" + _heads("n", ("Wall time", *map(str.capitalize, parts), "Waiting for the slowest"))
    rows = []
    for run, label, one in zip(runs, labels, found, strict=True):
        idle = summary.idle_seconds(run.steady.metrics)
        seconds = (one.total, *(one.parts().get(part, 0.0) for part in parts), idle)
        rows.append(f"<td>{label}</td>" + _cells("n", map(seconds_text, seconds)))
    return _table(heads, rows)


def times(runs: Sequence[Run], labels: Sequence[str]) -> str:
    """Return the bars of several runs' time on a common scale, with the parameters of :func:`comparison`."""
    splits = [summary.time_split(run.steady.metrics) for run in runs]
    longest = max(sum(split.values()) for split in splits)
    parts = [part for part in summary.SHARES if any(part in summary.shown(split) for split in splits)]
    heads = '<th>Run</th><th class="wide"></th>' + _heads(
        "n", (f'<span class="key {part}"></span>{part_text(part)}' for part in parts)
    )
    rows = [
        f"<td>{label}</td><td>{bar(split, longest)}</td>" + _cells("n", (seconds_text(split[part]) for part in parts))
        for split, label in zip(splits, labels, strict=True)
    ]
    return _table(heads, rows)


def phases(costs: Sequence[CallCosts]) -> str:
    """Return the table of phases, with the durations of calls and of their parts."""
    note = (
        "<p class='note'>Median and p90 are of whole calls, from when an instruction is queued to when its reply is "
        "decoded. The parts beside them are medians, too. Bars are means, on one scale.</p>"
    )
    return _costs("Phase", [(f"{text(one.name)} <small>{text(one.kind)}</small>", one) for one in costs]) + note


def clients(costs: Sequence[CallCosts]) -> str:
    """Return the table of clients, limited to the slowest clients."""
    note = f"<p class='note'>The slowest {_CLIENTS} of {len(costs):,} clients.</p>" if len(costs) > _CLIENTS else ""
    return _costs("Client", [(text(one.name), one) for one in costs[:_CLIENTS]]) + note


def carried(phases: Traffic) -> str:
    """Return the table of the bytes of each phase, by layer and direction."""
    counted = {
        f"{layer.capitalize()} {way}": values
        for layer, ways in phases.layers.items()
        if np.isfinite(sum(ways.values())).any()
        for way, values in ways.items()
    }
    heads = "<th>Phase</th>" + _heads("n", ("Calls", *counted))
    rows = [
        f"<td>{text(name)}</td>" + _cells("n", (f"{calls:,}", *map(bytes_text, counts)))
        for name, calls, *counts in zip(phases.names, phases.calls, *counted.values(), strict=True)
    ]
    return _table(heads, rows)


def _costs(heading: str, rows: Iterable[tuple[str, CallCosts]]) -> str:
    rows = list(rows)
    totals = [sum(one.mean.values()) for _, one in rows]
    longest = max(filter(math.isfinite, totals), default=0.0)
    encrypted = any(one.encryption_p50 > 0 for _, one in rows)
    hidden = ("Encryption",) if encrypted else ()
    heads = f'<th>{heading}</th><th class="wide">Mean call</th>' + _heads(
        "n", ("Answered", "Late", "Failed", "Median", "p90", "Compute", *hidden, "Network")
    )
    cells = []
    for name, one in rows:
        encryption = (one.encryption_p50,) if encrypted else ()
        seconds = (one.total_p50, one.total_p90, one.compute_p50, *encryption, one.network_p50)
        cells.append(
            f'<td>{name}</td><td>{bar(one.mean, longest)}</td><td class="n">{one.answered:,}</td>'
            + _misses(one.late)
            + _misses(one.failed + one.unanswered)
            + _cells("n", map(seconds_text, seconds))
        )
    return _table(heads, cells)


def _misses(count: int) -> str:
    return f'<td class="n {"bad" if count else "none"}">{count:,}</td>'


def _settings(values: Iterable[object]) -> str:
    return _cells("set", (text(UNKNOWN if value is None else value) for value in values))


def _heads(kind: str, contents: Iterable[str]) -> str:
    return "".join(f'<th class="{kind}">{content}</th>' for content in contents)


def _cells(kind: str, contents: Iterable[str]) -> str:
    return "".join(f'<td class="{kind}">{content}</td>' for content in contents)


def _table(heads: str, rows: Iterable[str]) -> str:
    body = "".join(f"<tr>{row}</tr>" for row in rows)
    return f'<div class="scroll"><table><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table></div>'
