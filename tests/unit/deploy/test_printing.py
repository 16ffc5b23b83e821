"""Printed lines show any text as it is."""

from __future__ import annotations

import json
import math

import pytest

from fenchel.deploy.cli.printing import complain_of, print_json, say, warn_of


def test_brackets_are_no_markup(capsys: pytest.CaptureFixture[str]) -> None:
    words = "runs/[bold]x[/bold]: [1, 2] and :smile:"
    say(words)
    warn_of(words)
    complain_of(words)
    printed = capsys.readouterr()
    assert printed.out == f"{words}\n"
    assert printed.err == f"warning: {words}\nerror: {words}\n"


def test_numbers_that_json_lacks_are_null(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"figures": {"objective": math.inf, "loss": 0.5}, "seconds": [math.nan, 1, "inf", True, None]})

    def refused(constant: str) -> None:
        raise AssertionError(constant)

    printed = json.loads(capsys.readouterr().out, parse_constant=refused)
    assert printed == {"figures": {"objective": None, "loss": 0.5}, "seconds": [None, 1, "inf", True, None]}
