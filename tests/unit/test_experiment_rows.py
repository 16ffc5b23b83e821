"""The rows in the comments of experiments: what they put on the command line are settings that load."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from fenchel.common.settings.run import load

ROOT = Path(__file__).parents[2]

_CONTINUED = re.compile(r"\\\n#\s*")

_SET = re.compile(r"""--set ((?:'[^']*'|"[^"]*"|[^\s;,'"])+)""")


def overrides(text: str) -> list[str]:
    """Return what follows each ``--set``, without the quotes of the shell."""
    return ["".join(shlex.split(found)) for found in _SET.findall(text)]


def lines(file: Path) -> Iterator[str]:
    """Yield the comments of a file; a line that is continued and the next are one."""
    for line in _CONTINUED.sub("", file.read_text()).splitlines():
        if line.startswith("#"):
            yield line.removeprefix("#")


def commands(file: Path) -> Iterator[str]:
    """Yield each ``fenchel up``."""
    for line in lines(file):
        if line.strip().startswith("fenchel up "):
            yield line.strip()


def rows(file: Path) -> Iterator[list[str]]:
    """Yield the overrides of each row of a table: behind its name, or alternatives with some space between them."""
    for line in lines(file):
        if "fenchel " not in line:
            yield from (overrides(cell) for cell in re.split(r"\s{2,}", line) if cell.startswith("--set "))


FILES = sorted((ROOT / "fenchel" / "experiments").rglob("*.yaml"))
COMMANDS = [command for file in FILES for command in commands(file)]
ROWS = [(file, row) for file in FILES for row in rows(file)]


@pytest.mark.parametrize("command", COMMANDS)
def test_what_a_file_says_to_type_loads(command: str) -> None:
    load(Path(command.split()[2]), overrides(command))


@pytest.mark.parametrize(("file", "row"), ROWS, ids=[f"{file.stem}: {' '.join(row)}"[:100] for file, row in ROWS])
def test_a_row_of_a_file_s_table_loads(file: Path, row: list[str]) -> None:
    assert row
    load(file, row)


def test_there_are_rows_to_look_at() -> None:
    assert len(COMMANDS) > 20
    assert len(ROWS) > 50
