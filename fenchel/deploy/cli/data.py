"""Commands on data sets: ``list``, ``fetch``, ``import``, ``extract`` and ``show``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Column

from fenchel.common.data.limits import ORDINARY, DataLimits
from fenchel.common.errors import SettingsError
from fenchel.deploy.cli.options import ClientsOption, JsonOption, MaxDataBytesOption, MaxFeaturesOption, SetOption
from fenchel.deploy.cli.printing import plain_table, print_json, say

data = typer.Typer(
    help="Data sets: list, fetch, import, and show how a run divides one; features of images.", no_args_is_help=True
)

_COLUMN_WIDTH = 6  # width of a client's column in the terminal, in characters


@data.command("list")
def list_sets(as_json: JsonOption = False) -> None:
    """List the named data sets, and mark those on this machine."""
    from fenchel.common.data.catalogue import CATALOGUE, UNPUBLISHED, known_names, locate

    rows, counts = [], ("train", "test", "features", "classes")
    for name in known_names():
        entry = CATALOGUE.get(name) or UNPUBLISHED.get(name)
        about = {key: getattr(entry, key, None) for key in (*counts, "licence")}
        title = entry.title if entry else "imported"
        rows.append({"name": name, "here": locate(name) is not None, **about, "title": title})
    if as_json:
        print_json(rows, indent=2)
        return
    table = plain_table("name", "here", *(Column(key, justify="right") for key in counts), "what")
    for row in rows:
        numbers = [f"{row[key]:,}" if isinstance(row[key], int) else "" for key in counts]
        table.add_row(str(row["name"]), "yes" if row["here"] else "", *numbers, str(row["title"]))
    Console(highlight=False).print(table)


@data.command()
def fetch(name: Annotated[str, typer.Argument(help="name of a data set")]) -> None:
    """Download a data set from its public source and check it."""
    from fenchel.common.data.catalogue import locate
    from fenchel.common.data.fetch import entry_of
    from fenchel.deploy.launch.data import download

    console = Console(highlight=False)
    entry = entry_of(name)
    if locate(name) is not None:
        say(f"{name} is on this machine already", console)
        return
    say(f"{name} is in {download(entry, console)}", console)


@data.command("import")
def import_set(
    name: Annotated[str, typer.Argument(help="name for data.name in the settings")],
    files: Annotated[list[Path], typer.Argument(help="LIBSVM, CSV, NPZ, Parquet or IDX files")],
    label: Annotated[str | None, typer.Option(help="label column, in CSV and Parquet")] = None,
    max_features: MaxFeaturesOption = ORDINARY.features,
    max_data_bytes: MaxDataBytesOption = ORDINARY.bytes,
) -> None:
    """Make a named data set from local files."""
    from fenchel.common.data.catalogue import import_files

    made = import_files(name, files, label=label, limits=DataLimits(max_features, max_data_bytes))
    say(f"{name} is in {made}")


@data.command()
def extract(
    settings: Annotated[Path, typer.Argument(help="settings file (YAML) with data.extractor")],
    overrides: SetOption = None,
    threads: Annotated[int | None, typer.Option(min=1, help="number of threads of the network; default: all")] = None,
) -> None:
    """Compute the features of all images of a run in advance, so that its processes only read them."""
    import os

    from fenchel.common.data.extractor import feature_folder
    from fenchel.common.data.source import DataSource
    from fenchel.deploy.cli.conduct import load_shared
    from fenchel.deploy.launch.data import ensure

    chosen = load_shared(settings, overrides or ())
    console = Console(highlight=False)
    ensure(chosen.data, console)
    source = DataSource.open(chosen.data, chosen.seed, chosen.positive)
    images = source.extract(threads or os.cpu_count() or 1)
    say(f"the features of {images:,} images are in {feature_folder()}", console)


@data.command()
def show(
    settings: Annotated[Path, typer.Argument(help="settings file (YAML)")],
    overrides: SetOption = None,
    clients: ClientsOption = None,
    picture: Annotated[Path | None, typer.Option(help="also draw the table, as PNG")] = None,
) -> None:
    """Print (and draw) each client's number of samples of each class and of positive samples."""
    from fenchel.common.data.source import DataSource
    from fenchel.common.data.table import partition_table
    from fenchel.deploy.cli.conduct import load_shared
    from fenchel.deploy.launch.data import ensure
    from fenchel.report.render.partition import draw

    chosen = load_shared(settings, [*(overrides or []), *([f"clients={clients}"] if clients else [])])
    if not isinstance(chosen.clients, int):
        raise SettingsError("auto leaves the number of clients open; give it with --clients N", key="clients")
    console = Console(highlight=False, emoji=False)  # the name of a class may be :cat:
    ensure(chosen.data, console)
    table = partition_table(DataSource.open(chosen.data, chosen.seed, chosen.positive), chosen.clients)
    shown = plain_table("class", title=escape(table.title))
    number = min(chosen.clients, max(4, (console.width - 20) // _COLUMN_WIDTH))
    for client in range(number):
        shown.add_column(str(client), justify="right")
    for name, counts in zip(table.marked_names, table.counts, strict=True):
        shown.add_row(escape(name), *(str(count) if count else "·" for count in counts[:number]))
    shown.add_row("all", *(str(count) for count in table.counts.sum(axis=0)[:number]), style="bold")
    if table.positives is not None and table.rates is not None:
        shown.add_row("positive", *(str(count) for count in table.positives[:number]), style="bold")
        shown.add_row("imratio", *(f"{rate:.3f}" for rate in table.rates[:number]), style="bold")
    console.print(shown)
    if table.left_out:
        console.print(f"{table.left_out:,} training samples are on no client")
    if chosen.data.partition.kind == "class-groups" and table.shared_classes:
        console.print(f"{table.shared_classes} of {len(table.counts)} classes are on more than one client")
    if number < chosen.clients:
        console.print(f"... and {chosen.clients - number} more clients; --picture FILE.png draws all", style="dim")
    if picture is not None:
        draw(table, picture)
        say(f"picture  {picture}", console)
