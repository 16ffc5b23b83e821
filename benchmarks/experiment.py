"""Runs of an experiment: what is planned, what is kept already, and the rest done, several at a time."""

from __future__ import annotations

import argparse
import json
import re
import tempfile
from collections.abc import Hashable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TypeVar

import fenchel
from benchmarks import program
from benchmarks.program import allow_many_sockets, progress
from fenchel.common.settings.run import load

Key = TypeVar("Key", bound=Hashable)


def flags(doc: str | None, quick: str) -> argparse.ArgumentParser:
    """Return a parser of the flags that every experiment has; parameters as for :func:`benchmarks.program.flags`."""
    parser = program.flags(doc, quick)
    parser.add_argument("--runs", type=Path, help="keep the runs here, and read those that are here already")
    return parser


@contextmanager
def command_line(parser: argparse.ArgumentParser) -> Iterator[tuple[argparse.Namespace, Path]]:
    """Read the command line; yield its words, and where runs are kept: in ``--runs``, or only as long as this lasts."""
    words = parser.parse_args()
    allow_many_sockets()
    with tempfile.TemporaryDirectory() as temporary:
        yield words, words.runs or Path(temporary)


@dataclass(frozen=True)
class Planned:
    """A run that an experiment needs."""

    settings: Path  # settings file
    overrides: tuple[str, ...]  # what differs from it, ``key=value``
    folder: Path  # where runs like it are kept
    processes: int = 2  # of the clients
    in_process: bool = False  # without a network, in this process

    @classmethod
    def row(
        cls, settings: Path, title: str, algorithm: Mapping[str, Any], overrides: Sequence[str], runs: Path
    ) -> Planned:
        """Return the run of a table's row: it is kept below ``runs`` in a folder with the row's title."""
        folder = runs / re.sub(r"[^a-z0-9]+", "-", title.lower())
        chosen = (f"algorithm={json.dumps(dict(algorithm))}", *overrides)
        return cls(settings, chosen, folder)


def kept(planned: Planned) -> fenchel.Run | None:
    """Return the run if it is in its folder already, completed and with the same settings."""
    wanted = load(planned.settings, planned.overrides)
    for found in sorted(planned.folder.glob(f"*-{wanted.name}-*/summary.json")):
        run = fenchel.Run(found.parent)
        if run.completed and run.settings == wanted:
            return run
    return None


def done(planned: Planned) -> fenchel.Run:
    """Return the run that is kept, or do it, with server and clients in processes of their own if it says so."""
    return kept(planned) or fenchel.up(
        planned.settings,
        overrides=planned.overrides,
        processes=planned.processes,
        runs=planned.folder,
        in_process=planned.in_process,
    )


def all_done(plan: Mapping[Key, Planned], at_once: int) -> dict[Key, fenchel.Run]:
    """Do all runs in the order of the plan, and return those that came to their end; say why others did not."""
    runs: dict[Key, fenchel.Run] = {}
    # Not forked: gRPC does not survive it.
    with ProcessPoolExecutor(at_once, mp_context=get_context("spawn")) as pool:
        waiting = {pool.submit(path_of, planned): key for key, planned in plan.items()}
        for future in as_completed(waiting):
            key = waiting[future]
            try:
                runs[key] = fenchel.Run(future.result())
            except fenchel.FenchelError as error:
                progress(f"{key}: {error}")
            else:
                progress(f"{len(runs)} of {len(plan)}: {key}")
    return {key: runs[key] for key in plan if key in runs}


def path_of(planned: Planned) -> Path:
    """Return the folder of the run that is kept, or do it: what another process can tell of it."""
    return done(planned).path
