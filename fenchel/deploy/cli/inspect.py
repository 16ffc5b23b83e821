"""Read-only commands: ``check``, ``algorithms``, ``report`` and ``probe``."""

from __future__ import annotations

import asyncio
import inspect as introspection
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import BaseModel
from rich.console import Console
from rich.markup import escape

from fenchel.common.errors import FenchelError, Place, SettingsError
from fenchel.common.settings.run import json_schema, load
from fenchel.deploy.cli.options import InsecureOption, JsonOption, SetOption, SettingsArgument
from fenchel.deploy.cli.printing import plain_table, print_json, say, warn_of, wide

_ANY_WIDTH = 1000  # console width in columns that exceeds every table, used to measure a table's natural width


def check(
    settings: SettingsArgument = None,
    overrides: SetOption = None,
    schema: Annotated[bool, typer.Option("--schema", help="print the JSON Schema of settings, for editors")] = False,
    with_data: Annotated[bool, typer.Option("--data/--no-data", help="also open the data and divide it")] = True,
    as_json: JsonOption = False,
) -> None:
    """Check a settings file (keys, values, combinations, data and partition) without a run."""
    if schema:
        print_json(json_schema(), indent=2)
        return
    if settings is None:
        raise SettingsError("no settings given; give a file, or --schema")
    if as_json:
        try:
            _, cautions = _facts(settings, overrides or (), with_data, Console(stderr=True))
        except FenchelError as error:
            print_json({"ok": False, "problems": _problems(error, settings), "warnings": []})
            raise typer.Exit(error.exit_code) from None
        print_json({"ok": True, "problems": [], "warnings": list(cautions)})
        return
    console = Console(highlight=False, emoji=False)
    facts, cautions = _facts(settings, overrides or (), with_data, console)
    for name, fact in facts.items():
        console.print(f"{name:10} {escape(fact)}")
    if "data" not in facts:
        console.print("[dim]not looked at: the data, and what depends on them[/]")
    if facts["clients"] == "auto":
        console.print("[dim]not looked at: what depends on the number of clients; check it with --set clients=N[/]")
    for caution in cautions:
        warn_of(caution)
    console.print(f"[green]{escape(str(settings))} is fine[/]")


def _facts(
    settings: Path, overrides: Sequence[str], with_data: bool, console: Console
) -> tuple[dict[str, str], Sequence[str]]:
    """Check a settings file; return facts about its run, and warnings."""
    from fenchel.deploy.launch.data import ensure
    from fenchel.deploy.launch.names import client_names
    from fenchel.server.preflight import check_run, open_data

    chosen = load(settings, overrides)
    source = None
    if with_data:
        ensure(chosen.data, console)
        source = open_data(chosen)
    clients = chosen.clients if isinstance(chosen.clients, int) else None
    cautions = check_run(chosen, source, clients)
    if chosen.links is not None and clients is not None:
        chosen.links.of_clients(client_names(clients))
    facts = {"algorithm": chosen.algorithm.name, "rounds": str(chosen.rounds), "clients": str(chosen.clients)}
    if source is not None:
        from fenchel.common.objectives.factory import dimension_of

        problem = source.problem
        facts["data"] = f"{chosen.data.name or chosen.data.file}, {problem.samples:,} training samples"
        facts["model"] = f"{dimension_of(chosen.objective, problem.features, problem.classes):,} parameters"
        if clients is not None:
            sizes = [len(part.samples) for part in source.parts(clients)]
            facts["shards"] = f"{min(sizes):,} to {max(sizes):,} samples"
    return facts, cautions


def _problems(error: FenchelError, settings: Path) -> list[dict[str, object]]:
    """Return the problems of an error in machine-readable form: key, message and location."""
    parts = {name: value for name in Place.__annotations__ if (value := getattr(error, name)) not in (None, "")}
    several = error.problems if isinstance(error, SettingsError) and error.problems else ((error.key, error.problem),)
    return [{**parts, "key": key, "message": text, "source": error.source or str(settings)} for key, text in several]


def algorithms(
    name: Annotated[str | None, typer.Argument(help="algorithm whose paper and settings are shown")] = None,
    as_json: JsonOption = False,
) -> None:
    """List the algorithms, or show the paper and the settings of one."""
    from fenchel.common.settings.registry import algorithm_settings, builtin_settings

    try:
        chosen = builtin_settings() if name is None else {name: algorithm_settings(name)}
    except ValueError as error:
        raise SettingsError(str(error)) from None
    if as_json:
        print_json({each: _about(each, settings) for each, settings in chosen.items()}, indent=2)
        return
    console = wide(Console(highlight=False))
    if name is None:
        overview = plain_table("algorithm", "")
        for each, settings in chosen.items():
            overview.add_row(f"[bold]{each}[/]", escape(_summary(settings)))
        console.print(overview)
        say("\nThe settings of one: fenchel algorithms NAME", console)
        return
    about = _about(name, chosen[name])
    console.print(f"[bold]{escape(name)}[/]  {escape(about['summary'])}")
    for source in about["source"]:
        console.print(escape(" ".join(source.split())), style="dim")
    table = plain_table("setting", "default", "meaning")
    for key, field in about["settings"].items():
        table.add_row(key, escape(str(field["default"])), escape(field["description"]))
    console.print(table)


def _summary(settings: type[BaseModel]) -> str:
    """Return the first line of the description of an algorithm's settings, which names its method and paper."""
    return next(iter((introspection.getdoc(settings) or "").splitlines()), "")


def _about(name: str, settings: type[BaseModel]) -> dict[str, Any]:
    """Return the summary, paper and settings of an algorithm."""
    from fenchel.algorithms.registry import server_half

    return {
        "summary": _summary(settings),
        "source": (introspection.getdoc(introspection.getmodule(server_half(name))) or "").split("\n\n")[1:2],
        "settings": {
            key: {
                "default": None if field.is_required() else _plain(field.get_default(call_default_factory=True)),
                "description": field.description or "",
            }
            for key, field in settings.model_fields.items()
            if key != "name"
        },
    }


def _plain(default: object) -> object:
    return default.model_dump(mode="json") if isinstance(default, BaseModel) else default


def report(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN...", help="run folders, finished or not; or folders of sweeps")
    ],
    output: Annotated[
        Path | None,
        typer.Option(
            *("--output", "-o", "--html"),
            metavar="FILE",
            help="file of the page; default: report.html in the run folder, or comparison.html beside the first of "
            "several runs",
        ),
    ] = None,
    png: Annotated[Path | None, typer.Option(metavar="DIR", help="also draw plots into this folder")] = None,
    csv: Annotated[
        Path | None, typer.Option(metavar="DIR", help="also write the numbers of all charts into this folder")
    ] = None,
    optimum: Annotated[
        list[float] | None,
        typer.Option(
            help="optimum of the objective (fenchel solve), to show the optimality gap; once for all runs of the same "
            "problem, else once for each run, in their order"
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Show one run, or compare several, as a table and as a self-contained HTML page (docs/report.md)."""
    from fenchel.report.optimum import optima_of
    from fenchel.report.render.page import write_report
    from fenchel.report.render.terminal import as_json as described
    from fenchel.report.render.terminal import show
    from fenchel.report.run import Run

    # A run that is given twice is shown once.
    paths = {each.resolve(): each for path in runs for each in _run_paths(path)}
    found = [Run(each) for each in paths.values()]
    optima = optima_of(found, optimum or ())
    written: list[Path] = []
    if png is not None:
        from fenchel.report.render.plots import write_pictures

        written += write_pictures(found, png, optima)
    if csv is not None:
        from fenchel.report.render.tables import write_tables

        written += write_tables(found, csv, optima)
    if as_json:
        print_json(described(found), indent=2)
        return
    console = wide(Console())
    show(found, console)
    page = found[0].path / "report.html" if len(found) == 1 else found[0].path.parent / "comparison.html"
    page = write_report(found, output or page, optima)
    for kind, path in [("page", page), *((path.suffix[1:], path) for path in written)]:
        say(f"{kind:5} {path}", console)


def _run_paths(path: Path) -> list[Path]:
    """Return the run folders in a sweep's folder; for any other path, only the path itself."""
    from fenchel.report.index import run_folders

    return [folder.path for folder in run_folders(path)] or [path] if path.is_dir() else [path]


def probe(
    server: Annotated[str, typer.Argument(metavar="HOST:PORT", help="address of the server")],
    certs: Annotated[
        list[Path] | None, typer.Option(help="folder of a client's certificate; repeat it for several clients")
    ] = None,
    pings: Annotated[int, typer.Option(min=2, help="number of round trips to measure")] = 50,
    insecure: InsecureOption = False,
    as_json: JsonOption = False,
) -> None:
    """Measure each client's round-trip time, jitter, clock offset and throughput to a server."""
    from fenchel.client.probe import probe as measure
    from fenchel.common.tls.credentials import Credentials
    from fenchel.deploy.address import Address
    from fenchel.deploy.certificates.description import common_name

    if (not certs) != insecure:
        given = "both --certs and --insecure" if insecure else "no identity"
        raise SettingsError(f"{given} given; give either --certs DIR (once for each client) or --insecure")
    Address.parse(server, "the server's address")
    identities = [Credentials.load(folder) for folder in certs or []]
    whom: list[tuple[Credentials | None, str]] = [(each, common_name(each)) for each in identities]
    whom = whom or [(None, "probe")]
    results = [asyncio.run(measure(server, each, name, pings=pings)) for each, name in whom]
    if as_json:
        print_json([asdict(result) for result in results], indent=2)
        return
    _show_probes([result.cells() for result in results], Console(highlight=False))


def _show_probes(rows: Sequence[Sequence[str]], console: Console) -> None:
    """Print a row for each client, or a row for each figure if there is one client or the terminal is narrow."""
    titles = ("client", "p50", "p90", "p99", "jitter", "clock offset", "up", "down")
    table = plain_table()
    for title in titles:
        table.add_column(title, justify="left" if title == "client" else "right", no_wrap=True)
    for row in rows:
        table.add_row(*map(escape, row))
    everything = console.options.update(width=_ANY_WIDTH)
    if len(rows) > 1 and console.measure(table, options=everything).maximum <= console.width:
        console.print(table)
        return
    for row in rows:
        for title, cell in zip(titles, row, strict=True):
            console.print(f"{title:12}  {escape(cell)}", soft_wrap=True)
