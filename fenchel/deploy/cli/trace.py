"""Command ``fenchel trace``: the timeline of a run in the format of Perfetto."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fenchel.deploy.cli.printing import say


def trace(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="run folder, finished or not")],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="file of the trace; default: trace.json in the run folder; .gz compresses it",
        ),
    ] = None,
) -> None:
    """Write a timeline of the server and all clients, on the server's clock.

    Open the file at https://ui.perfetto.dev or in chrome://tracing. docs/measuring.md describes its contents, and the
    accuracy of the clients' clock offsets.
    """
    from fenchel.report.render.trace import write_trace
    from fenchel.report.run import Run

    path = output or run / "trace.json"
    number = write_trace(Run(run), path)
    say(f"trace  {path} ({number:,} events)")
