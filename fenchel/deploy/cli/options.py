"""Options common to several commands."""

from __future__ import annotations

import logging
from glob import escape, glob
from pathlib import Path
from typing import Annotated, Literal, TypeAlias

import typer

from fenchel.deploy.launch.logs import log_to_terminal

LogLevel: TypeAlias = Literal["debug", "info", "warning", "error"]

DEFAULT_LISTEN = "0.0.0.0:7443"
DEFAULT_LISTEN_INSECURE = "127.0.0.1:7443"


def _log_from(level: LogLevel | None) -> LogLevel | None:
    """Show log records of at least the given level on the terminal."""
    if level is not None:
        log_to_terminal(logging.getLevelNamesMapping()[level.upper()])
    return level


def _complete_settings(incomplete: str) -> list[str]:
    """Return the experiments and the settings files whose names begin with what was typed."""
    from fenchel.common.settings.run import shipped_experiments  # late import, because it is slow

    names = [name for name in shipped_experiments() if name.startswith(incomplete)]
    paths = sorted(map(Path, glob(f"{escape(incomplete)}*")))  # noqa: PTH207 - Path.glob takes no absolute pattern
    folders = [f"{path}/" for path in paths if path.is_dir()]
    return [*names, *folders, *(str(path) for path in paths if path.suffix in (".yaml", ".yml"))]


SettingsArgument = Annotated[
    Path | None,
    typer.Argument(
        help="settings file (YAML), or an experiment such as quickstart; see docs/settings.md",
        autocompletion=_complete_settings,
    ),
]
SetOption = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="override one setting; dotted key, YAML value")
]
ClientsOption = Annotated[
    str | None, typer.Option("--clients", metavar="N|auto", help="number of clients, in place of the settings'")
]
InProcessOption = Annotated[
    bool,
    typer.Option(
        "--in-process", help="run all clients in this process, without a network: faster, and without real latency"
    ),
]
ProcessesOption = Annotated[
    int | None, typer.Option(min=1, help="number of client processes; default: one for each client, at most 16")
]
LabelOption = Annotated[str | None, typer.Option(metavar="COLUMN", help="column of the label in --data")]
IdentifierOption = Annotated[
    str | None,
    typer.Option(
        "--id",
        metavar="COLUMN|ARRAY|FILE",
        help="sample identifiers of --data: a column of CSV and Parquet, an array of NumPy archives, a text file "
        "beside LIBSVM, one a line",
    ),
]
RunsOption = Annotated[Path, typer.Option("--runs", help="folder in which run folders are created")]
ResumeOption = Annotated[
    Path | None, typer.Option("--resume", metavar="RUN", help="run folder of an interrupted run to continue")
]
PreviousOption = Annotated[
    bool,
    typer.Option(
        "--previous",
        help="with --resume: continue from the previous checkpoint, if the last one, or a client's journal after it, "
        "is damaged",
    ),
]
CertsOption = Annotated[Path | None, typer.Option("--certs", help="folder with authority, certificate and key")]
DashboardOption = Annotated[bool, typer.Option("--dashboard", help="serve the dashboard of the run (127.0.0.1:7444)")]
DashboardAtOption = Annotated[
    str | None,
    typer.Option(
        "--dashboard-at", metavar="HOST:PORT", help="serve the dashboard at this address, readable by all that reach it"
    ),
]
MetricsOption = Annotated[
    str | None,
    typer.Option("--metrics", metavar="HOST:PORT", help="serve metrics for Prometheus at this address, below /metrics"),
]
TrackOption = Annotated[
    list[str] | None,
    typer.Option(
        "--track", metavar="TRACKER", help="write the run to tensorboard, mlflow or wandb; repeat for several"
    ),
]
InsecureOption = Annotated[bool, typer.Option("--insecure", help="no TLS; for tests on one machine only")]
MaxFeaturesOption = Annotated[int, typer.Option(min=1, help="limit on the number of features of a data file")]
MaxDataBytesOption = Annotated[
    int,
    typer.Option(
        min=1,
        show_default="a quarter of the memory",
        help="limit on the bytes of a decompressed data file, and of its values at eight bytes each",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="print a JSON object on standard output, and nothing else")]
QuietOption = Annotated[
    bool,
    typer.Option(
        "--quiet", "-q", help="print only the path of the run folder; warnings and errors go to standard error"
    ),
]
LogLevelOption = Annotated[
    LogLevel | None,
    typer.Option(
        "--log-level",
        callback=_log_from,
        case_sensitive=False,
        show_default="warning",
        help="lowest level of log records to show; the log of the run folder has all from info on",
    ),
]
