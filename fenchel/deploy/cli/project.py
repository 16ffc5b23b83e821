"""Command ``fenchel project``: the projected duration of a finished run over other links."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fenchel.common.errors import SettingsError
from fenchel.common.settings.link import PRESETS, Link, parse_link
from fenchel.deploy.cli.options import JsonOption
from fenchel.deploy.cli.printing import figures_table, print_json, say, wide

if TYPE_CHECKING:
    from fenchel.report.projection.projection import Projection
    from fenchel.report.timeline import Timeline


_SOURCE = "fenchel project"


def project(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="run folder")],
    preset: Annotated[
        list[str] | None,
        typer.Option(metavar="PRESET", help=f"one of {', '.join(PRESETS)}; repeatable. Without any link: all of them"),
    ] = None,
    rtt: Annotated[
        list[str] | None,
        typer.Option(metavar="TIME", help="round-trip time, such as 257.5ms or 0.8; repeat for several"),
    ] = None,
    bandwidth: Annotated[
        list[str] | None,
        typer.Option(
            metavar="RATE", help="bandwidth of each client in both directions, such as 20Mbit; repeat for several"
        ),
    ] = None,
    upload: Annotated[str | None, typer.Option(metavar="RATE", help="bandwidth of each client to the server")] = None,
    download: Annotated[
        str | None, typer.Option(metavar="RATE", help="bandwidth from the server to each client")
    ] = None,
    jitter: Annotated[
        str | None, typer.Option(metavar="TIME", help="mean of the random addition to the round trip")
    ] = None,
    server_bandwidth: Annotated[
        str | None,
        typer.Option(metavar="RATE", help="bandwidth of the server in each direction, shared by all clients"),
    ] = None,
    picture: Annotated[
        Path | None, typer.Option(metavar="PNG", help="plot the parts of the time over each link")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Project the duration of a run to other links, from its measured compute times and bytes.

    Every client has its own link. The command combines all given round-trip times with all given bandwidths.
    docs/projection.md describes the model and its accuracy.
    """
    from fenchel.report.projection.projection import measured
    from fenchel.report.projection.projection import project as projected
    from fenchel.report.run import Run
    from fenchel.report.timeline import Timeline

    figures = {"upload": upload, "download": download, "jitter": jitter}
    links = _links(preset or (), rtt or (), bandwidth or (), figures)
    shared = None if server_bandwidth is None else _rate("--server-bandwidth", server_bandwidth)
    course = Timeline.of(Run(run))
    real = measured(course)
    found = [projected(course, link, shared) for link in links]
    notes = _notes(course, links, shared)
    drawn = None
    if picture is not None:
        from fenchel.report.projection.picture import draw_projections

        named = [("measured", real), *((_name(link), each) for link, each in zip(links, found, strict=True))]
        drawn = draw_projections(named, picture, title=f"{course.run.id}: all rounds and evaluations")
    if as_json:
        described = [_described(each) for each in found]
        values = {"id": course.run.id, "measured": _described(real), "projected": described, "notes": notes}
        print_json(values)
        return
    wide(Console(highlight=False)).print(_table(real, found))
    for note in notes:
        say(f"note     {note}")
    if drawn is not None:
        say(f"picture  {drawn}")


def _links(
    presets: Sequence[str], rtts: Sequence[str], bandwidths: Sequence[str], figures: dict[str, str | None]
) -> list[Link]:
    """Return the links of all combinations of presets, round-trip times and bandwidths, each with the other figures."""
    given = {key: value for key, value in figures.items() if value is not None}
    if not (presets or rtts or bandwidths or given):
        presets = tuple(PRESETS)
    rates = [_rate("--bandwidth", text) for text in bandwidths]
    links = []
    for name, time, rate in product(presets or (None,), rtts or (None,), rates or (None,)):
        values: dict[str, Any] = {"preset": name, "rtt": time, "upload": rate, "download": rate} | given
        links.append(parse_link({key: value for key, value in values.items() if value is not None}, _SOURCE))
    return links


def _rate(option: str, text: str) -> float:
    """Return a rate in bytes per second, or raise a SettingsError that names the option."""
    try:
        rate = parse_link({"upload": text}, _SOURCE).upload
    except SettingsError as error:
        raise SettingsError(error.problem, key=option, source=error.source) from None
    assert rate is not None
    return rate


def _notes(course: Timeline, links: Sequence[Link], shared: float | None) -> list[str]:
    """Return notes on the validity of the projected durations."""
    from fenchel.report.formatting import bytes_text, count_text, seconds_text
    from fenchel.report.projection.projection import WINDOW_BYTES

    run, notes = course.run, []
    if run.state != "completed":
        rounds = count_text(len(course.rounds), "round")
        notes.append(f"the run is {run.state}: the figures are for the {rounds} that it has done")
    if run.steady.seconds:
        notes.append(
            f"after a resumption, {seconds_text(run.steady.seconds)} passed until clients were back: they are left out"
        )
    if course.overdue:
        notes.append(
            f"{count_text(course.overdue, 'instruction')} had no answer in time; the server waits as long for them "
            "here, and deadlines are not applied to other links"
        )
    largest = course.largest_message
    rates = [(link, min(link.upload or math.inf, link.download or math.inf)) for link in links]
    if largest > WINDOW_BYTES and any(link.rtt and rate * link.rtt > WINDOW_BYTES for link, rate in rates):
        notes.append(
            f"messages of up to {bytes_text(largest)} need several windows of {bytes_text(WINDOW_BYTES)}, each a round "
            "trip; a real run may need one or two more of them than counted here"
        )
    if shared is not None:
        notes.append(f"all clients share {8e-6 * shared:g} Mbit/s at the server, in each direction")
    if any(link.cut_at or link.cut_every for link in links):
        notes.append("cuts are left out")
    return notes


def _name(link: Link) -> str:
    """Return the name of a link's preset, or a description of a link without a preset."""
    if link.preset is not None and link == parse_link({"preset": link.preset}, _SOURCE):
        return link.preset
    return link.in_words


def _table(real: Projection, found: Sequence[Projection]) -> Table:
    from fenchel.report.formatting import seconds_text, share_text

    headings = ("total", "times\nmeasured", "of it\nevaluation", "median\nround", "most of\nthe rounds")
    table = figures_table("link", *headings, min_width=12)
    for each in (real, *found):
        parts = each.parts
        share = float(getattr(parts, parts.largest)) / parts.total if parts.total else 0.0
        table.add_row(
            Text("as measured" if each.link is None else _name(each.link)),
            seconds_text(each.total),
            "1" if each.link is None else f"{each.total / real.total:.3g}",
            seconds_text(float(each.evaluation.sum())),
            seconds_text(each.median),
            f"{parts.largest} {share_text(share, digits=0)}",
        )
    return table


def _described(each: Projection) -> dict[str, Any]:
    return {
        "link": None if each.link is None else each.link.model_dump(mode="json"),
        "total": each.total,
        "median_round": each.median,
        "evaluation": float(each.evaluation.sum()),
        "parts": asdict(each.parts),
        "seconds": each.seconds.tolist(),
        "evaluation_seconds": each.evaluation.tolist(),
    }
