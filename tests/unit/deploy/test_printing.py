"""Printed lines show any text as it is."""

from __future__ import annotations

import pytest

from fenchel.deploy.cli.printing import complain_of, say, warn_of


def test_brackets_are_no_markup(capsys: pytest.CaptureFixture[str]) -> None:
    words = "runs/[bold]x[/bold]: [1, 2] and :smile:"
    say(words)
    warn_of(words)
    complain_of(words)
    printed = capsys.readouterr()
    assert printed.out == f"{words}\n"
    assert printed.err == f"warning: {words}\nerror: {words}\n"
