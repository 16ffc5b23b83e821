"""Self-contained HTML page about one or more runs, which needs no network access."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from string import Template
from typing import Any

from fenchel.report import summary
from fenchel.report.curves import AXES
from fenchel.report.groups import SeedGroup, differing, groups_of, run_names
from fenchel.report.render import charts, html
from fenchel.report.render.html import text
from fenchel.report.render.output import output_at
from fenchel.report.run import Run
from fenchel.report.summary import CallCosts
from fenchel.report.traffic import carried_by

_EXPLAINED = (
    "<p class='note'>The rounds alone: a round is as long as the last answer that each of its exchanges waited "
    "for, and the parts are those of these answers. What other clients waited meanwhile is not among them.</p>"
)


def write_report(runs: Sequence[Run], path: Path, optima: Sequence[float | None] = ()) -> Path:
    """Write the HTML page.

    Parameters
    ----------
    runs
        Runs to show in detail. A page of several runs begins with their comparison.
    path
        Path of the HTML file. Missing parent folders are created.
    optima
        Minimum of each run's objective (:mod:`fenchel.report.optimum`), which adds a chart of the optimality gap.
    """
    page = render(runs, optima)
    with output_at(path):
        path.write_text(page, encoding="utf-8", newline="\n")
    return path


def render(runs: Sequence[Run], optima: Sequence[float | None] = ()) -> str:
    """Return the HTML page as text. The parameters are those of :func:`write_report`, without ``path``."""
    made, fixed = parts(runs, optima), fixed_parts()
    return Template(_part("page.html")).substitute(
        title=made.title,
        policy=_policy(fixed.scripts.values()),
        style=fixed.style,
        body=made.body,
        data=made.data,
        **fixed.scripts,
    )


@dataclass(frozen=True)
class Fixed:
    """Parts common to all pages.

    Attributes
    ----------
    style
        CSS style sheet.
    scripts
        JavaScript sources by name, in the order of execution: ``plotly``, ``script``.
    """

    style: str
    scripts: Mapping[str, str]


@dataclass(frozen=True)
class PageParts:
    """Content of a page on particular runs.

    Attributes
    ----------
    title, body
        HTML of the title and the body, with all untrusted text escaped.
    data
        JSON data of the charts, escaped for use in an HTML element.
    """

    title: str
    body: str
    data: str


def fixed_parts() -> Fixed:
    """Return the parts common to all pages, for servers that send them separately."""
    return Fixed(_part("page.css"), {"plotly": _part("plotly.min.js"), "script": _part("page.js")})


def parts(runs: Sequence[Run], optima: Sequence[float | None] = ()) -> PageParts:
    """Return the content of a page on some runs, with the parameters of :func:`write_report`."""
    groups = groups_of(runs)
    names = run_names(groups, runs)
    numbers = charts.chart_data(runs, names, optima)
    data = json.dumps(numbers, separators=(",", ":"), allow_nan=False)
    several = len(runs) > 1
    lines = [group.name for group in groups] or names
    curves = _convergence(lines, numbers["panels"], numbers["axes"], several)
    return PageParts(
        title=text(f"{len(runs)} runs" if several else names[0]),
        body=_several(runs, names, groups, curves) if several else _single(runs[0], names[0], curves),
        # escape "<", so that no name of a run closes the element with the data
        data=data.replace("<", "\\u003c"),
    )


def _part(name: str) -> str:
    return resources.files("fenchel.report.render").joinpath(name).read_text(encoding="utf-8")


def _policy(scripts: Iterable[str]) -> str:
    """Return a content security policy that allows only the given scripts and no network access."""
    hashes = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts]
    allowed = " ".join(f"'sha256-{value}'" for value in hashes)
    return f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data: blob:"


def _single(run: Run, name: str, curves: str) -> str:
    return (
        f"<header><p class='kind'>Fenchel run</p><h1>{text(name)} {html.state(run)}</h1>"
        f"<p class='id'>{text(run.id)}</p>{html.headline(run)}</header>"
        f"{html.tiles(run)}{curves}{_details(run, 0)}"
    )


def _several(runs: Sequence[Run], names: Sequence[str], groups: Sequence[SeedGroup], curves: str) -> str:
    colour = {id(run): index for index, group in enumerate(groups) for run in group.runs}
    marks = [colour.get(id(run), index) for index, run in enumerate(runs)]
    labels = html.marked(names, marks)
    each = "".join(
        f'<details class="run"><summary>{label} {html.state(run)}</summary>'
        f'<p class="id">{text(run.id)}</p>{html.headline(run)}{_details(run, index)}</details>'
        for index, (run, label) in enumerate(zip(runs, labels, strict=True))
    )
    comparison = html.comparison(runs, labels)
    differences = html.differences(
        differing([group.runs[0] for group in groups]) if groups else summary.differing_settings(runs),
        [group.name for group in groups] or names,
    )
    first, later = (html.grouped(groups), comparison) if groups else (comparison, "")
    return (
        f"<header><p class='kind'>Fenchel runs</p><h1>{len(runs)} runs compared</h1></header>"
        f"{first}{curves}"
        f"<section><h2>Where the time goes</h2>{html.walls(runs, labels)}{_EXPLAINED}"
        f"{html.times(runs, labels)}</section>"
        f"<section><h2>Settings that differ</h2>{differences}</section>"
        f"<section><h2>Run by run</h2>{later}{each}</section>"
    )


def _convergence(names: Sequence[str], panels: Sequence[dict[str, Any]], axes: Mapping[str, str], several: bool) -> str:
    if not panels:
        return "<section><h2>Convergence</h2><p class='note'>No round has been evaluated yet.</p></section>"
    switches = _switch("x", "Horizontal axis", {axis: AXES[axis] for axis in axes})
    switches += _switch("y", "Vertical axis of losses", {"linear": "Linear", "log": "Log"})
    legend = ""
    if several:
        splits = [split for split in ("test", "train", "holdout") if any(split in p["figures"] for p in panels)]
        switches += _switch("split", "Samples", {split: split.capitalize() for split in splits})
        entries = "".join(
            f'<button type="button" aria-pressed="true" data-toggle="{index}">{label}</button>'
            for index, label in enumerate(html.marked(names))
        )
        legend = f'<div class="legend" aria-label="Runs shown">{entries}</div>'
    drawn = "".join(
        _chart(panel["title"], f'data-chart="curves" data-panel="{index}"') for index, panel in enumerate(panels)
    )
    return (
        f'<section><div class="bar-of-switches"><h2>Convergence</h2>{switches}</div>{legend}'
        f'<div class="grid">{drawn}</div></section>'
    )


def _switch(name: str, meaning: str, choices: dict[str, str]) -> str:
    if len(choices) < 2:
        return ""
    buttons = "".join(
        f'<button type="button" data-value="{value}" aria-pressed="{"false" if index else "true"}">{label}</button>'
        for index, (value, label) in enumerate(choices.items())
    )
    return f'<div class="switch" role="group" aria-label="{meaning}" data-state="{name}">{buttons}</div>'


def _details(run: Run, index: int) -> str:
    parts = []
    phases = summary.costs_by(run.steady.calls, "phase")
    clients = summary.costs_by(summary.own_calls(run.steady.calls), "client")
    if run.rounds:
        parts.append(
            f"<section><h2>Where the time goes</h2>{html.wall(run)}{_EXPLAINED}{html.time_share(run)}"
            f"{_run_chart('Seconds per round', 'time', index)}</section>"
        )
    if phases:
        parts.append(
            f"<section><h2>Phases</h2>{html.phases(phases)}"
            f'<div class="grid two">{_run_chart("Latency: the whole call", "total", index)}'
            f"{_run_chart('Latency: the network alone', 'network', index)}</div></section>"
        )
    if clients:
        parts.append(f"<section><h2>Clients</h2>{_clients(clients, index)}</section>")
    if phases:
        switch = _switch("layer", "Bytes of", {"wire": "Wire", "payload": "Payload", "socket": "Socket"})
        parts.append(
            f'<section><div class="bar-of-switches"><h2>Bytes</h2>{switch}</div>'
            f'<div class="grid two">{_run_chart("Bytes per round", "traffic", index)}'
            f"{_run_chart('Bytes by client', 'carried', index)}</div>"
            f"{html.carried(carried_by(run.calls_table, 'phase'))}"
            "<p class='note'>Payload: the arrays themselves. Wire: the frames that carried them. Socket: all that "
            "crossed the connections, by the operating system's count. The bars of rounds are without the "
            "evaluation, those of clients with it.</p></section>"
        )
    settings = "\n".join(map(text, run.settings_text.splitlines()))
    parts.append(
        f"<section>{html.warnings(run)}<details class='settings'><summary>Settings</summary>"
        f"<pre>{settings}</pre></details>{html.environment(run)}</section>"
    )
    return "".join(parts)


def _clients(clients: Sequence[CallCosts], index: int) -> str:
    switch = _switch("map", "Seconds that", {"waited": "Waited for others", "took": "Answer took"})
    return (
        f"{_run_chart('Mean seconds of a call, the slowest client first', 'clients', index)}"
        f"{html.clients(clients)}"
        f"{_run_chart('Waiting for slower clients, by client and round', 'waiting', index, switch)}"
        "<p class='note'>How long each client waited for slower clients, or how long its answers took. "
        "Colours end at the 99th percentile of the rounds; round 0 is the setup. A cross is an answer that did not "
        "come or did not count; where a client was not asked there is nothing.</p>"
    )


def _run_chart(title: str, kind: str, index: int, switch: str = "") -> str:
    return _chart(title, f'data-chart="{kind}" data-run="{index}"', switch)


def _chart(title: str, what: str, switch: str = "") -> str:
    return (
        f"<figure><figcaption><h3>{text(title)}</h3>{switch}"
        f'<span class="keys"></span></figcaption><div class="chart" {what}></div></figure>'
    )
