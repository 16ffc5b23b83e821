"""A page about one run or several: one HTML file that needs nothing else, not even a network."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable, Sequence
from importlib import resources
from pathlib import Path
from string import Template

from report import charts, digest, fragments
from report.fragments import text
from report.run import Run


def write_report(runs: Sequence[Run], path: Path) -> Path:
    """Write the page.

    Parameters
    ----------
    runs
        One, shown in detail, or several, compared first and then shown one by one.
    path
        Of the HTML file; folders above it are made.

    Returns
    -------
    Path
        The same ``path``.
    """
    from plotly.offline import get_plotlyjs

    names = digest.labels(runs)
    data = json.dumps(charts.chart_data(runs, names), separators=(",", ":"), allow_nan=False)
    scripts = {"plotly": get_plotlyjs(), "script": _part("page.js")}
    page = Template(_part("page.html")).substitute(
        title=text(names[0] if len(runs) == 1 else f"{len(runs)} runs"),
        policy=_policy(scripts.values()),
        style=_part("page.css"),
        body=_single(runs[0], names[0]) if len(runs) == 1 else _several(runs, names),
        # "<" cannot end the element that holds the data, whatever a run is called.
        data=data.replace("<", "\\u003c"),
        **scripts,
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page, encoding="utf-8", newline="\n")
    return path


def _part(name: str) -> str:
    return resources.files("report").joinpath(name).read_text(encoding="utf-8")


def _policy(scripts: Iterable[str]) -> str:
    """Return a content security policy: these scripts run, no others, and nothing is fetched from anywhere."""
    hashes = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts]
    allowed = " ".join(f"'sha256-{value}'" for value in hashes)
    return f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data: blob:"


def _single(run: Run, name: str) -> str:
    return (
        f"<header><p class='kind'>Fenchel run</p><h1>{text(name)} {fragments.state(run)}</h1>"
        f"<p class='id'>{text(run.id)}</p>{fragments.headline(run)}</header>"
        f"{fragments.tiles(run)}{_convergence([run], [name])}{_details(run, 0)}"
    )


def _several(runs: Sequence[Run], names: Sequence[str]) -> str:
    each = "".join(
        f'<details class="run"><summary>{fragments.swatch(index)}{text(name)} {fragments.state(run)}</summary>'
        f'<p class="id">{text(run.id)}</p>{fragments.headline(run)}{_details(run, index)}</details>'
        for index, (run, name) in enumerate(zip(runs, names, strict=True))
    )
    return (
        f"<header><p class='kind'>Fenchel runs</p><h1>{len(runs)} runs compared</h1></header>"
        f"{fragments.comparison(runs, names)}{_convergence(runs, names)}"
        f"<section><h2>Where the time goes</h2>{_explained()}{fragments.times(runs, names)}</section>"
        f"<section><h2>Run by run</h2>{each}</section>"
    )


def _convergence(runs: Sequence[Run], names: Sequence[str]) -> str:
    panels = charts.panels(runs)
    if not panels:
        return "<section><h2>Convergence</h2><p class='note'>No round has been evaluated yet.</p></section>"
    switches = _switch("x", "Horizontal axis", {"round": "Rounds", "seconds": "Seconds", "bytes": "Bytes"})
    switches += _switch("y", "Vertical axis of losses", {"linear": "Linear", "log": "Log"})
    legend = ""
    if len(runs) > 1:
        splits = [
            split for split in ("test", "train", "holdout") if any(split in p["figures"] for p in panels)
        ]
        switches += _switch("split", "Samples", {split: split.capitalize() for split in splits})
        entries = "".join(
            f'<button type="button" aria-pressed="true" data-toggle="{index}">'
            f"{fragments.swatch(index)}{text(name)}</button>"
            for index, name in enumerate(names)
        )
        legend = f'<div class="legend" aria-label="Runs shown">{entries}</div>'
    drawn = "".join(
        f'<figure><figcaption><h3>{text(panel["title"])}</h3><span class="keys"></span></figcaption>'
        f'<div class="chart" data-chart="curves" data-panel="{index}"></div></figure>'
        for index, panel in enumerate(panels)
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
    phases = digest.costs_by(run.calls_table, "phase")
    clients = digest.costs_by(digest.own_calls(run.calls_table), "client")
    if run.rounds:
        share = fragments.time_share(digest.time_split(run.metrics_table))
        parts.append(
            f"<section><h2>Where the time goes</h2>{_explained()}{share}"
            f'<div class="grid two">{_chart("Seconds per round", "time", index)}'
            f"{_chart('Bytes per round', 'traffic', index)}</div></section>"
        )
    if phases:
        parts.append(f"<section><h2>Phases</h2>{fragments.phases(phases)}</section>")
    if clients:
        spread = (
            _chart("Number of clients by the median seconds of their calls", "spread", index)
            if len(clients) > 20
            else ""
        )
        parts.append(f"<section><h2>Clients</h2>{spread}{fragments.clients(clients)}</section>")
    parts.append(
        f"<section>{fragments.warnings(run)}<details class='settings'><summary>Settings</summary>"
        f"<pre>{text_block(run.settings_text)}</pre></details></section>"
    )
    return "".join(parts)


def text_block(foreign: str) -> str:
    """Return foreign text of several lines for use in HTML."""
    return "\n".join(text(line) for line in foreign.splitlines())


def _explained() -> str:
    return (
        "<p class='note'>The parts are those of the last answer that each exchange waited for. "
        "Waiting is the rest of the round. Evaluation is not included.</p>"
    )


def _chart(title: str, kind: str, index: int) -> str:
    return (
        f'<figure><figcaption><h3>{title}</h3><span class="keys"></span></figcaption>'
        f'<div class="chart" data-chart="{kind}" data-run="{index}"></div></figure>'
    )
