"""Command line ``fenchel``.

Each command is a thin layer: it parses its arguments, calls the component that does the work, and prints the result.
An error that the user can resolve becomes one paragraph on standard error and an exit code (``docs/errors.md``).
"""

from __future__ import annotations

import asyncio
import gc
import importlib
import logging
import os
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from fenchel.common.defects import user_frames
from fenchel.common.errors import INTERRUPTED, FenchelError, TooManyFilesError, too_many_files
from fenchel.common.version import software
from fenchel.deploy.cli.printing import complain_of
from fenchel.deploy.launch import grpc_engine
from fenchel.deploy.launch.logs import log_to_terminal

ONE_THREAD = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")
"""Environment variables for the number of threads of linear algebra."""

COMMANDS: Mapping[str, Mapping[str, str]] = {
    "Every day": {
        "up": "up",
        "server": "server",
        "client": "client",
        "check": "inspect",
        "report": "inspect",
        "runs": "runs",
        "certs": "certs",
        "data": "data",
    },
    "Setting up": {
        "new": "new",
        "doctor": "doctor",
        "algorithms": "inspect",
        "keys": "keys",
        "probe": "inspect",
        "relay": "relay",
    },
    "Looking into runs": {"trace": "trace", "project": "project", "energy": "energy", "disclosures": "disclosures"},
    "Searching and solving": {"tune": "tune", "solve": "solve"},
}
"""Commands by group: the module of ``fenchel.deploy.cli`` that has a function or an application of that name."""


def set_up_process() -> None:
    """Set environment variables of gRPC and linear algebra, before any module imports these libraries.

    An import of this module does not set them, because a library must not change its host process.
    """
    grpc_engine.choose()
    # gRPC prints a line for each failed handshake, so that strangers could fill a server's terminal
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    for name in ONE_THREAD:  # child processes inherit these environment variables
        os.environ.setdefault(name, "1")


def add_working_directory() -> None:
    """Append the current folder to the module path, so that settings can name its modules, which hide no others."""
    here = str(Path.cwd())
    if "" not in sys.path and here not in sys.path:
        sys.path.append(here)


def application(command: str | None = None) -> typer.Typer:
    """Return the application, with its commands in the groups of ``fenchel --help``.

    Parameters
    ----------
    command
        Only command of the application, so that no other is imported. ``None`` or an unknown name: all commands.
    """
    app = typer.Typer(
        name="fenchel",
        callback=_whole,
        no_args_is_help=True,
        add_completion=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    known = any(command in commands for commands in COMMANDS.values())
    for panel, commands in COMMANDS.items():
        for name, module in commands.items():
            if name == command or not known:
                found = getattr(importlib.import_module(f"fenchel.deploy.cli.{module}"), name)
                if isinstance(found, typer.Typer):
                    app.add_typer(found, name=name, rich_help_panel=panel)
                else:
                    app.command(rich_help_panel=panel)(found)
    return app


def _show_version(wanted: bool) -> None:
    if wanted:
        print(software())  # noqa: T201
        raise typer.Exit


def _whole(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Federated primal-dual learning over a real network."""


def main() -> NoReturn:
    """Run the command line and exit."""
    set_up_process()
    log_to_terminal(logging.WARNING)
    add_working_directory()
    try:
        gc.disable()  # imported objects stay, so a search for cycles among them only takes time
        app = application(sys.argv[1] if len(sys.argv) > 1 else None)
        gc.freeze()
        gc.enable()
        # With standalone_mode=False, typer returns the code of typer.Exit and re-raises all other exceptions.
        code = app(prog_name="fenchel", standalone_mode=False)
    except FenchelError as error:
        complain_of(str(error))
        code = error.exit_code
    except (typer.Abort, KeyboardInterrupt, asyncio.CancelledError):
        code = INTERRUPTED
    except Exception as error:
        if hasattr(error, "show"):  # usage errors of typer have a method show
            error.show()
            code = 2
        elif too_many_files(error):  # for example, an import exceeded the limit on file descriptors
            complain_of(f"{error}; allow this process more files (ulimit -n), and start again")
            code = TooManyFilesError.exit_code
        elif (own := user_frames(error)) is not None:  # a defect in the user's own code
            traceback.print_exception(type(error), error, own)
            code = 1
        else:
            raise
    if code == INTERRUPTED:  # for Ctrl-C, typer returns only this exit code
        complain_of("interrupted")
    gc.freeze()  # at exit, the interpreter would search all objects for cycles, to free what the process frees anyway
    sys.exit(code or 0)


if __name__ == "__main__":
    main()
