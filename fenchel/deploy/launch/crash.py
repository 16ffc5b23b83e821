"""Termination of a client process after a defect, without traces of local data."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager

import typer
from rich.console import Console

from fenchel.common.defects import described
from fenchel.common.errors import FenchelError


@contextmanager
def leaving_no_data(*passing: type[Exception]) -> Iterator[None]:
    """Disable core dumps, and report a defect in a ``with`` block without the text of the error.

    Parameters
    ----------
    *passing
        Errors that the caller handles, besides those of Fenchel.

    Raises
    ------
    typer.Exit
        With exit code 1, after the report of a defect.
    """
    _, most = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, most))
    passed: tuple[type[Exception], ...] = (FenchelError, typer.Exit, *passing)
    try:
        yield
    except passed:
        raise
    except Exception as error:
        Console(stderr=True, soft_wrap=True, highlight=False, markup=False, emoji=False).print(described(error))
        raise typer.Exit(1) from None
